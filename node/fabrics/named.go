package fabrics

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/farkv/farkv/node/cluster/consul"
	"github.com/farkv/farkv/node/membership"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/realtime"
)

// namedPool is what a process has with a Consul agent for the sake of a pool.
type namedPool struct {
	agent       *consul.Agent
	masterWatch *masterWatch
	member      *consul.Registration // nil: the agent was away
}

func (m *namedPool) end() {
	m.masterWatch.close()
	if m.member != nil {
		_ = m.member.Close() // an agent that is away finds out by itself
	}
	m.agent.Close()
}

// name wraps an open pool of which this process is a client for Consul, until it is closed.
func name(f nodeFabric, a Address, agent *consul.Agent, g *masterWatch) rdma.Fabric {
	with := namedPool{agent: agent, masterWatch: g}
	host, _ := os.Hostname()
	m := consul.Member{
		Kind: consul.Client, ID: "farkv-client-" + strings.ToLower(rand.Text()), Pool: a.Name,
		Meta: map[string]string{"pid": strconv.Itoa(os.Getpid()), "host": host},
	}
	if r, err := agent.Register(m, func() (bool, string) { return reach(f) }); err == nil {
		with.member = r
	}
	f.OnClose(with.end)
	return f
}

// reach is what Consul is told of a process that has a pool open.
func reach(f nodeFabric) (well bool, text string) {
	away := 0
	for n := range f.Nodes() {
		if f.NodeDown(n) {
			away++
		}
	}
	if away > 0 {
		return false, fmt.Sprintf("%d of %d memory nodes are out of its reach", away, f.Nodes())
	}
	return true, "reaches all memory nodes"
}

// masterWatch watches the master's record, from the first look on.
type masterWatch struct {
	store  *consul.Store
	mu     sync.Mutex
	mirror *consul.Mirror
	closed bool
}

// look implements membership.Options.Glance.
func (g *masterWatch) look() (membership.Record, time.Duration, bool) {
	g.mu.Lock()
	if g.mirror == nil && !g.closed {
		g.mirror = g.store.Mirror("master")
	}
	m := g.mirror
	g.mu.Unlock()
	if m == nil {
		return membership.Record{}, 0, false
	}
	r := m.Look()
	return r.Record, realtime.Now() - time.Since(r.Since), r.Err == nil && !r.Since.IsZero()
}

func (g *masterWatch) close() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.closed = true
	if g.mirror != nil {
		g.mirror.Close()
	}
}

func parseConsul(rest string) (Address, error) {
	agent, name, err := consul.Parse(rest)
	return Address{Agent: agent, Name: name}, err
}

// atConsul calls f with the pool that an address names, and its agent, which a fabric that f
// returns keeps. Errors say to do what f was called.
func atConsul(do string, a Address, f func(agent *consul.Agent, p *consul.Pool) (rdma.Fabric,
	error)) (opened rdma.Fabric, err error) {
	defer func() {
		if err != nil {
			err = fmt.Errorf("%s %s: %w", do, a, err)
		}
	}()
	agent, err := consul.Dial(a.Agent)
	if err != nil {
		return nil, err
	}
	p, err := agent.Pool(a.Name)
	if err == nil {
		opened, err = f(agent, p)
	}
	if opened == nil {
		agent.Close()
	}
	return opened, err
}

func createConsul(a Address, g Geometry, format func(rdma.Fabric) error) (rdma.Fabric, error) {
	return atConsul("create", a, func(agent *consul.Agent, p *consul.Pool) (rdma.Fabric, error) {
		return makeNamed(a, agent, p, g, format)
	})
}

// makeNamed makes a pool, and then its record. Of several makers of one name one wins.
func makeNamed(a Address, agent *consul.Agent, p *consul.Pool, g Geometry, format func(rdma.Fabric) error) (rdma.Fabric,
	error) {
	switch _, err := p.Record(); {
	case err == nil:
		return nil, ErrExists
	case !errors.Is(err, consul.ErrNoPool):
		return nil, err
	}
	var err error
	if g.Addresses == nil {
		if g.Addresses, err = vacant(agent, g.Nodes, g.Fabric); err != nil {
			return nil, err
		}
	}
	s, err := Security()
	if err != nil {
		return nil, err
	}
	o := control.Options{Security: s, ID: consul.NewID(), RegistryName: a.String()}
	if o.Addresses, o.Witnesses, err = divide(g.Addresses, g.Nodes); err != nil {
		return nil, err
	}
	if g.Fabric == "" {
		g.Fabric = startedFor(o)
	}
	seen := &masterWatch{store: p.Registry(o.ID)}
	o.Registry, o.Glance = seen.store, seen.look
	f, err := createOver(g.Fabric, o, g, format)
	if err == nil {
		err = p.Publish(consul.Record{ID: o.ID, Fabric: g.Fabric, Nodes: g.Addresses, Store: g.Store})
		if err != nil {
			o.Addresses = g.Addresses
			err = errors.Join(err, f.Close(), control.Remove(o, true))
		}
	}
	if err != nil {
		seen.close()
		return nil, errors.Join(err, p.Discard(o.ID))
	}
	return name(f, a, agent, seen), nil
}

