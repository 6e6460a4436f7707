package cluster

import (
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// probe reads a word of every node that the view has, spares too, and returns those that are dead.
// A READ that has no answer by the end of the tick is looked at again in the next one.
//
// Of the time between two probes no more counts than a keeper takes that runs. One that stood
// still, since its machine was busy or it was stopped, saw nothing meanwhile: what it finds then
// says nothing of that time.
func (k *keeper) probe(v rdma.View) (down []int, err error) {
	began := k.ep.Now()
	passed := min(began-k.probed, 2*k.o.Tick)
	k.probed = began
	for n, m := range v.Members {
		p := &k.probes[n]
		p.silent += passed
		p.failing += passed
		if !m.Gone && p.flying == nil {
			b := k.ep.Batch()
			b.Read(rdma.At(n, 0), 8)
			if err := k.ep.Post(b); err != nil {
				b.Release()
				return nil, fmt.Errorf("probe memory node %d: %w", n, err)
			}
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

// answer waits for a node's answer until the end of the tick. It returns whether the node is dead.
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
	case errors.Is(err, rdma.ErrStale): // it was posted in an earlier epoch, and says nothing of the node
		return false, nil
	case err != nil:
		return false, fmt.Errorf("probe memory node %d: %w", n, err)
	}
	p.failed = false
	return false, nil
}

// grace returns for how long a node must have failed verbs before it is dead.
func (k *keeper) grace(n int) time.Duration {
	if f, ok := k.f.(rdma.NodeGracer); ok {
		return f.NodeGrace(n)
	}
	return 0
}

// mayExpel returns which of the nodes that are down are to be expelled. It returns an error when
// none can be, since it is this process that the others do not hear. Then it is no good as a
// master, and lets another process try: a view that it made busy would stay so.
//
// Too few may have answered when these were probed, and enough by now: all nodes lost power, say,
// and come back. So one whose probe failed is asked again.
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

var errAlone = errors.New("this process is cut off from too many nodes")

// vacancy is a node that is gone with what it held, and the spare that is to take its place.
type vacancy struct{ node, spare int }

// vacancy returns one that can be filled; nil: there is none. A stand-in may go, too: then it is
// the stand-in's place that is vacant.
func (k *keeper) vacancy(v rdma.View) *vacancy {
	spares := k.m.Spares()
	isSpare, filled := make([]bool, len(v.Members)), make([]bool, len(v.Members))
	for _, s := range spares {
		isSpare[s] = true
	}
	for _, m := range v.Members {
		if m.StandsFor > 0 {
			filled[m.StandsFor-1] = true
		}
	}
	for n, m := range v.Members {
		held := !isSpare[n] || m.StandsFor > 0
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

// barrier takes the view to its next epoch: verbs of earlier ones are fenced off, and what they
// left is mended before clients write again. Meanwhile the nodes that are down are expelled, or a
// vacancy is filled.
func (k *keeper) barrier(v rdma.View, down []int, fill *vacancy) error {
	if err := k.prolong(); err != nil {
		return err
	}
	if len(down) > 0 {
		var err error
		if down, err = k.mayExpel(down); err != nil {
			return err
		}
	}
	to := rdma.State{Epoch: v.Epoch + 1, Busy: true}
	if err := won(k.f.Advance(rdma.State{Epoch: v.Epoch, Busy: v.Busy}, to)); err != nil {
		return fmt.Errorf("begin epoch %d: %w", to.Epoch, err)
	}
	// No client reads a node any more that the view calls gone, and nothing lands any more when one
	// reads what is left instead: so first they are expelled, then all are fenced off, and then the
	// view says so.
	for _, n := range down {
		if err := k.f.Expel(to.Epoch, n); err != nil {
			return fmt.Errorf("expel node %d: %w", n, err)
		}
	}
	if err := k.f.Fence(to.Epoch); err != nil {
		return err
	}
	k.fenced, k.fencedAt = to.Epoch, k.ep.Now()
	for _, n := range down {
		if err := k.gone(to.Epoch, n, v.Members[n]); err != nil {
			return err
		}
	}
	v, err := k.ep.Join()
	if err != nil {
		return err
	}
	if v.Epoch != to.Epoch || !v.Busy {
		return errOver
	}
	if err := k.mend(v, fill); err != nil {
		return err
	}
	// Behind this all clients write again. A master that lost its role meanwhile does not get here:
	// its successor's barrier made the epoch another.
	if err := won(k.f.Advance(to, rdma.State{Epoch: to.Epoch})); err != nil {
		return fmt.Errorf("end epoch %d: %w", to.Epoch, err)
	}
	k.idle = k.ep.Now()
	return nil
}

func won(ok bool, err error) error {
	if err == nil && !ok {
		return errOver
	}
	return err
}

func (k *keeper) gone(epoch uint64, n int, was rdma.Member) error {
	gone := was
	gone.Gone = true
	if err := won(k.f.SetMember(epoch, n, was, gone)); err != nil {
		return fmt.Errorf("expel node %d in epoch %d: %w", n, epoch, err)
	}
	k.log(Event{What: Expelled, Epoch: epoch, Node: n})
	return nil
}

// mend makes the replicas equal, since the fence has left writes half done, and then fills the
// vacancy. A spare that cannot be written is no reason to keep the pool busy.
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
	k.littered = true
	if _, ok := k.m.(Enduring); ok {
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
	stands := rdma.Member{StandsFor: uint16(node + 1), Since: v.Epoch}
	if err := won(k.f.SetMember(v.Epoch, spare, v.Members[spare], stands)); err != nil {
		return fmt.Errorf("make node %d stand for node %d: %w", spare, node, err)
	}
	k.forget(target{node: node + 1})
	k.log(Event{What: Restored, Epoch: v.Epoch, Node: node, Spare: spare, Took: k.ep.Now() - began})
	return nil
}
