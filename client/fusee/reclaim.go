package fusee

import (
	"fmt"
	"slices"
	"time"

	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node"
)

// Marks are truth, bits of free bitmaps are hints. An object is free when its mark, the first
// word, equals its incarnation, or when it was never used. A mark may be written any number of
// times: it says the same, and once the object is used again it says nothing. So a free that may
// have failed, or of which the client may have died, is repeated. The paper's bits alone (FUSEE
// 4.4) do not allow that: a second FAA on one carries into its neighbor and frees live data.
//
// Freed objects come back in three steps. None is on an operation's critical path.
//
//  1. The winner of a slot frees what the slot held before. The object rests first
//     (layout.quarantine): readers may still be on their way to it, and a tag must not come
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
type reclaim struct {
	// rest is for how long a freed object rests: layout.quarantine.
	rest time.Duration
	// Objects in quarantine, from head on, in the order in which they become ready.
	resting []resting
	head    int
	// Own objects that have rested, and wait for the frees that were queued before them; from
	// ripeAt on.
	ripe   []ripe
	ripeAt int
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
	flying int
	scan   scan
	// now is when the current operation began, or later: a clock that costs nothing to read.
	now time.Duration
	// waited is for how long the current operation has waited for frees in flight.
	waited time.Duration
	// writes counts operations, for shed.
	writes uint64
	// tight: the region of the last allocation or look had few free blocks left.
	tight bool
	// full: no region had a block at the last allocation, or a region had none at the last look.
	full bool
	// fair is how many blocks of other classes than its operation's the client may hold then.
	fair int
	// deletes is the class of the largest object that a DELETE of this client may need, of the keys
	// that it has written.
	deletes int
	// known: blocks of nodes that the backups have recorded; only with node-centric allocation.
	known map[node.Block]bool
	// Blocks that this client is leaving, each slab of one class. No operation takes objects of
	// them.
	parting []*slab
	// Blocks on their way to be vacant, in the order in which they became empty.
	emptied []emptied
	// untidy: tables may name this client as the owner of a block that is not among own.
	untidy bool
}

// resting is an object in quarantine.
type resting struct {
	unit  uint64
	class int32
	// tag is that of the use that was freed. anyTag: whatever use it is in.
	tag int32
	// inc is the incarnation of that use; 0: not known.
	inc uint32
	// ready is when the object has rested.
	ready time.Duration
}

// anyTag is no tag: the object is freed in whatever use it is.
const anyTag = -1

// ripe is an own object that has rested, and becomes free when the first after frees are over.
type ripe struct {
	place
	after uint64
}

