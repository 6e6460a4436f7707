package quorum

import (
	"fmt"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// maxUnresolved bounds the batches that a worker keeps. It is more than are in flight to a slow
// node before the node is asked last.
const maxUnresolved = 16

// Unresolved keeps the batches that were in flight when steps ended, until they are complete. Only
// then is it known whether they took effect, and which client owns the memory that they name.
type Unresolved struct {
	// The first n are used, the oldest first. It owns their batches.
	flights [maxUnresolved]unresolvedStep
	n       int
	// Dropped counts chains of which the outcome will never be known, because too many were in
	// flight.
	Dropped uint64
}

type unresolvedStep struct {
	flight
	tag uint64
}

// Keep takes the batches of q's last step that are in flight. The caller defines the tag. With no
// room left the batches are given up: the owners of what they name stay unknown, until a sweep.
func (s *Unresolved) Keep(q *Quorum, tag uint64) {
	if q.flying == 0 {
		return
	}
	kept := 0
	for i := range q.n {
		f := &q.flights[i]
		switch {
		case f.left == 0 || !f.posted:
			q.flights[kept], q.flights[i] = q.flights[i], q.flights[kept]
			kept++
		case s.n == maxUnresolved:
			s.Dropped += uint64(f.left.Len())
			f.b.Release()
		default:
			s.flights[s.n] = unresolvedStep{*f, tag}
			s.n++
		}
	}
	// The quorum forgets what was taken, and keeps the batches that have been answered.
	q.n, q.turn, q.flying = kept, 0, 0
}

// Settle calls look for each chain that is complete by now, whether or not it failed. The batch is
// valid inside look only. look must not call Keep or Settle.
func (s *Unresolved) Settle(look func(tag uint64, b *rdma.Batch, ch Chain)) {
	kept := 0
	for i := range s.n {
		f := &s.flights[i]
		for _, ch := range f.chains[:f.n] {
			if f.left.Has(ch.Replica) && completed(f.b, ch) {
				// Each chain is reported once.
				f.left &^= Only(ch.Replica)
				look(f.tag, f.b, ch)
			}
		}
		if f.left == 0 {
			f.b.Release()
			continue
		}
		s.flights[kept], s.flights[i] = s.flights[i], s.flights[kept]
		kept++
	}
	s.n = kept
}

// Wait waits until all that is kept is complete, or the time is over. It examines nothing: Settle
// does.
func (s *Unresolved) Wait(ep rdma.Endpoint, within time.Duration) {
	began := ep.Now()
	for i := range s.n {
		if left := within - (ep.Now() - began); left <= 0 || ep.Wait(s.flights[i].b, rdma.All, left) != nil {
			return
		}
	}
}

// Land waits for what is kept, and calls settle, which examines it. The error wraps rdma.ErrTimeout
// if something is still in flight.
func (s *Unresolved) Land(ep rdma.Endpoint, within time.Duration, settle func()) error {
	s.Wait(ep, within)
	settle()
	if s.n > 0 {
		return fmt.Errorf("%d batches are in flight: %w", s.n, rdma.ErrTimeout)
	}
	return nil
}

// Len returns how many batches are kept.
func (s *Unresolved) Len() int { return s.n }

// Release gives up all that is kept. The verbs may still land. The callers use it where that does
// not matter: what they replace is not the client's any more, or the client ends.
func (s *Unresolved) Release() {
	for i := range s.n {
		s.Dropped += uint64(s.flights[i].left.Len())
		s.flights[i].b.Release()
		s.flights[i].b = nil
	}
	s.n = 0
}
