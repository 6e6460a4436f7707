package cluster

import (
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// probe reads a word of each node in the view, spares too, and returns the dead ones. A READ
// without an answer at the end of the tick is examined again in the next one.
//
// Time between two probes counts only up to two ticks. A keeper that was stopped longer, because
// its machine was busy, say, saw nothing meanwhile: what it finds afterwards says nothing about
// that time, and must not get a node expelled.
func (k *keeper) probe(v rdma.View) (down []int, err error) {
	began := k.ep.Now()
	passed := min(began-k.probed, 2*k.o.Tick)
	k.probed = began
	for n, m := range v.Members {
		p := &k.probes[n]
		// These are reset when a READ is posted, or fails first.
		p.silent += passed
		p.failing += passed
		if !m.Gone && p.flying == nil {
			b := k.ep.Batch()
			b.Read(rdma.At(n, 0), 8)
			if err := k.ep.Post(b); err != nil {
				b.Release()
				return nil, fmt.Errorf("probe memory node %d: %w", n, err)
			}
			// A node has at most one READ in flight. It is posted again once the last one has
			// completed.
			p.flying, p.silent = b, 0
		}
	}
	for n := range v.Members {
		dead, err := k.answer(n, began+k.o.Tick)
		if err != nil {
			return nil, err
		}
		if dead && !v.Members[n].Gone {
			down = append(down, n)
		}
	}
	return down, nil
}

// answer waits for a node's answer until the end of the tick, and reports whether the node is dead:
// its READ has been unanswered for NodePatience, or its READs have failed for its grace.
func (k *keeper) answer(n int, end time.Duration) (dead bool, err error) {
	p := &k.probes[n]
	if p.flying == nil {
		return false, nil
	}
	err = k.ep.Wait(p.flying, rdma.All, max(end-k.ep.Now(), 1))
	if errors.Is(err, rdma.ErrTimeout) {
		return p.silent > k.o.NodePatience, nil
	}
	if err == nil {
		err = p.flying.Err()
	}
	p.flying.Release()
	p.flying = nil
	switch {
	case errors.Is(err, rdma.ErrNodeDown):
		if !p.failed {
			p.failed, p.failing = true, 0
		}
		return p.failing >= k.grace(n), nil
	case errors.Is(err, rdma.ErrStale): // posted in an earlier epoch: it says nothing about the node
		return false, nil
	case err != nil:
		return false, fmt.Errorf("probe memory node %d: %w", n, err)
	}
	p.failed = false
	return false, nil
}

// grace returns for how long a node's verbs must have failed before the node counts as dead: a
// fabric may know that a connection can be restored.
func (k *keeper) grace(n int) time.Duration {
	if f, ok := k.f.(rdma.NodeGracer); ok {
		return f.NodeGrace(n)
	}
	return 0
}

// mayExpel returns which of the nodes that are down may be expelled. It returns an error, and
// resigns, if this process is the one that is cut off. Then it is useless as a master and must let
// another process try: a view that it made busy would stay busy.
//
// A node with a failed probe is asked once more: too few nodes may have answered when it was
// probed, and enough by now, such as after a power failure of all of them.
func (k *keeper) mayExpel(down []int) (still []int, err error) {
	f, ok := k.f.(rdma.ExpelChecker)
	if !ok {
		return down, nil
	}
	if err := f.MayExpel(); err != nil {
		k.resign()
		return nil, fmt.Errorf("expel nodes: %w: %w", errAlone, err)
	}
	for _, n := range down {
		if p := &k.probes[n]; p.failed && p.flying == nil {
			_, err := rdma.ReadBytes(k.ep, "", rdma.At(n, 0), 8, k.o.Tick)
			if err == nil {
				p.failed = false
				continue
			}
			if !errors.Is(err, rdma.ErrNodeDown) && !errors.Is(err, rdma.ErrTimeout) {
				return nil, fmt.Errorf("probe memory node %d again: %w", n, err)
			}
		}
		still = append(still, n)
	}
	return still, nil
}

// errAlone is wrapped when this process, and not a node, is cut off. The keeper has resigned then.
var errAlone = errors.New("this process is cut off from too many nodes")

// vacancy is a node that is gone with its data, and the spare that is to replace it.
type vacancy struct{ node, spare int }

// vacancy returns a vacancy that can be filled; nil: there is none. A stand-in may be gone, too;
// then the stand-in's place is vacant. A node that failed to be restored is left out while it
// rests.
func (k *keeper) vacancy(v rdma.View) *vacancy {
	spares := k.m.Spares()
	isSpare, filled := make([]bool, len(v.Members)), make([]bool, len(v.Members))
	for _, s := range spares {
		isSpare[s] = true
	}
	for _, m := range v.Members {
		if m.Replaces > 0 {
			filled[m.Replaces-1] = true
		}
	}
	for n, m := range v.Members {
		// A spare that holds nothing leaves no vacancy.
		held := !isSpare[n] || m.Replaces > 0
		if !m.Gone || !held || filled[n] || k.resting(target{node: n + 1}) {
			continue
		}
		for _, s := range spares {
			if v.Members[s] == (rdma.Member{}) {
				return &vacancy{n, s}
			}
		}
	}
	return nil
}

// barrier takes the view to its next epoch: verbs of earlier epochs are fenced off, and what they
// left is mended before clients write again. Under the same busy view the nodes that are down are
// expelled, or a vacancy is filled.
//
// Each step relies on the one before. A crash behind Advance leaves a busy view, and the next
// master begins with a barrier of its own. See tick.
func (k *keeper) barrier(v rdma.View, down []int, fill *vacancy) error {
	// If the lease is lost in the middle, another master's barrier changes the epoch, and the swaps
	// below fail.
	if err := k.prolong(); err != nil {
		return err
	}
	if len(down) > 0 {
		var err error
		if down, err = k.mayExpel(down); err != nil {
			return err
		}
	}
	// From here on clients do not write. Only one master wins this swap.
	to := rdma.State{Epoch: v.Epoch + 1, Busy: true}
	if err := won(k.f.Advance(rdma.State{Epoch: v.Epoch, Busy: v.Busy}, to)); err != nil {
		return fmt.Errorf("begin epoch %d: %w", to.Epoch, err)
	}
	// No client may read from a node that the view calls gone, and no verb may land there once
	// clients read other replicas instead. So first the nodes are expelled, then all clients are
	// fenced off, and then the view says so.
	for _, n := range down {
		if err := k.f.Expel(to.Epoch, n); err != nil {
			return fmt.Errorf("expel node %d: %w", n, err)
		}
	}
	// Behind the fence no verb of an earlier epoch lands.
	if err := k.f.Fence(to.Epoch); err != nil {
		return err
	}
	k.fenced, k.fencedAt = to.Epoch, k.ep.Now()
	for _, n := range down {
		if err := k.gone(to.Epoch, n, v.Members[n]); err != nil {
			return err
		}
	}
	// The keeper's own verbs go on in the new epoch.
	v, err := k.ep.Join()
	if err != nil {
		return err
	}
	if v.Epoch != to.Epoch || !v.Busy {
		return errOver // another master has gone on
	}
	// If mending fails the view stays busy: the next tick begins with another barrier.
	if err := k.mend(v, fill); err != nil {
		return err
	}
	// From here on clients write again. A master that lost its role meanwhile does not get here:
	// its successor's barrier has changed the epoch.
	if err := won(k.f.Advance(to, rdma.State{Epoch: to.Epoch})); err != nil {
		return fmt.Errorf("end epoch %d: %w", to.Epoch, err)
	}
	k.idle = k.ep.Now()
	return nil
}

// won turns a lost swap into errOver: another master has changed the view.
func won(ok bool, err error) error {
	if err == nil && !ok {
		return errOver
	}
	return err
}

// gone marks a node as gone in the view of an epoch. It relies on the node's expulsion and on the
// fence of the epoch: no client reads from the node any more, and no verb lands there.
func (k *keeper) gone(epoch uint64, n int, was rdma.Member) error {
	gone := was
	gone.Gone = true
	if err := won(k.f.SetMember(epoch, n, was, gone)); err != nil {
		return fmt.Errorf("expel node %d in epoch %d: %w", n, epoch, err)
	}
	k.log(Event{What: Expelled, Epoch: epoch, Node: n})
	return nil
}

// mend makes the replicas equal, since the fence left writes half done, and then fills the vacancy.
// A spare that cannot be written does not keep the view busy: the vacancy rests, and the epoch
// ends.
func (k *keeper) mend(v rdma.View, fill *vacancy) error {
	began := k.ep.Now()
	if err := k.m.Mend(v); err != nil {
		k.dirty = true
		return fmt.Errorf("mend epoch %d: %w", v.Epoch, err)
	}
	k.mended = k.ep.Now() - began
	e := Event{What: Mended, Epoch: v.Epoch, Took: k.mended}
	if g, ok := k.m.(Grower); ok {
		e.Report = g.Growth()
	}
	k.log(e)
	k.needsSweep = true
	if _, ok := k.m.(QuorumRecoverer); ok {
		return k.sweepBusy(v)
	}
	if fill == nil {
		return nil
	}
	began = k.ep.Now()
	node, spare := fill.node, fill.spare
	if err := k.m.Restore(v, node, spare); err != nil {
		k.dirty = true
		return k.failed(target{node: node + 1}, fmt.Errorf("restore node %d on node %d: %w", node, spare, err))
	}
	// Only a complete copy is announced. A crash before this leaves a spare that is in no member's
	// place; it is written from the beginning again.
	stands := rdma.Member{Replaces: uint16(node + 1), Since: v.Epoch}
	if err := won(k.f.SetMember(v.Epoch, spare, v.Members[spare], stands)); err != nil {
		return fmt.Errorf("make node %d stand for node %d: %w", spare, node, err)
	}
	k.forget(target{node: node + 1})
	k.log(Event{What: Restored, Epoch: v.Epoch, Node: node, Spare: spare, Took: k.ep.Now() - began})
	return nil
}
