package dtx

import (
	"fmt"

	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
)

// Recoverer is what a pool's master uses. It recovers dead clients, for which other
// clients wait. Nothing takes a dead node's place: what it had is lost. Recoverer
// implements cluster.Recoverer.
type Recoverer struct{ w *Worker }

var _ cluster.Recoverer = (*Recoverer)(nil)

// NewRecoverer returns a Recoverer that works through ep, which stays the caller's. An
// index reads the layout from its pool's header.
func NewRecoverer(ep rdma.Endpoint, l *Layout, o Options) (*Recoverer, error) {
	w, err := Open(ep, l, o)
	if err != nil {
		return nil, err
	}
	return &Recoverer{w}, nil
}

// Stats returns the counters.
func (m *Recoverer) Stats() Stats { return m.w.Stats() }

// Spares returns none: no node has a replica that a spare could hold.
func (m *Recoverer) Spares() []int { return nil }

// Mend has no replicas to make equal. It only follows the view.
func (m *Recoverer) Mend(v rdma.View) error {
	m.w.view.Enter(v)
	return nil
}

// Restore is never asked for, as there are no spares.
func (m *Recoverer) Restore(_ rdma.View, node, spare int) error {
	return fmt.Errorf("restore node %d to %d, of objects without replicas: %w", node, spare, rdma.ErrNotSupported)
}

// Sweep has nothing to do.
func (m *Recoverer) Sweep(rdma.View) error { return nil }

// Recover recovers a client that is fenced off: see Worker.Recover. If a master
// died in the midst of that before, the error wraps rdma.ErrTimeout until that
// master was recovered. The keeper tries it again then.
func (m *Recoverer) Recover(v rdma.View, c rdma.ClientID) error {
	if int(c) > m.w.Clients {
		return nil
	}
	m.w.view.Enter(v)
	m.w.trips.Begin()
	return m.w.recover(c, nil)
}
