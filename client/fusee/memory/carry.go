package memory

import (
	"time"

	"github.com/farkv/farkv/client/fusee/layout"
	"github.com/farkv/farkv/client/fusee/session"
	"github.com/farkv/farkv/node/rdma"
)

// freed is an object of another client's block on its way back to that block.
type freed struct {
	unit uint64
	// incarnation is what its mark will be. 0: not known before the primary was read.
	incarnation uint32
	// tag is that of the use that was freed, or anyTag.
	class, tag int32
	// marked: the object is free already, and only its hint may be missing.
	marked bool
	// ops is how many verbs of the batch in flight are its own.
	ops uint8
}

// carrier takes a batch of frees through their steps, a trip each, in the background:
//
//  1. Learn the incarnation from the primary. An object that rests cannot be used again, so the
//     incarnation stays. It also shows whether another client, or this one before its view
//     changed, has freed the object: then there is nothing more to do.
//  2. Write the marks, replica by replica, the last in the list first.
//  3. With the primary's mark add the hint: behind it on that node, so that a client that sees
//     the hint finds the mark.
//
// The order of the replicas lets the owner rely on one of them. When the primary has the mark
// then all have, and no WRITE of it comes later: the block may be given another size class, and a
// late mark would land within a pair. When nodes die, the next in the list is the primary, and
// the same holds there.
//
// A crash in between leaves an object that is not free yet.
type carrier struct {
	// batch is the step in flight; nil when all is done.
	batch *rdma.Batch
	// step is learning, or the replica that is being marked.
	step int
	// knows is when it began to learn: see post.
	knows time.Duration
	frees []freed
	// last is the number of its last free, among all that were queued.
	last uint64
}

// learning is a carrier's first step. The steps after it are numbers of replicas, which are
// smaller.
const learning = layout.MaxReplicas

// send puts a free into the next carrier. A free of a lost region is dropped: its block is gone.
func (r *Reclaim) send(f freed) {
	if region, _ := r.s.Space.Split(f.unit); r.s.IsLost(r.s.Space.Place[region]) {
		return
	}
	if len(r.out) == 0 {
		r.since = r.s.Clock
	}
	r.out = append(r.out, f)
	r.queued++
	if len(r.out) >= freeBatch {
		r.flush()
	}
}

// flush sends carriers off with the frees that have come together. Frees for which the ring has
// no place stay in out.
func (r *Reclaim) flush() {
	for len(r.out) > 0 {
		if r.Flying == maxFlying {
			if r.makeWay(); r.Flying == maxFlying {
				return // a node is slow: later
			}
		}
		// The ring's place is free: its last carrier is over.
		k := &r.ring[(r.first+r.Flying)%maxFlying]
		n := min(len(r.out), freeBatch)
		k.frees = append(k.frees[:0], r.out[:n]...)
		r.out = r.out[:copy(r.out, r.out[n:])]
		k.last, k.step = r.queued-uint64(len(r.out)), learning
		r.Flying++
		r.post(k)
	}
}

// makeWay waits for the oldest carrier in flight, for as long as the current operation may still
// wait for frees. One deadline counts for all waits of an operation: when many frees have rested,
// each batch finds the ring full.
func (r *Reclaim) makeWay() {
	start := r.s.Now()
	r.land(max(min(r.s.OpTimeout/flushShare-r.s.Waited, r.s.Until()-start), 0))
	r.s.Waited += r.s.Now() - start
}

// land advances the carriers in flight, and waits for the oldest for so long at most; 0: it does
// not wait. What does not land in time stays in flight. Carriers end in their order, so landed
// counts a free only when all frees before it are over.
func (r *Reclaim) land(within time.Duration) {
	limit := session.Never
	if within > 0 {
		limit = r.s.Now() + within
	}
	for i := range r.Flying {
		k := &r.ring[(r.first+i)%maxFlying]
		wait := within > 0 && i == 0
		for k.batch != nil && (k.batch.Finished() ||
			wait && r.s.Wait(k.batch, rdma.All, max(limit-r.s.Now(), 0)) == nil) {
			r.advance(k)
		}
	}
	// Carriers leave the ring in their order.
	for r.Flying > 0 && r.ring[r.first].batch == nil {
		r.landed = r.ring[r.first].last
		r.first = (r.first + 1) % maxFlying
		r.Flying--
	}
	r.harvest()
}

