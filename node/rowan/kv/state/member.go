package state

import (
	"errors"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// member is the endpoint of a server's task. It joins new views of the pool by itself, and repeats
// READs and WRITEs that a change of the view has ended, if the task waits for them. So a task sees
// rdma.ErrStale only in verbs that it does not wait for, and in APPENDs and SENDs, which must not
// be repeated blindly.
//
// It relies on this: before a view calls a node gone, verbs of earlier views are fenced off and the
// node is expelled. So when a READ of the server's node succeeds, or an answer that is sent by way
// of it arrives, the node was not gone. README.md says what follows ("Leases").
type member struct {
	rdma.Endpoint
	s *Server
	// Epoch of the last view that the task joined.
	joined uint64
}

// Member returns the endpoint of a task.
func (s *Server) Member(ep rdma.Endpoint) rdma.Endpoint { return &member{Endpoint: ep, s: s} }

func (m *member) Join() (rdma.View, error) {
	v, err := m.Endpoint.Join()
	if err == nil {
		m.joined = v.Epoch
	}
	return v, err
}

// Post joins a view first that the server knows of: an answer that is sent in an earlier view does
// not arrive, and the task may never learn that.
func (m *member) Post(b *rdma.Batch) error {
	// The control task has heard of it from the manager, or from the registers.
	if m.s.Known.view() > m.joined {
		if _, err := m.Join(); err != nil {
			return err
		}
	}
	// An error of Post means that nothing was sent.
	err := m.insist(func() error { return m.Endpoint.Post(b) })
	if err == nil && b.Finished() && errors.Is(b.Err(), rdma.ErrStale) { // package shm says so at once
		_, err = m.Join()
	}
	return err
}

// Wait is Endpoint.Wait, and repeats what a new view has ended, once for each view, within the same
// time.
func (m *member) Wait(b *rdma.Batch, n int, within time.Duration) error {
	// The bound is of the whole, whatever is repeated.
	until := rdma.Forever
	if now := m.Now(); within < rdma.Forever-now {
		until = now + within
	}
	err := m.Endpoint.Wait(b, n, within)
	for again := true; again && err == nil && b.Finished(); { // once more for each new view
		again, err = m.repeat(b, until)
	}
	return err
}

// repeat repeats the READs and WRITEs in a batch that a new view has ended, and reports whether
// there were any. The results replace those in the batch. Repeating a WRITE is safe: the words are
// the task's own, and it waits, so none of its later WRITEs has landed.
func (m *member) repeat(b *rdma.Batch, until time.Duration) (repeated bool, err error) {
	if !errors.Is(b.Err(), rdma.ErrStale) {
		return false, nil
	}
	c := m.Batch()
	defer c.Release()
	var ops []*rdma.Op
	for i := range b.Len() {
		switch op := b.Op(i); {
		case !errors.Is(op.Err, rdma.ErrStale):
		case op.Verb == rdma.Read:
			c.Read(op.Addr, len(op.Buf))
			ops = append(ops, op)
		case op.Verb == rdma.Write:
			// The words are written as they were.
			c.WriteCopy(op.Addr, op.Buf)
			ops = append(ops, op)
		}
	}
	// Only verbs that must not be repeated blindly were ended.
	if len(ops) == 0 {
		return false, nil
	}
	if _, err := m.Join(); err != nil {
		return false, err
	}
	if err := m.Post(c.As(b.Step())); err != nil {
		return false, err
	}
	if err := m.Endpoint.Wait(c, rdma.All, max(0, until-m.Now())); err != nil {
		return false, err
	}
	for i, op := range ops {
		// The caller finds the results where it looks for them.
		copy(op.Buf, c.Op(i).Buf)
		op.Err = c.Op(i).Err
	}
	return true, nil
}

// Go starts a task with an endpoint of the same kind.
func (m *member) Go(name string, f func(rdma.Endpoint)) error {
	return m.insist(func() error { return m.Endpoint.Go(name, func(ep rdma.Endpoint) { f(m.s.Member(ep)) }) })
}

func (m *member) Listen(o rdma.BoxOptions) (box rdma.Mailbox, err error) {
	err = m.insist(func() error { box, err = rdma.Listen(m.Endpoint, o); return err })
	return box, err
}

func (m *member) Rings() (rdma.RingPromises, error) { return rdma.Rings(m.Endpoint) }

func (m *member) OpenRing(o rdma.RingOptions) (ring rdma.Ring, err error) {
	err = m.insist(func() error { ring, err = rdma.OpenRing(m.Endpoint, o); return err })
	return ring, err
}

// insist repeats an action that a new view has ended, once for each view.
func (m *member) insist(do func() error) error {
	for {
		err := do()
		if !errors.Is(err, rdma.ErrStale) {
			return err
		}
		if _, err := m.Join(); err != nil {
			return err
		}
	}
}
