package consul

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/hashicorp/consul/api"
)

const (
	// TTL is for how long a process that says nothing counts as alive with Consul.
	TTL = 2 * time.Second
	// beat is how often it says something.
	beat = 500 * time.Millisecond
	// forgotten is how long a service stays listed after its process died: Consul's shortest.
	forgotten = time.Minute
)

// Kind is what a registered process is. Its service is called farkv-KIND.
type Kind string

// The kinds of processes.
const (
	Node   Kind = "node"   // a memory node
	Client Kind = "client" // a process that opened a pool, and with it a candidate for its master's role
)

func (k Kind) service() string { return "farkv-" + string(k) }

// Member is a process as Consul knows it.
type Member struct {
	Kind    Kind
	ID      string // unique among what is registered with an agent
	Address string // HOST:PORT at which others reach it; "": it serves nothing
	Pool    string // that it belongs to; "": none yet
	Index   int    // of a node in its pool
	Meta    map[string]string
}

// Registration keeps a Member registered.
type Registration struct {
	agent   *Agent
	state   func() (well bool, text string)
	cancel  context.CancelFunc
	stopped chan struct{}

	mu     sync.Mutex // held during calls, so that they do not overtake each other
	member Member
	err    error
}

// Register makes m known and keeps a TTL check of it passing until Close: when the process dies, or
// stops, the check falls critical after TTL, and the service goes a minute later. state is asked at
// each beat: what to show as the check's output, such as the lease, and whether all is well; else
// the check warns.
//
// An agent that cannot be reached now is an error wrapping board.ErrUnreachable. One that cannot be
// reached later, or was restarted and knows nothing, is tried at every beat: Err tells.
func (a *Agent) Register(m Member, state func() (well bool, text string)) (*Registration, error) {
	if _, err := m.registration(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &Registration{agent: a, state: state, cancel: cancel, stopped: make(chan struct{}), member: m}
	err := a.call(true, r.put) // done twice it does no harm
	if err != nil {
		cancel()
		return nil, a.failed(err, "register %s", m.ID)
	}
	go r.run(ctx)
	return r, nil
}

func (r *Registration) run(ctx context.Context) {
	defer close(r.stopped)
	tick := time.NewTicker(beat)
	defer tick.Stop()
	for {
		r.mu.Lock()
		r.err = r.pulse(ctx)
		r.mu.Unlock()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// pulse passes the check. Where the agent is there and refuses it lost the registration, and gets
// it again.
func (r *Registration) pulse(ctx context.Context) error {
	status := api.HealthWarning
	well, text := r.state()
	if well {
		status = api.HealthPassing
	}
	limited, cancel := context.WithTimeout(ctx, r.agent.timeout)
	defer cancel()
	err := r.agent.client.Agent().UpdateTTLOpts(r.member.check(), text, status,
		(&api.QueryOptions{}).WithContext(limited))
	var answered api.StatusError
	if errors.As(err, &answered) {
		return r.register(ctx)
	}
	if err != nil {
		return r.agent.failed(err, "tell that %s is alive", r.member.ID)
	}
	return nil
}

func (r *Registration) register(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, r.agent.timeout)
	defer cancel()
	if err := r.put(limited); err != nil {
		return r.agent.failed(err, "register %s", r.member.ID)
	}
	return nil
}

// put writes the registration as it is now.
func (r *Registration) put(ctx context.Context) error {
	s, err := r.member.registration()
	if err != nil {
		return err
	}
	return r.agent.client.Agent().ServiceRegisterOpts(s,
		api.ServiceRegisterOpts{ReplaceExistingChecks: true}.WithContext(ctx))
}

// Join tells that the member belongs to a pool now: as node index of it, if it is one. Pool "": to
// none.
func (r *Registration) Join(pool string, index int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.member.Pool, r.member.Index = pool, index
	r.err = r.register(context.Background())
	return r.err
}

// Err returns why the last beat failed; nil: it did not.
func (r *Registration) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// Close takes the member off Consul's list. After an error that happens nevertheless: an agent that
// begins answers late and does it, and of one that cannot be reached the member goes a minute after
// the check fell critical.
func (r *Registration) Close() error {
	r.cancel()
	<-r.stopped
	ctx, cancel := r.agent.bound()
	defer cancel()
	err := r.agent.client.Agent().ServiceDeregisterOpts(r.member.ID, (&api.QueryOptions{}).WithContext(ctx))
	if err != nil {
		return r.agent.failed(err, "deregister %s", r.member.ID)
	}
	return nil
}

func (m *Member) check() string { return m.ID + "-alive" }

// registration is m in Consul's words.
func (m *Member) registration() (*api.AgentServiceRegistration, error) {
	if m.ID == "" || strings.Contains(m.ID, "/") {
		return nil, fmt.Errorf("register a %s: bad id %q", m.Kind, m.ID)
	}
	s := &api.AgentServiceRegistration{ID: m.ID, Name: m.Kind.service(), Meta: map[string]string{}}
	maps.Copy(s.Meta, m.Meta)
	if m.Address != "" {
		host, port, err := net.SplitHostPort(m.Address)
		n, bad := strconv.ParseUint(port, 10, 16)
		if err != nil || bad != nil {
			return nil, fmt.Errorf("register %s: bad address %q: want HOST:PORT", m.ID, m.Address)
		}
		s.Address, s.Port = host, int(n)
	}
	if m.Pool != "" {
		s.Tags, s.Meta["pool"] = []string{poolTag(m.Pool)}, m.Pool
		if m.Kind == Node {
			s.Meta["node"] = strconv.Itoa(m.Index)
		}
	}
	s.Check = &api.AgentServiceCheck{
		CheckID: m.check(), Name: "alive", TTL: TTL.String(), Status: api.HealthPassing,
		DeregisterCriticalServiceAfter: forgotten.String(),
	}
	return s, nil
}

func poolTag(pool string) string { return "pool=" + pool }
