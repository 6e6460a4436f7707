package memory

import (
	"slices"
	"time"

	"github.com/farkv/farkv/client/fusee/layout"
	"github.com/farkv/farkv/client/fusee/session"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/client/race"
)

// Marks are truth, bits of free bitmaps are hints. An object is free when its mark, the first
// word, equals its incarnation, or when it was never used. A mark may be written any number of
// times: it says the same, and once the object is used again it says nothing. So a free that may
// have failed, or of which the client may have died, is repeated. The paper's bits alone (FUSEE
// 4.4) do not allow that: a second FAA on one carries into its neighbor and frees live data.
//
// Freed objects come back in three steps. None is on an operation's critical path while its class
// has free objects: else the operation waits (awaitRest, await).
//
//  1. The winner of a slot frees what the slot held before. The object rests first
//     (Layout.Quarantine): readers may still be on their way to it, and a tag must not come
//     around while any client remembers the word.
//  2. Then its owner takes it back. For a block of another client that is a WRITE of its mark on
//     every replica and an FAA of its bit in the bitmap on the primary: see carrier.
//  3. The owner reads the bitmaps of its blocks from time to time, subtracts the bits that it
//     saw, and takes those objects of which it finds the marks: see scan.
//
// An object of this client's own block needs neither mark nor bit while the client lives. When
// the client dies, recovery marks what no slot points at. What the client had replaced and not
// yet freed, recovery learns from the logs of the objects that replaced it. So those objects are
// not used again before it is free: see ripen.

// Reclaim has the objects that are on their way back: to this client's free lists, or to the
// blocks of others.
type Reclaim struct {
	s *session.Session
	t *Tables
	h *Holdings
	// Rest is for how long a freed object rests: Layout.Quarantine.
	Rest time.Duration
	// Objects in quarantine, in the order in which they become ready.
	resting Queue[resting]
	// Own objects that have rested, and wait for the frees that were queued before them.
	ripe Queue[ripe]
	// Rested objects of other clients' blocks, for the next carrier; and when the first had
	// rested.
	out   []freed
	since time.Duration
	// Frees of which verbs failed. They are tried again once a view. trouble is why the first
	// failed.
	stuck   []freed
	trouble error
	// queued counts the frees that were ever put into out. The first landed of them are over:
	// they have landed, or are stuck.
	queued uint64
	landed uint64
	// Carriers: flying of them are in flight, from first on.
	ring   [maxFlying]carrier
	first  int
	Flying int
}

// resting is an object in quarantine.
type resting struct {
	freed
	// ready is when the object has rested.
	ready time.Duration
}

// anyTag is no tag: the object is freed in whatever use it is.
const anyTag = -1

// ripe is an own object that has rested, and becomes free when the first after frees are over.
type ripe struct {
	Place
	after uint64
}

const (
	TendEvery  = 64 // searches between two looks at what is left over from writes
	freeBatch  = 16 // frees a batch: as many as a doorbell carries well
	flushAfter = 4  // quarantines that a rested object waits for a batch to fill
	maxFlying  = 4  // batches of frees in flight; the fifth waits for the first
	// All batches of frees together delay an operation by this part of its time at most.
	flushShare = 4
	shedEvery  = 256 // writes after which a client checks whether it holds too much
	lowWater   = 64  // free objects of a class below which a background scan begins
	// Objects taken between two background scans, at least: a scan costs a verb for every four.
	minGap = 64
	// An operation waits for what others free for this part of its time: 50 ms, a hundred
	// quarantines.
	othersShare = 40
	// Objects taken between two scans, at most: many when scans find little, since then most
	// frees are this client's own.
	maxGap = 4096
)

// Free gives up the pair that a won write replaced, once the primary shows the new word. The
// caller knows the pair's incarnation: if only the tag were compared, a later use of the object
// could be taken for it.
func (r *Reclaim) Free(w race.Word, incarnation uint32) {
	if w.Live() {
		r.layTag(w.Unit(), int(r.s.Classes.Of[w.Units()]), int32(w.Tag()), incarnation)
	}
}

// Lay puts an object to rest that no slot points at, or none any more.
func (r *Reclaim) Lay(o layout.Object) {
	r.layTag(o.Unit, o.Class, int32(r.s.Tag(o.Incarnation)), o.Incarnation)
}

// LayAny puts an object to rest in whatever use it is.
func (r *Reclaim) LayAny(o layout.Object) { r.layTag(o.Unit, o.Class, anyTag, 0) }

// layTag puts an object to rest. All rest equally long, so the list stays in order.
func (r *Reclaim) layTag(unit uint64, class int, tag int32, incarnation uint32) {
	f := freed{unit: unit, class: int32(class), tag: tag, incarnation: incarnation}
	r.resting.Push(resting{f, r.s.Now() + r.Rest})
}

// Owns reports whether an object lies in a block of this client.
func (r *Reclaim) Owns(o layout.Object) bool {
	_, own := r.h.PlaceOf(o.Unit, o.Class)
	return own
}

// Over reports whether the use of an object has ended: it rests or is free, or has been taken
// again.
func (r *Reclaim) Over(o layout.Object) bool {
	p, own := r.h.PlaceOf(o.Unit, o.Class)
	return own && (p.Block.Idle(p.Index) || p.Block.Incarnations[p.Index] != o.Incarnation) || r.rests(o)
}

// MarkFree makes an object of this client's free by its marks, on all replicas.
func (r *Reclaim) MarkFree(o layout.Object) error {
	p, _ := r.h.PlaceOf(o.Unit, o.Class)
	return r.t.writeHeads([]Place{p}, true)
}

