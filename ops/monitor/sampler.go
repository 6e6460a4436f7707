// Package monitor takes samples of a pool at an interval, for package tui to show, and draws tui's
// pages as plots.
package monitor

import (
	"cmp"
	"errors"
	"time"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/telemetry"
	"github.com/farkv/farkv/ops"
)

// memoryEvery is for how long what the pool's memory is used for is not read again: that reads up
// to some hundred KiB.
const memoryEvery = 10 * time.Second

// A Sampler takes samples of a pool. While the pool cannot be opened, it tries again at each
// sample, and samples have the last known state with the reason why it is old. It is not safe for
// concurrent use.
type Sampler struct {
	addr   string
	pool   *stores.Pool      // nil: it is not open
	lent   bool              // another owner closes the pool
	spares int               // that the pool was made with
	ep     rdma.Endpoint     // to look with
	reader *telemetry.Reader // nil: the pool has no telemetry
	last   telemetry.Sample
	walked time.Time // when Fill and Memory were seen
}

// NewSampler returns a Sampler of the pool at an address.
func NewSampler(addr string) *Sampler {
	return &Sampler{addr: addr, last: telemetry.Sample{Pool: addr, MayDie: -1}}
}

// NewSamplerOf returns a Sampler of an open pool. The caller owns the pool, and closes it after the
// Sampler.
func NewSamplerOf(p *stores.Pool) *Sampler {
	s := NewSampler(p.Address)
	s.lent = true
	s.use(p)
	return s
}

// Close closes the pool, if the Sampler opened it.
func (s *Sampler) Close() error {
	p, ep := s.pool, s.ep
	s.pool, s.ep, s.reader = nil, nil, nil
	var err error
	if ep != nil {
		err = ep.Close()
	}
	if p == nil || s.lent {
		return err
	}
	return errors.Join(err, p.Close())
}

// Look takes a sample. It never fails: the sample's Problem is what could not be read. Samples
// share parts with later ones, so that the caller must not change them.
func (s *Sampler) Look(now time.Time) *telemetry.Sample {
	if err := s.open(); err != nil {
		return s.out(now, err)
	}
	state := ops.Glance(s.pool)
	next := sampleOf(state, s.spares)
	next.At, next.Fill, next.Memory = now, s.last.Fill, s.last.Memory
	if now.Sub(s.walked) >= memoryEvery {
		if err := state.AddMemory(s.pool); err != nil {
			next.Problem = cmp.Or(next.Problem, err.Error())
		}
		next.Fill, next.Memory = memoryOf(state)
		s.walked = now
	}
	s.read(&next)
	s.last = next
	return &next
}

// read adds the telemetry of the pool's processes, and the events since the last sample.
func (s *Sampler) read(next *telemetry.Sample) {
	if s.ep == nil {
		ep, err := rdma.Peek(s.pool.Fabric, "monitor")
		if err != nil {
			next.Problem = cmp.Or(next.Problem, err.Error())
			return
		}
		s.ep = ep
	}
	if s.reader == nil && s.pool.Header.Telemetry > 0 {
		region, err := telemetry.FindBehind(s.ep, s.pool.Header)
		if err != nil {
			next.Problem = cmp.Or(next.Problem, err.Error())
			s.leave()
			return
		}
		s.reader = telemetry.NewReader(region)
	}
	if s.reader == nil {
		return
	}
	var failed, unseen error
	next.Processes, next.More, failed = s.reader.Processes(s.ep, next.At)
	next.Events, unseen = s.reader.Events(s.ep)
	if failed == nil {
		failed = unseen
	}
	if failed != nil {
		next.Problem = cmp.Or(next.Problem, failed.Error())
		s.leave() // the view may have changed: the next look begins anew
	}
}

// leave closes the endpoint. The reader stays: it knows which events earlier samples had.
func (s *Sampler) leave() {
	_ = s.ep.Close() // it only looked
	s.ep = nil
}

// open opens the pool unless it is open.
func (s *Sampler) open() error {
	if s.pool != nil {
		gone, ok := s.pool.Fabric.(rdma.Perishable)
		if !ok || gone.Gone() == nil {
			return nil
		}
		if s.lent {
			return gone.Gone()
		}
		s.Close() // what it says of a pool that is gone does not matter
	}
	p, err := stores.Open(s.addr)
	if err != nil {
		return ops.Explain(err, s.addr)
	}
	s.use(p)
	return nil
}

