package sherman

import (
	"errors"
	"fmt"

	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
)

// NewRecoverer returns what a pool's master uses, which works through ep. It ends
// the transaction of a dead client, and gives back what the client had, so that
// its identity can be used again. Nothing takes a dead node's place. ep stays the
// caller's.
func NewRecoverer(ep rdma.Endpoint) (cluster.Recoverer, error) {
	// The pool's header says which library its objects are of.
	l, v, err := readLayout(ep)
	var m cluster.Recoverer
	if err == nil {
		m, err = l.library.recoverer(ep, v, l.Timeout)
	}
	if err != nil {
		return nil, fmt.Errorf("open a tree: %w", err)
	}
	return m, nil
}

// recoverer implements the parts of cluster.Recoverer that a pool without replicas has
// nothing to do for.
type recoverer struct{}

// Spares returns none.
func (recoverer) Spares() []int { return nil }

// Mend has nothing to do.
func (recoverer) Mend(rdma.View) error { return nil }

// errNoStandIn is the error of Restore.
var errNoStandIn = errors.New("no node takes a dead one's place: what it had is lost")

// Restore restores nothing: a node without replicas is lost.
func (recoverer) Restore(rdma.View, int, int) error { return errNoStandIn }

// Sweep has nothing to do.
func (recoverer) Sweep(rdma.View) error { return nil }
