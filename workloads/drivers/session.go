package drivers

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/realtime"
	"github.com/farkv/farkv/node/telemetry"
)

// session is a worker's store with the endpoint that it stands on. One that was fenced off, or does
// not know what became of a write, is left behind with the operation that it failed, and the next
// operation opens another.
type session struct {
	pool   *pool
	worker int
	store  client.Store // nil: it was left
	ep     rdma.Endpoint

	meter *client.Meter     // of the store and the endpoint
	left  telemetry.Process // what meters of those that were left had to tell yet
	count *rdma.Counters    // of all endpoints: the worker's own, since one that is left counts on while it leaves
	past  rdma.Counters     // of endpoints that were left
}

// CPU implements runner.Database where memory nodes are processes.
func (d *pool) CPU() (here, nodes time.Duration, ok bool) {
	f, ok := d.fabric.(rdma.CPUMeter)
	if !ok {
		return 0, 0, false
	}
	nodes, err := f.CPU()
	return realtime.CPU(), nodes, err == nil
}

// Publish implements runner.Database.
func (d *pool) Publish(s client.Subject) *client.Publisher {
	return client.Publish(d.fabric, "go-ycsb "+d.kind.Name, s)
}

// Gone implements runner.Database.
func (d *pool) Gone() error {
	if f, ok := d.fabric.(rdma.Perishable); ok {
		return f.Gone()
	}
	return nil
}

func (s *session) open() error {
	ep, err := s.pool.fabric.Open(fmt.Sprintf("go-ycsb %d", s.worker))
	if err != nil {
		return err
	}
	o := s.pool.opts
	o.Fabric, o.Process = s.pool.fabric, &s.pool.process
	store, err := s.pool.kind.Open(ep, o)
	if err != nil {
		return errors.Join(err, ep.Close())
	}
	s.store, s.ep, s.meter = store, ep, client.NewMeter(store, ep)
	return nil
}

// ready makes sure that there is a store.
func (s *session) ready() error {
	if s.store != nil {
		return nil
	}
	if err := client.Reopen(context.Background(), s.open); err != nil {
		return fmt.Errorf("open the store again: %w", err)
	}
	return nil
}

// done judges an operation's answer.
func (s *session) done(err error) error {
	*s.count = s.past.Add(*s.ep.Counters())
	if err == nil || !errors.Is(err, client.ErrUncertain) && !errors.Is(err, rdma.ErrAccess) {
		return err
	}
	s.past = *s.count
	s.meter.Collect(&s.left)
	// what cannot be closed is recovered; the operation says what is wrong
	s.pool.door.CloseAsync(s.store, s.ep, s.pool.fabric)
	s.store = nil
	return err
}

// Get implements client.Store, as the others do.
func (s *session) Get(key []byte) ([]byte, error) {
	if err := s.ready(); err != nil {
		return nil, err
	}
	v, err := s.store.Get(key)
	return v, s.done(err)
}

func (s *session) Insert(key, value []byte) error {
	if err := s.ready(); err != nil {
		return err
	}
	return s.done(s.store.Insert(key, value))
}

func (s *session) Update(key, value []byte) error {
	if err := s.ready(); err != nil {
		return err
	}
	return s.done(s.store.Update(key, value))
}

func (s *session) Delete(key []byte) error {
	if err := s.ready(); err != nil {
		return err
	}
	return s.done(s.store.Delete(key))
}

// Collect implements workloads.Collector.
func (s *session) Collect(p *telemetry.Process) {
	p.Add(&s.left)
	s.left = telemetry.Process{}
	if s.store != nil {
		s.meter.Collect(p)
	}
}

// Close leaves the pool.
func (s *session) Close() error {
	if s.store == nil {
		return nil
	}
	return s.pool.door.Leave(s.store, s.ep, s.pool.fabric)
}

// scanning is the session of a store that scans.
type scanning struct{ *session }

// Scan implements client.Scanner.
func (s scanning) Scan(start []byte, n int, yield func(key, value []byte) bool) error {
	if err := s.ready(); err != nil {
		return err
	}
	return s.done(s.store.(client.Scanner).Scan(start, n, yield))
}
