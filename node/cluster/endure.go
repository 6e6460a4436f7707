package cluster

import (
	"errors"
	"fmt"
	"slices"

	"github.com/farkv/farkv/node/rdma"
)

// endure is the rest of a tick in a pool that lives with dead nodes: see Enduring. What a crash
// leaves is what it leaves in tick.
func (k *keeper) endure(e Enduring, v rdma.View) (more bool, err error) {
	if v.Busy && k.fenced != v.Epoch {
		return false, k.fenceAgain(v)
	}
	if k.due = k.due || v.Busy; v.Busy && k.ep.Now()-k.fencedAt < k.o.Lease {
		return false, nil // an epoch was cut short: clients go on in it, and meet the next one as late as after any other
	}
	if v.Busy || v.Epoch < k.role.Beyond || k.due {
		err := k.renew(v)
		return !k.due, err
	}
	if more, err = k.recover(v); more || err != nil {
		return more, err
	}
	k.due, err = e.Littered(v)
	if err != nil {
		return false, fmt.Errorf("ask whether to sweep: %w", err)
	}
	return false, nil
}

// fenceAgain ends verbs of epochs before that of a busy view whose master is gone: that master may
// not have done so. A client that has not heard of this epoch and is in the midst of an operation
// would meet the next epoch as its second.
func (k *keeper) fenceAgain(v rdma.View) error {
	k.due, k.fenced, k.fencedAt = true, v.Epoch, k.ep.Now()
	// A node that is down is expelled with the next epoch.
	if err := k.f.Fence(v.Epoch); err != nil && !errors.Is(err, rdma.ErrNodeDown) {
		return fmt.Errorf("fence epoch %d again: %w", v.Epoch, err)
	}
	return nil
}

// renew takes the pool to a new epoch, in which it is swept. It does nothing while it is in doubt
// whether a node is dead: such a node would neither be expelled nor fence clients off. A keeper
// that finds a new epoch due waits for a tick first. A tick is longer than operations take, so that
// clients hardly ever meet two epochs in one operation.
func (k *keeper) renew(v rdma.View) error {
	k.due = true
	down, err := k.probe(v)
	if err != nil || k.doubtful(v, down) {
		return err
	}
	if err := k.barrier(v, down, nil); err != nil {
		return err
	}
	k.due = false
	return nil
}

// doubtful reports whether a node lets probes fail, or wait, and is not among those that are down.
func (k *keeper) doubtful(v rdma.View, down []int) bool {
	for n, m := range v.Members {
		p := &k.probes[n]
		if !m.Gone && (p.flying != nil || p.failed) && !slices.Contains(down, n) {
			return true
		}
	}
	return false
}

// sweepBusy sweeps under a busy view.
func (k *keeper) sweepBusy(v rdma.View) error {
	began := k.ep.Now()
	if err := k.m.Sweep(v); err != nil {
		k.dirty = true
		return fmt.Errorf("sweep epoch %d: %w", v.Epoch, err)
	}
	k.littered = false
	k.log(Event{What: Swept, Epoch: v.Epoch, Took: k.ep.Now() - began})
	return nil
}
