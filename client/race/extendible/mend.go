package extendible

import (
	"fmt"

	"github.com/farkv/farkv/client/chunks"
	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
)

// Recoverer is what a pool's master uses: it recovers dead clients. With RTX no
// client waits for it; with the others those do that meet a lock of a dead
// client. Nothing takes a dead node's place. It implements cluster.Recoverer.
type Recoverer struct{ s *Store }

var _ cluster.Recoverer = (*Recoverer)(nil)

// NewRecoverer returns a Recoverer that works through ep, which stays the caller's.
func NewRecoverer(ep rdma.Endpoint) (*Recoverer, error) {
	s, err := Open(ep, Options{})
	if err != nil {
		return nil, err
	}
	return &Recoverer{s}, nil
}

// Spares returns none: no node has a replica that a spare could hold.
func (m *Recoverer) Spares() []int { return nil }

// Mend has nothing to do: there are no replicas.
func (m *Recoverer) Mend(rdma.View) error { return nil }

// Restore fails: what a node had is lost with it.
func (m *Recoverer) Restore(_ rdma.View, node, spare int) error {
	return fmt.Errorf("restore node %d to node %d: there are no replicas: %w", node, spare, rdma.ErrNotSupported)
}

// Sweep has nothing to do.
func (m *Recoverer) Sweep(rdma.View) error { return nil }

// Recover finishes or undoes a client's rehash, takes its proposals and the void
// word of its last DELETE out of the index, and gives its chunks back. It may be
// interrupted at any verb, and done again.
func (m *Recoverer) Recover(_ rdma.View, c rdma.ClientID) error {
	s := m.s
	if c == 0 || int(c) > s.Clients {
		return nil
	}
	if err := s.recover(c); err != nil {
		return fmt.Errorf("recover client %d: %w", c, err)
	}
	return nil
}

// recover is Recover. The rehash comes first: the other steps search the index,
// and would wait for its lock. Chunks come last, since words that name their
// blocks must be gone.
func (s *Store) recover(c rdma.ClientID) error {
	s.trips.Begin()
	// This finishes or undoes a rehash. Its memory is either named by an entry
	// then, and stays a subtable's for ever, or may be claimed again.
	if err := s.directory.shared.recover(c); err != nil {
		return err
	}
	s.trips.Begin()
	// No client may write the delete record again while a slot has its word.
	if _, err := s.clearRecord(c); err != nil {
		return err
	}
	return s.memory.leave(c)
}

// leave gives back all chunks of a client, of which nothing is in flight. What
// the client has proposed is taken away first.
func (m *memory) leave(c rdma.ClientID) error {
	for n := range m.nodes {
		for _, a := range []*chunks.Arena{&m.subtables, &m.pairs} {
			left, err := m.table.Of(a, n, c)
			if err != nil {
				return err
			}
			if err := m.leaveChunks(a, left, c); err != nil {
				return err
			}
		}
	}
	return nil
}

// leaveChunks gives back some chunks of a client. Each batch of them has as much
// time as an operation.
func (m *memory) leaveChunks(a *chunks.Arena, left []chunks.Chunk, c rdma.ClientID) error {
	for len(left) > 0 {
		some := left[:min(claimAtOnce, len(left))]
		left = left[len(some):]
		m.trips.Begin()
		// The worker's own proposals are gone already.
		if a == &m.pairs && c != m.id {
			for _, o := range some {
				if _, err := m.unnamed([]*chunk{{Chunk: o}}, true); err != nil {
					return err
				}
			}
		}
		if err := m.table.Free(a, some); err != nil {
			return err
		}
	}
	return nil
}