// vacant finds nodes that are registered, alive, have no pool, and can serve one over a fabric; "":
// over any.
func vacant(agent *consul.Agent, n int, fabric string) (addresses []string, err error) {
	members, err := agent.Members(consul.Node, "")
	if err != nil && !errors.Is(err, fs.ErrPermission) {
		return nil, err
	}
	for _, m := range members {
		serves := fabric == "" || fabric == carriers[0].name || m.Meta[MetaFabric] == fabric
		if m.Alive() && m.Pool == "" && m.Address != "" && serves && len(addresses) < n {
			addresses = append(addresses, m.Address)
		}
	}
	if err != nil && len(addresses) < n {
		return nil, err
	}
	if len(addresses) < n {
		which := ""
		if NeedsDevice(fabric) {
			which = " with an RDMA device"
		}
		return nil, fmt.Errorf("%d memory nodes%s without a pool are registered and alive, and %d are needed: %w",
			len(addresses), which,
			n, rdma.ErrFull)
	}
	return addresses, nil
}

// lookTime bounds a look at nodes that a pool is about to be made on: as long as an operator waits
// for a command that says nothing.
const lookTime = 3 * time.Second

// startedFor returns what the verbs of a pool are to go over by what its memory nodes were started
// for. One that does not answer keeps the pool from being made anyway.
func startedFor(o control.Options) (fabric string) {
	ctx, cancel := context.WithTimeout(context.Background(), lookTime)
	defer cancel()
	infos, _ := control.Inspect(ctx, o)
	for n, i := range infos {
		if !NeedsDevice(i.Fabric) || n > 0 && i.Fabric != fabric {
			return carriers[0].name
		}
		fabric = i.Fabric
	}
	return fabric
}

func openConsul(a Address) (rdma.Fabric, error) {
	s, err := Security()
	if err != nil {
		return nil, fmt.Errorf("open %s: %w", a, err)
	}
	return openNamed(a, control.Options{Security: s}, DeviceChoice{})
}

// openNamed opens a consul: pool with what o says beyond the pool's record.
func openNamed(a Address, o control.Options, c DeviceChoice) (rdma.Fabric, error) {
	return atConsul("open", a, func(agent *consul.Agent, p *consul.Pool) (rdma.Fabric, error) {
		return openRecorded(a, agent, p, o, c)
	})
}

func openRecorded(a Address, agent *consul.Agent, p *consul.Pool, o control.Options, c DeviceChoice) (rdma.Fabric,
	error) {
	r, err := p.Record()
	if err != nil {
		return nil, err
	}
	seen := &masterWatch{store: p.Registry(r.ID)}
	o.Addresses, o.ID, o.Registry, o.Glance = r.Nodes, r.ID, seen.store, seen.look
	f, err := openOver(r.Fabric, o, c)
	if err != nil {
		seen.close()
		return nil, err
	}
	return name(f, a, agent, seen), nil
}

func removeConsul(a Address, force bool) error {
	_, err := atConsul("remove", a, func(_ *consul.Agent, p *consul.Pool) (rdma.Fabric, error) {
		return nil,
			removeNamed(p, force)
	})
	return err
}

// removeNamed takes the pool away from its nodes first: a crash behind it leaves a record that can
// be removed again.
func removeNamed(p *consul.Pool, force bool) error {
	r, err := p.Record()
	if errors.Is(err, consul.ErrFormat) && force {
		return p.Clear()
	}
	if err != nil {
		return err
	}
	s, err := Security()
	if err != nil {
		return err
	}
	err = control.Remove(control.Options{Addresses: r.Nodes, Security: s, Registry: p.Registry(r.ID), ID: r.ID}, force)
	if err != nil && !force && !errors.Is(err, ErrNoPool) {
		return err
	}
	return p.Remove(r)
}