// rests reports whether an object is in quarantine behind this use. What rests may also be an
// earlier use, which was freed a second time.
func (r *Reclaim) rests(o layout.Object) bool {
	return slices.ContainsFunc(r.resting.Items(), func(x resting) bool {
		return x.unit == o.Unit && r.isOf(x, o.Incarnation)
	})
}

// isOf reports whether what rests is an object in the given use.
func (r *Reclaim) isOf(x resting, incarnation uint32) bool {
	return x.tag == anyTag || x.tag == int32(r.s.Tag(incarnation))
}

// sleep waits until the first n of the objects in quarantine have rested, and ends it for all that
// have.
func (r *Reclaim) sleep(n int) {
	if n > 0 {
		if d := r.resting.Items()[n-1].ready - r.s.Now(); d > 0 {
			r.s.Sleep(d)
		}
	}
	r.s.Clock = r.s.Now()
	r.mature()
}

// mature ends the quarantine of objects: own ones become ripe, others go into carriers.
func (r *Reclaim) mature() {
	for r.resting.Len() > 0 && r.resting.Items()[0].ready <= r.s.Clock {
		x := r.resting.Pop()
		if p, own := r.h.PlaceOf(x.unit, int(x.class)); own && !p.Block.parting {
			// Where the tag differs another client has freed the object, too: it is free already,
			// or in use again.
			if r.isOf(x, p.Block.Incarnations[p.Index]) {
				r.ripen(p)
			}
			continue
		}
		r.send(x.freed)
	}
	if r.s.Clock-r.since > flushAfter*r.Rest {
		r.flush()
	}
}

// ripen makes a rested object of this client's own free when all frees queued before are over.
// One of them may be of the pair that this object replaced. Only this object's log tells recovery
// so when this client dies, and using the object again would overwrite the log.
func (r *Reclaim) ripen(p Place) {
	if p.Block.Idle(p.Index) {
		return
	}
	p.Block.setIdle(p.Index)
	if r.landed == r.queued {
		r.h.Slabs[p.Block.Class].Free.Push(p)
		return
	}
	r.ripe.Push(ripe{p, r.queued})
}

// harvest moves ripe objects into the free lists. An object of a block that was left meanwhile,
// or is about to be, is freed as one of another client.
func (r *Reclaim) harvest() {
	for r.ripe.Len() > 0 && r.ripe.Items()[0].after <= r.landed {
		p := r.ripe.Pop().Place
		if r.h.Own(p.Block.Block) == p.Block && !p.Block.parting {
			r.h.Slabs[p.Block.Class].Free.Push(p)
		} else {
			// If the client keeps the block, a scan finds the object.
			p.Block.setBusy(p.Index)
			inc := p.Block.Incarnations[p.Index]
			r.send(freed{unit: r.t.UnitOf(p), class: int32(p.Block.Class), tag: int32(r.s.Tag(inc)), incarnation: inc})
		}
	}
}

// landAll waits until all frees that are queued have landed, or failed. The error wraps
// ErrDeadline when none of them moves on for a timeout.
func (r *Reclaim) landAll() error {
	for len(r.out) > 0 || r.Flying > 0 {
		before := r.landed
		r.flush()
		r.land(r.s.OpTimeout)
		if r.landed == before {
			return session.TimedOut("free objects of others")
		}
	}
	return nil
}

// restingOwn counts the resting and ripe objects of a class that will be this client's own again.
func (r *Reclaim) restingOwn(class int) int {
	n := 0
	for _, x := range r.resting.Items() {
		if blk, _, _ := r.s.Space.BlockOf(x.unit); int(x.class) == class && r.h.Own(blk) != nil {
			n++
		}
	}
	for _, x := range r.ripe.Items() {
		if x.Block.Class == class && r.h.Own(x.Block.Block) == x.Block {
			n++
		}
	}
	return n
}

// awaitRest sleeps until the class has more free objects than the reserve, and reports whether it
// has. It returns at once when no own object of the class rests.
func (a *Allocator) awaitRest(class, reserve int) bool {
	for !a.Holdings.has(class, reserve) && a.Reclaim.restingOwn(class) > 0 {
		a.Reclaim.sleep(min(1, a.Reclaim.resting.Len()))
		if a.Reclaim.landAll() != nil {
			break
		}
	}
	return a.Holdings.has(class, reserve)
}

// watch waits until others have made room for a class: have freed objects of this client's blocks,
// since their frees rest, and come in batches; or left a block, of a larger class if that will do;
// or made one vacant. Behind the wait it takes an emptied block of its own, if that has rested. It
// returns false when there is no room.
func (a *Allocator) watch(class, reserve int, r kit.Retry, larger bool) (bool, error) {
	for r.Again() {
		if err := a.ReclaimAll(class); err != nil {
			return false, err
		}
		if r.Tries%8 == 0 {
			if ok, err := a.Adopt(class, 1, larger); ok || err != nil {
				return ok, err
			}
		}
		if a.Holdings.has(class, reserve) {
			return true, nil
		}
		if ok, err := a.carveVacant(class); ok || err != nil {
			return ok, err
		}
	}
	// One of its own is for itself, and the others that have rested are for other clients.
	ok, err := a.carveOwn(class)
	if err != nil {
		return ok, err
	}
	if err := a.Clear(); ok || err != nil {
		return ok, err
	}
	return a.carveVacant(class)
}