// advance takes a carrier of which the batch is complete to its next step. Frees of which a verb
// failed are stuck, and the others go on.
func (r *Reclaim) advance(k *carrier) {
	kept, at := k.frees[:0], 0
	for _, f := range k.frees {
		var err error
		at, err = k.resultOf(f, at)
		switch {
		case err != nil:
			r.stick(f, err)
		case k.step != learning || r.learn(&f, layout.HeadOf(k.batch.Op(at-1).Buf)):
			kept = append(kept, f)
		}
	}
	k.frees = kept
	k.batch.Release()
	k.batch = nil
	// Marks begin with the last replica that any of the objects has.
	if k.step == learning {
		k.step = r.s.DataReplicas
	}
	k.step--
	r.post(k)
}

// resultOf returns how a free's verbs of the step ended, which begin at a number of the batch, and
// where the next free's begin. The batch is complete.
func (k *carrier) resultOf(f freed, at int) (next int, err error) {
	for next = at; next < at+int(f.ops); next++ {
		if op := k.batch.Op(next); op.Err != nil {
			err = op.Err
		}
	}
	return next, err
}

// learn reports whether a free has anything left to do, by the head of its object on the primary.
func (r *Reclaim) learn(f *freed, h layout.Head) bool {
	f.marked = h.Free()
	switch {
	case h.Incarnation == 0, f.tag != anyTag && int32(r.s.Tag(h.Incarnation)) != f.tag,
		f.incarnation != 0 && h.Incarnation != f.incarnation:
		return false // it was freed, and used again
	case f.marked && r.s.NodeCentric:
		// A node has no memory of what it handed out: a second hint would hand out the object
		// twice.
		return false
	}
	f.incarnation = h.Incarnation
	return true
}

// post sends the verbs of a carrier's step, or of the first one behind it that has any. The batch
// is the carrier's until it is complete.
//
// What was learned holds for a while only. Others may free the object, too (recovery does when
// its block's owner dies), and then its block may be given another size class, which takes longer
// than an operation may. So a client that was busy elsewhere learns anew.
func (r *Reclaim) post(k *carrier) {
	if now := r.s.Now(); k.step == learning {
		k.knows = now
	} else if k.step >= 0 && now-k.knows > r.s.Timeout/2 { // half is left for the WRITEs to land
		k.step, k.knows = learning, now
	}
	for ; k.step >= 0 && len(k.frees) > 0; k.step-- {
		b := r.s.Batch()
		for i := range k.frees {
			before := b.Len()
			r.addFree(b, &k.frees[i], k.step)
			k.frees[i].ops = uint8(b.Len() - before)
		}
		if b.Len() == 0 {
			b.Release()
			continue
		}
		// The view has changed, or this client is fenced off: nothing was posted.
		if err := r.s.Post(b.As(carryStep(k.step))); err != nil {
			b.Release()
			for _, f := range k.frees {
				r.stick(f, err)
			}
			k.frees = k.frees[:0]
			return
		}
		k.batch = b
		return
	}
}

// carryStep returns the name of a carrier's step in traces. All replicas are marked under the
// same name.
func carryStep(step int) rdma.Step {
	if step == learning {
		return session.StepReadHeads
	}
	return session.StepMarkFree
}

// addFree adds one free's verbs of a step. Those of the primary are a chain, so that the hint
// lands behind the mark.
func (r *Reclaim) addFree(b *rdma.Batch, f *freed, step int) {
	if step == learning {
		b.Read(r.s.Space.UnitAt(f.unit, 0), layout.HeadBytes)
		return
	}
	if step == 0 {
		b.Chain()
	}
	if !f.marked && step < r.s.Space.CopiesOf(f.unit) {
		b.WriteWord(r.s.Space.UnitAt(f.unit, step).Add(layout.MarkAt), uint64(f.incarnation))
	}
	if step == 0 {
		r.t.AddHint(b, f.unit, int(f.class))
	}
}

// stick keeps a free of which verbs failed for the next view. It is not known which of them
// landed.
func (r *Reclaim) stick(f freed, err error) {
	if len(r.stuck) == 0 {
		r.trouble = err
	}
	r.stuck = append(r.stuck, f)
}

// retry sends what was stuck again, from the first step on. Some of its marks may have landed:
// that does no harm.
func (r *Reclaim) retry() {
	again := r.stuck
	r.stuck = nil
	for _, f := range again {
		r.send(f)
	}
}
