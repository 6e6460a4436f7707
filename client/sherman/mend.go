package sherman

import (
	"errors"
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
)

// NewMender returns what a pool's master uses, which works through ep: it brings the transaction of
// a dead client to its end and gives back what the client had, so that its identity can be used
// again. Nothing takes a dead node's place.
func NewMender(ep rdma.Endpoint) (cluster.Mender, error) {
	l, v, err := readLayout(ep)
	var m cluster.Mender
	if err == nil {
		m, err = l.library.mender(ep, v, l.Timeout)
	}
	if err != nil {
		return nil, fmt.Errorf("open a tree: %w", err)
	}
	return m, nil
}

// mender is what one has nothing to do for in a pool without replicas.
type mender struct{}

// Spares lists none.
func (mender) Spares() []int { return nil }

// Mend has nothing to do.
func (mender) Mend(rdma.View) error { return nil }

var errNoStandIn = errors.New("no node takes a dead one's place: what it had is lost")

// Restore restores nothing.
func (mender) Restore(rdma.View, int, int) error { return errNoStandIn }

// Sweep has nothing to do.
func (mender) Sweep(rdma.View) error { return nil }

// Outlives returns how many memory nodes may die so that all is still to be had: none, as objects
// have one copy. -1: one of the nodes is dead or gone.
func Outlives(f rdma.Fabric, dead func(node int) bool) (int, error) {
	ep, _, v, err := client.Look(f, "count the copies", readLayout)
	if err != nil {
		return 0, err
	}
	defer ep.Close()
	for n, member := range v.Members {
		if dead(n) || member.Gone {
			return -1, nil
		}
	}
	return 0, nil
}