// use makes p the pool that the next samples are of.
func (s *Sampler) use(p *stores.Pool) {
	s.pool, s.spares = p, ops.ShapeOf(p).Spares
}

// out returns the sample of a pool that cannot be opened: the last known state, and what its nodes
// report now.
func (s *Sampler) out(now time.Time, why error) *telemetry.Sample {
	next := s.last
	next.At, next.Events, next.Whole, next.Problem = now, nil, false, why.Error()
	if state := ops.Unreachable(s.addr, why); state != nil {
		told := sampleOf(state, s.spares)
		next.Nodes, next.MayDie = told.Nodes, told.MayDie
	}
	return &next
}

// sampleOf returns the sample of one state of a pool. The last nodes, spares of them, were spares
// when the pool was made.
func sampleOf(state *ops.State, spares int) telemetry.Sample {
	s := telemetry.Sample{
		Pool: cmp.Or(state.Name, state.Pool), Store: state.Store, Problem: state.Problem, Epoch: state.View.Epoch,
		Busy: state.View.Busy,
		Lost: state.Margin.Lost(), MayDie: -1,
	}
	if state.Margin != nil {
		s.MayDie = state.Margin.MayDie
	}
	if state.Master != nil {
		s.Master = state.Master.Client
	}
	stood := map[int]bool{} // nodes that another one stands for
	for _, n := range state.Nodes {
		if n.Replaces != nil {
			stood[*n.Replaces] = true
		}
	}
	s.Whole = !state.View.Busy && state.Store != ""
	for i, n := range state.Nodes {
		is := telemetry.Node{ID: i, Role: "member", Up: n.Up, Bytes: n.Bytes}
		empty := n.Replaces == nil && i >= len(state.Nodes)-spares
		switch {
		case n.Gone:
			is.Role = "gone"
		case n.Replaces != nil:
			is.Replaces = *n.Replaces + 1
		case empty:
			is.Role = "spare"
		}
		if is.Role == "spare" && n.Up {
			s.Spares++
		}
		s.Whole = s.Whole && (n.Up || stood[i] || empty)
		s.Nodes = append(s.Nodes, served(is, n.Served))
	}
	for i, w := range state.Witnesses {
		s.Nodes = append(s.Nodes,
			served(telemetry.Node{ID: len(state.Nodes) + i, Role: "witness", Up: w.Reachable && !w.Expelled}, &w))
	}
	if not := state.Unserved(); len(not) > 0 {
		s.Problem = cmp.Or(s.Problem, not[0])
	}
	for _, c := range state.Clients {
		if c.Serves() {
			continue // the nodes tell of servers
		}
		is := telemetry.Client{ID: c.ID, Name: c.Name, PID: c.PID, State: "live"}
		switch {
		case c.Fenced:
			is.State = "fenced"
		case !c.Alive:
			is.State = "dead"
		}
		s.Clients = append(s.Clients, is)
	}
	return s
}

// served adds to a node what its process reports, if the node is a process.
func served(n telemetry.Node, s *ops.Served) telemetry.Node {
	if s == nil {
		return n
	}
	n.Address, n.Problem, n.PMem = s.Address, s.Problem, s.PMem
	if s.Counts != nil {
		counts := *s.Counts
		counts.Node, n.Counts = n.ID, &counts
	}
	if s.Server != nil {
		n.Server = s.Server.Counts
	}
	n.Lease = time.Duration(s.Lease * float64(time.Second))
	n.Bytes = cmp.Or(n.Bytes, s.Offers)
	return n
}

// memoryOf returns the part of a State about the pool's memory.
func memoryOf(s *ops.State) (fill []telemetry.Fill, uses []telemetry.Use) {
	for _, f := range s.Fill {
		fill = append(fill, telemetry.Fill{Of: f.Of, Used: f.Used, All: f.All})
	}
	for _, u := range s.Memory {
		uses = append(uses, telemetry.Use(u))
	}
	return fill, uses
}
