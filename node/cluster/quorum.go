package cluster

import (
	"errors"
	"fmt"
	"slices"

	"github.com/farkv/farkv/node/rdma"
)

// recoverQuorum is the rest of a tick for the pool of a QuorumRecoverer, which stays available with
// dead nodes. In order: the present epoch is fenced, if the pool needs another one; a sweep's
// epoch begins, also if the last master left a busy view, or its verbs must be fenced off
// (FenceEpoch); an epoch without a sweep begins; dead clients are recovered; clients are asked for
// their needs. A crash leaves the same as in tick.
func (k *keeper) recoverQuorum(e QuorumRecoverer, v rdma.View) (more bool, err error) {
	if k.fenced != v.Epoch && (v.Busy || k.need != NeedNothing) {
		return false, k.fenceAgain(v)
	}
	if v.Busy {
		k.need = NeedSweep
	}
	if v.Busy && k.ep.Now()-k.fencedAt < k.o.Lease {
		// An epoch was cut short by a crash. Clients go on in it, and the next one must not begin
		// sooner for them than after any other epoch.
		return false, nil
	}
	if v.Epoch < k.role.FenceEpoch || k.need == NeedSweep {
		err := k.renew(v)
		return k.need == NeedNothing, err
	}
	if k.need == NeedFence {
		return false, k.pass(v)
	}
	if more, err = k.recover(v); more || err != nil {
		return more, err
	}
	k.need, err = e.Need(v)
	if err != nil {
		return false, fmt.Errorf("ask whether to sweep: %w", err)
	}
	return false, nil
}

// fenceAgain fences off verbs of epochs before the view's: the master that began the epoch may
// have died before it did so. Invariant: before an epoch begins, all earlier ones are fenced on
// all nodes that are not expelled. Otherwise a client in the middle of an operation, which has
// not learned of this epoch, would meet the next one as its second (kit, R3).
func (k *keeper) fenceAgain(v rdma.View) error {
	err := k.f.Fence(v.Epoch)
	if v.Busy || errors.Is(err, rdma.ErrNodeDown) { // a node that is down is expelled with the next epoch
		k.need = NeedSweep
	} else if err != nil {
		return fmt.Errorf("fence epoch %d again: %w", v.Epoch, err)
	}
	k.fenced, k.fencedAt = v.Epoch, k.ep.Now()
	return nil
}

// pass takes the pool to a new epoch in which nothing is swept. The view is idle all the time.
//
// What a crash leaves: an idle view that may not be fenced. The next master fences it before it
// begins another epoch.
func (k *keeper) pass(v rdma.View) error {
	if err := k.prolong(); err != nil {
		return err
	}
	k.need = NeedNothing
	// The present epoch is fenced: see recoverQuorum.
	to := rdma.State{Epoch: v.Epoch + 1}
	if err := won(k.f.Advance(rdma.State{Epoch: v.Epoch}, to)); err != nil {
		return fmt.Errorf("begin epoch %d: %w", to.Epoch, err)
	}
	k.log(Event{What: Fenced, Epoch: to.Epoch})
	v.Epoch = to.Epoch
	return k.fenceAgain(v)
}

// renew takes the pool to a new epoch, in which it is swept. It does nothing while it is not
// known whether a node is dead: such a node would neither be expelled nor fence clients off. A
// keeper that finds a new epoch due waits for a tick first. A tick is longer than an operation
// takes, so clients rarely meet two epochs in one operation.
func (k *keeper) renew(v rdma.View) error {
	// If renew returns early, the next tick tries again.
	k.need = NeedSweep
	down, err := k.probe(v)
	if err != nil || k.doubtful(v, down) {
		return err
	}
	if err := k.barrier(v, down, nil); err != nil {
		return err
	}
	k.need = NeedNothing
	return nil
}

// doubtful reports whether a node fails or delays probes and does not count as dead yet. It relies
// on probes that were made just before. An epoch that begins then would have to fence on a node
// that may not answer.
func (k *keeper) doubtful(v rdma.View, down []int) bool {
	for n, m := range v.Members {
		p := &k.probes[n]
		if !m.Gone && (p.flying != nil || p.failed) && !slices.Contains(down, n) {
			return true
		}
	}
	return false
}

// sweepBusy sweeps under a busy view, behind its fence, so no older verb can land. If it fails the
// view stays busy, and the next barrier sweeps again.
func (k *keeper) sweepBusy(v rdma.View) error {
	began := k.ep.Now()
	if err := k.m.Sweep(v); err != nil {
		k.dirty = true
		return fmt.Errorf("sweep epoch %d: %w", v.Epoch, err)
	}
	k.needsSweep = false
	k.log(Event{What: Swept, Epoch: v.Epoch, Took: k.ep.Now() - began})
	return nil
}