const (
	tendEvery  = 64 // searches between two looks at what is left over from writes
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

// free gives up the pair that a won write replaced, once the primary shows the new word. The
// caller knows the pair's incarnation: if only the tag were compared, a later use of the object
// could be taken for it.
func (c *Client) free(w race.Word, incarnation uint32) {
	if w.Live() {
		c.layTag(w.Unit(), int(c.classes.of[w.Units()]), int32(w.Tag()), incarnation)
	}
}

// lay puts the draft's object to rest.
func (c *Client) lay(unit uint64, class int) {
	c.layTag(unit, class, int32(c.tag(c.draft.object.incarnation)), c.draft.object.incarnation)
}

// layTag puts an object to rest. All rest equally long, so the list stays in order.
func (c *Client) layTag(unit uint64, class int, tag int32, incarnation uint32) {
	r := &c.reclaim
	if r.head > 64 && r.head*2 > len(r.resting) {
		r.resting = r.resting[:copy(r.resting, r.resting[r.head:])]
		r.head = 0
	}
	r.resting = append(r.resting, resting{unit, int32(class), tag, incarnation, c.ep.Now() + r.rest})
}

// recycle puts the draft's object to rest: no slot points at it, or none any more. The paper
// clears the used bit of its log entry first, so that recovery does not redo the write. There is
// no need: a write is unfinished only if some replica holds its word.
func (c *Client) recycle() { c.lay(c.draft.unit, c.draft.object.class) }

// rests reports whether an object is in quarantine.
func (r *reclaim) rests(unit uint64) bool {
	return slices.ContainsFunc(r.resting[r.head:], func(x resting) bool { return x.unit == unit })
}

// tend advances what needs no waiting. Every operation that writes calls it once.
func (c *Client) tend(class int) {
	c.land(0)
	c.mature()
	c.tendScan()
	s := &c.slabs[class]
	if s.taken++; s.taken > s.gap && s.idle() < lowWater && c.reclaim.scan.phase == noScan && len(s.blocks) > 0 {
		s.taken = 0
		c.beginScan(class)
	}
}

// tendIdle advances what a client that only reads has left over from its writes. A client without
// any operations keeps what rests and less than a batch of frees.
func (c *Client) tendIdle() {
	if r := &c.reclaim; len(r.resting) > r.head || len(r.out) > 0 || r.flying > 0 {
		r.now = c.ep.Now()
		c.land(0)
		c.mature()
	}
}

// placeOf returns the object at a unit as one of this client's blocks knows it. It is not ok when
// the client owns none of the class there.
func (c *Client) placeOf(unit uint64, class int) (p place, ok bool) {
	blk, _, _ := c.space.BlockOf(unit)
	if b := c.own[blk]; b != nil && b.class == class {
		return place{b, c.indexOf(unit, class)}, true
	}
	return place{}, false
}

// indexOf returns the index of the object at a unit in its block.
func (c *Client) indexOf(unit uint64, class int) int {
	_, off, _ := c.space.BlockOf(unit)
	return int(off-c.space.BitmapBytes()) / (c.classes.units[class] * node.Unit)
}

// mature ends the quarantine of objects: own ones become ripe, others go into carriers.
func (c *Client) mature() {
	r := &c.reclaim
	for r.head < len(r.resting) && r.resting[r.head].ready <= r.now {
		x := r.resting[r.head]
		r.head++
		if p, own := c.placeOf(x.unit, int(x.class)); own && !p.block.parting {
			// Where the tag differs another client has freed the object, too: it is free already,
			// or in use again.
			if x.tag == anyTag || int32(c.tag(p.block.incarnations[p.index])) == x.tag {
				c.ripen(p)
			}
			continue
		}
		c.send(freed{unit: x.unit, class: x.class, tag: x.tag, incarnation: x.inc})
	}
	if r.now-r.since > flushAfter*r.rest {
		c.flush()
	}
}

// ripen makes a rested object of this client's own free when all frees queued before are over.
// One of them may be of the pair that this object replaced. Only this object's log tells recovery
// so when this client dies, and using the object again would overwrite the log.
func (c *Client) ripen(p place) {
	r := &c.reclaim
	if p.block.idle(p.index) {
		return
	}
	p.block.setIdle(p.index)
	if r.landed == r.queued {
		c.slabs[p.block.class].push(p)
		return
	}
	if r.ripeAt > 64 && r.ripeAt*2 > len(r.ripe) {
		r.ripe = r.ripe[:copy(r.ripe, r.ripe[r.ripeAt:])]
		r.ripeAt = 0
	}
	r.ripe = append(r.ripe, ripe{p, r.queued})
}

// harvest moves ripe objects into the free lists. An object of a block that was left meanwhile,
// or is about to be, is freed as one of another client.
func (c *Client) harvest() {
	r := &c.reclaim
	for r.ripeAt < len(r.ripe) && r.ripe[r.ripeAt].after <= r.landed {
		p := r.ripe[r.ripeAt].place
		r.ripeAt++
		if c.own[p.block.Block] == p.block && !p.block.parting {
			c.slabs[p.block.class].push(p)
		} else {
			tag := int32(c.tag(p.block.incarnations[p.index]))
			c.send(freed{unit: c.unitOf(p), class: int32(p.block.class), tag: tag})
		}
	}
}

// drain ends all background work: it waits until everything has rested and landed. The error says
// what did not; it may be called again.
func (c *Client) drain() error {
	c.settle()
	r := &c.reclaim
	if n := len(r.resting); n > r.head {
		if d := r.resting[n-1].ready - c.ep.Now(); d > 0 {
			c.ep.Sleep(d)
		}
	}
	r.now = c.ep.Now()
	c.mature()
	c.retry()
	if err := c.landAll(); err != nil {
		return err
	}
	if len(r.stuck) > 0 {
		return fmt.Errorf("free %d objects of others: %w", len(r.stuck), r.trouble)
	}
	return c.endScan()
}

// landAll waits until all frees that are queued have landed, or failed. The error wraps
// errDeadline when none of them moves on for a timeout.
func (c *Client) landAll() error {
	r := &c.reclaim
	for len(r.out) > 0 || r.flying > 0 {
		before := r.landed
		c.flush()
		c.land(c.opt.Timeout)
		if r.landed == before {
			return errTimeout("free objects of others")
		}
	}
	return nil
}

// fault stores the first damage that was seen in the background. The next operation returns it.
func (c *Client) fault(err error) {
	if c.damage == nil {
		c.damage = err
	}
}

// restingOwn counts the resting and ripe objects of a class that will be this client's own again.
func (r *reclaim) restingOwn(c *Client, class int) int {
	n := 0
	for _, x := range r.resting[r.head:] {
		if blk, _, _ := c.space.BlockOf(x.unit); int(x.class) == class && c.own[blk] != nil {
			n++
		}
	}
	for _, x := range r.ripe[r.ripeAt:] {
		if x.block.class == class && c.own[x.block.Block] == x.block {
			n++
		}
	}
	return n
}

// awaitRest sleeps until the class has more free objects than the reserve, and reports whether it
// has. It returns at once when no own object of the class rests.
func (c *Client) awaitRest(class, reserve int) bool {
	r := &c.reclaim
	for !c.has(class, reserve) && r.restingOwn(c, class) > 0 {
		if len(r.resting) > r.head {
			if d := r.resting[r.head].ready - c.ep.Now(); d > 0 {
				c.ep.Sleep(d)
			}
		}
		r.now = c.ep.Now()
		c.mature()
		if c.landAll() != nil {
			break
		}
	}
	return c.has(class, reserve)
}

// awaitOthers waits until other clients have freed objects of this client's blocks: their frees
// rest, and come in batches. It does not wait when no other client has blocks of the class, and
// gives up after a small part of an operation's time. It returns true when the class has more
// free objects than the reserve.
func (c *Client) awaitOthers(class, reserve int) (bool, error) {
	others, err := c.entries(1, func(e node.Entry) bool {
		return e.Class() == class && e.Owner() != 0 && e.Owner() != node.Left && e.Owner() != c.id
	})
	if err != nil || len(others) == 0 {
		return false, err
	}
	start := c.ep.Now()
	r := kit.Retry{Env: c.ep, Pause: aLittleBit,
		Over: func() bool { return c.ep.Now()-start >= c.opt.Timeout/othersShare }}
	for r.Again() {
		if err := c.reclaimAll(class); err != nil {
			return false, err
		}
		if r.Tries%8 == 0 {
			if ok, err := c.adopt(class, 1, manyCandidates, true); ok || err != nil {
				return ok, err
			}
		}
		if c.has(class, reserve) {
			return true, nil
		}
	}
	return false, nil
}
