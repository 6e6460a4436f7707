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
	// TTL is how long a process that does not update its check counts as alive.
	TTL = 2 * time.Second
	// beat is the interval of updates.
	beat = 500 * time.Millisecond
	// forgotten is how long a service stays listed after its check became critical: Consul's
	// minimum.
	forgotten = time.Minute
)

// Kind is the kind of a registered process. Its service is called farkv-KIND.
type Kind string

// The kinds of processes.
const (
	Node   Kind = "node"   // a memory node
	Client Kind = "client" // a process that opened a pool, and with it a candidate for its master's role
)

func (k Kind) service() string { return "farkv-" + string(k) }

// Member is a process as it is registered with Consul.
type Member struct {
	Kind Kind
	// Unique among those registered with one agent.
	ID string
	// HOST:PORT at which others reach it; "": it serves nothing.
	Address string
	// The pool that it belongs to; "": none yet.
	Pool string
	// Of a node: its number in the pool.
	Index int
	Meta  map[string]string
}

// Registration keeps a Member registered until Close.
type Registration struct {
	agent   *Agent
	state   func() (well bool, text string)
	cancel  context.CancelFunc
	stopped chan struct{}

	// mu is held during calls to the agent, so that they take effect in order.
	mu     sync.Mutex
	member Member
	// Why the last update failed.
	err error
}

// Register registers m and keeps a TTL check of it passing until Close. When the process dies or is
// stopped the check becomes critical after TTL, and the service is removed a minute later. state is
// called before each update: it returns the check's output, such as the state of the lease, and
// whether all is well; if not, the check is a warning.
//
// If the agent cannot be reached now, the error wraps membership.ErrUnreachable. If it cannot be
// reached later, or was restarted and has lost the registration, each update tries again: see Err.
func (a *Agent) Register(m Member, state func() (well bool, text string)) (*Registration, error) {
	if _, err := m.registration(); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	r := &Registration{agent: a, state: state, cancel: cancel, stopped: make(chan struct{}), member: m}
	err := a.call(true, r.put) // it may be repeated: registering twice is harmless
	if err != nil {
		cancel()
		return nil, a.failed(err, "register %s", m.ID)
	}
	go r.run(ctx)
	return r, nil
}

// run updates the check until ctx ends.
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

// pulse updates the check. An agent that answers with an error has lost the registration, and gets
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
	// The agent was restarted, or has removed the service.
	if errors.As(err, &answered) {
		return r.register(ctx)
	}
	if err != nil {
		return r.agent.failed(err, "tell that %s is alive", r.member.ID)
	}
	return nil
}

// register sends the registration within the time of one call.
func (r *Registration) register(ctx context.Context) error {
	limited, cancel := context.WithTimeout(ctx, r.agent.timeout)
	defer cancel()
	if err := r.put(limited); err != nil {
		return r.agent.failed(err, "register %s", r.member.ID)
	}
	return nil
}

// put sends the registration as it is now. The caller holds mu, or is the only user.
func (r *Registration) put(ctx context.Context) error {
	s, err := r.member.registration()
	if err != nil {
		return err
	}
	return r.agent.client.Agent().ServiceRegisterOpts(s,
		api.ServiceRegisterOpts{ReplaceExistingChecks: true}.WithContext(ctx))
}

// Join says that the member belongs to a pool now, as the node with that index if it is a node.
// Pool "" means none.
func (r *Registration) Join(pool string, index int) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.member.Pool, r.member.Index = pool, index
	r.err = r.register(context.Background())
	return r.err
}

// Err returns why the last update failed; nil: it succeeded.
func (r *Registration) Err() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.err
}

// Close removes the registration. It is removed after an error, too: an agent that answers late
// does it then, and from one that cannot be reached the service goes a minute after the check
// became critical.
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

// registration returns m as Consul expects it.
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
