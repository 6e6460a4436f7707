// Package extents is how a client of RCuckoo gets the extents of long values and gives them back
// (section 3.2.2): it claims extents in slabs, keeps a record of its claims in the pool, changes
// the size class of units, and frees what a client that is gone had claimed.
package extents

import (
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/client/rcuckoo/steps"
	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// Client are the extents that a client has claimed, and what it knows of free ones. It claims
// some at a time, in one trip, so that its operations find them ready. It claims, in this order:
//
//   - extents that it freed itself, so that a client that replaces values needs no others;
//   - extents that a scan of marks finds in slabs that the node gave it (section 3.2.2);
//   - those of a new slab;
//   - what there is in other clients' slabs.
//
// A mark, and so its extent, goes through these states. All changes are CASes of the mark, which
// name the stamp of the state before, so of two clients that want the same change one gets it:
//
//	free      to claimed, with the next stamp: claim
//	claimed   the client's claim list names it. To free: Leave, or recovery by another client.
//	used      a row names it, in the same use: the mark does not change. To free: AddMark.
//	held      a client changes the class of the unit: see carve.go. To free, in either class.
type Client struct {
	table   *table.Layout
	ep      rdma.Endpoint
	id      rdma.ClientID
	timeout time.Duration
	stocks  []stock // of each shard
	stats   Stats
}

// Stats count what a client did for its memory. They only grow.
type Stats struct {
	Claims  uint64 // extents that it claimed
	Missed  uint64 // extents that another client had claimed before
	Scans   uint64 // scans of a slab's marks
	Handed  uint64 // slabs that it got from nodes
	Rescued uint64 // extents in the claim lists of clients that were gone
	Carved  uint64 // units that it gave another class
	// Collided are units that kept their class, as another client got some of their extents.
	Collided uint64
}

// stock is what a client has in a shard.
type stock struct {
	// opened: nothing is left of the identity's last holder, or of claims of the client's own that
	// it did not make, or give back, for certain. Before that nothing is taken of what is claimed,
	// and no claim list may be written: it may be the only record of extents.
	opened bool
	// full: the node has handed out all slabs.
	full bool
	// of is by class.
	of []sized
	// unresolved are extents that were taken by operations of unknown outcome: a row may name them.
	unresolved kit.Unresolved[table.Ref]
	// mine are the slabs that the node gave this client, and cursor is the index of the last one
	// scanned.
	mine   []int
	cursor int
	// next is the slab that was scanned last, of all slabs.
	next int
	// marks are those of the last scan or claim. nil: the client has never looked for extents here.
	marks []uint64
}

// sized is what a client has of a class.
type sized struct {
	// claimed are extents that are claimed, and not taken by an operation. The last one is taken
	// next.
	claimed []table.Ref
	// hints, from first on, are uses that have ended, as far as the client knows. The use that
	// ended first comes first, so that its readers had most time.
	hints []table.Ref
	first int
}

const (
	// mostHints bounds the hints of a class: about two claim lists full.
	mostHints = 64
	// ownScans bounds how many of its slabs a client looks through before it asks for one more.
	ownScans = 4
)

// Forget forgets what the client has in a shard, as another copy leads: it does not own it any
// more.
func (x *Client) Forget(shard int) { x.stocks[shard] = stock{of: make([]sized, x.table.Classes)} }

// New returns a client's extents. It reads nothing: refill recovers what the identity's
// last holder left.
func New(l *table.Layout, ep rdma.Endpoint, timeout time.Duration) *Client {
	x := &Client{table: l, ep: ep, id: ep.Client(), timeout: timeout, stocks: make([]stock, l.Shards)}
	for shard := range x.stocks {
		x.Forget(shard)
	}
	return x
}

// Take returns an extent of a shard for a key and a value of so many bytes, with the stamp of its
// use. The client owns it until a row names it. The error wraps client.ErrFull when there is
// none, and rdma.ErrTimeout when none was found by the time until. Earlier operations of the
// client in the shard must be over.
func (x *Client) Take(shard, key, length int, until time.Duration) (table.Ref, error) {
	class := x.table.ClassFor(key + length)
	st := &x.stocks[shard].of[class]
	if len(st.claimed) == 0 || !x.stocks[shard].opened {
		if err := x.refill(shard, class, until); err != nil {
			return table.Ref{}, fmt.Errorf("take an extent of shard %d: %w", shard, err)
		}
	}
	// The claim list in the pool still names it: a crash before a row names it leaves it to
	// recovery.
	r := st.claimed[len(st.claimed)-1]
	st.claimed = st.claimed[:len(st.claimed)-1]
	r.Length = length
	return r, nil
}

// Give takes an extent back, as its operation failed: no row names it, or ever will. The next
// operation takes it, in the same use: no reader has seen its stamp. The claim list in the pool
// names it all the time.
func (x *Client) Give(shard int, r table.Ref) {
	st := &x.stocks[shard].of[x.table.Class(r.Stamp)]
	st.claimed = append(st.claimed, r)
}

// MarkUnresolved takes an extent back when it is not known whether a row names it. resolve finds
// out, when the operation is over.
func (x *Client) MarkUnresolved(shard int, r table.Ref) {
	st := &x.stocks[shard]
	st.unresolved.Keep(r)
}

// HasClaims reports whether a client may have claimed something in a shard.
func (x *Client) HasClaims(shard int) bool { return x.stocks[shard].marks != nil }

// Ended notes that this client has ended a use, so that the extent is claimed again first.
func (x *Client) Ended(shard int, r table.Ref) { x.hint(shard, r) }

// hint notes a use that has ended, in its class.
func (x *Client) hint(shard int, r table.Ref) { x.stocks[shard].of[x.table.Class(r.Stamp)].hint(r) }

// hint drops what is beyond mostHints: a scan finds it again.
func (st *sized) hint(r table.Ref) {
	if st.first > mostHints {
		st.hints = st.hints[:copy(st.hints, st.hints[st.first:])]
		st.first = 0
	}
	if len(st.hints)-st.first < mostHints {
		st.hints = append(st.hints, r)
	}
}

// known is how many extents are known to be free.
func (st *sized) known() int { return len(st.hints) - st.first }

// want is how many extents a client claims at once, and enough is how few are worth the trip.
func (x *Client) want() int   { return min(table.ClaimAtOnce, x.table.SlabExtents) }
func (x *Client) enough() int { return (x.want() + 3) / 4 }

// refill claims extents of a class for a stock that has none. First it recovers what the last
// holder of the identity left in its claim lists, and what is unresolved: a claim overwrites the
// claim list that names them.
func (x *Client) refill(shard, class int, until time.Duration) error {
	st := &x.stocks[shard]
	if !st.opened {
		for i := range st.of { // reclaim frees them: the claim lists name all of these
			st.of[i].claimed = st.of[i].claimed[:0]
		}
		if _, err := x.reclaim(shard, x.id, until); err != nil {
			return err
		}
		st.opened = true
	}
	if err := x.resolve(shard, until); err != nil {
		return err
	}
	for {
		if err := x.seek(shard, class, until); err != nil {
			return err
		}
		if err := x.claim(shard, class, until); err != nil || len(st.of[class].claimed) > 0 {
			return err
		}
		if x.ep.Now() >= until { // each time other clients were faster
			return fmt.Errorf("others claim them all: %w", rdma.ErrTimeout)
		}
	}
}

// seek looks for free extents of a class, and notes them as hints. If the slabs that it looks at
// have too few, it changes the class of units. It may return without a hint when other clients
// were faster. The error wraps client.ErrFull if no extent of the shard can be used.
//
// Marks are read without a lock, so all that it notes is a hint, and costs a CAS in vain if it is
// out of date. It prefers what costs other clients least: its own slabs, then units of its own
// slabs that have another class, then memory that no client has, and other clients' slabs last.
func (x *Client) seek(shard, class int, until time.Duration) error {
	st := &x.stocks[shard]
	carvable := -1
	// First the client's own slabs, a few of them.
	for range min(len(st.mine), ownScans) {
		if st.of[class].known() >= x.enough() {
			return nil
		}
		st.cursor = (st.cursor + 1) % len(st.mine)
		others, err := x.scan(shard, class, st.mine[st.cursor], until)
		if err != nil {
			return err
		}
		if others {
			carvable = st.mine[st.cursor]
		}
	}
	if st.of[class].known() >= x.enough() {
		return nil
	}
	// Then it changes the class of units in one of these, before it asks for more memory.
	if carvable >= 0 {
		if err := x.carve(shard, class, carvable, until); err != nil || st.of[class].known() >= x.enough() {
			return err
		}
	}
	// Then it asks the node for a slab. A new slab is of class 0: a unit is one extent.
	if !st.full {
		slab, err := x.grow(shard)
		switch {
		case err == nil && class == 0:
			x.hintAll(shard, slab)
			return nil
		case err == nil:
			return x.carve(shard, class, slab, until)
		case !errors.Is(err, client.ErrFull):
			return err
		}
		// From now on no operation of this client asks the node again: slabs are not given back.
		st.full = true
		st.next = x.ep.Rand().IntN(x.table.Slabs) // so that clients do not all look in the same one
	}
	// At last it looks through all slabs. If other clients were faster at some units, it is not
	// full yet.
	for {
		before := x.stats.Collided
		if err := x.seekAll(shard, class, until); err != nil || st.of[class].known() > 0 || x.stats.Collided > before {
			return err
		}
		// The extents in the client's own claim lists of other classes may be all that prevents
		// units from changing their class.
		n, err := x.endClaims(shard, class, until)
		switch {
		case err != nil:
			return err
		case n == 0:
			return fmt.Errorf("none of its %d slabs of %d extents has room for %d bytes: %w",
				x.table.Slabs, x.table.SlabExtents, x.table.SizeOf(class), client.ErrFull)
		}
	}
}

// seekAll looks through all slabs, from where it ended before, until it has found enough. In the
// first few slabs it changes no unit's class: others may have free extents of the class.
func (x *Client) seekAll(shard, class int, until time.Duration) error {
	st := &x.stocks[shard]
	for n := range x.table.Slabs + ownScans { // the first ones twice: their units may change their class then
		if st.of[class].known() >= x.enough() {
			return nil
		}
		st.next = (st.next + 1) % x.table.Slabs
		others, err := x.scan(shard, class, st.next, until)
		if err == nil && others && n >= min(ownScans, x.table.Slabs) && st.of[class].known() < x.enough() {
			err = x.carve(shard, class, st.next, until)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// readMarks reads the marks of a slab, for the first places of its units: see SlabMarks. The
// result is valid until the next call. The READ is not atomic, so the marks are hints; the CAS of
// a claim decides.
func (x *Client) readMarks(shard, slab, places int, until time.Duration) ([]uint64, error) {
	st := &x.stocks[shard]
	b := x.ep.Batch()
	defer b.Release()
	n := places * x.table.SlabExtents // marks lie place by place
	op := b.Read(x.table.SlabAt(shard, slab), n*table.MarkBytes)
	if err := x.do(steps.ScanMarks, b, until); err != nil {
		return nil, fmt.Errorf("read the marks of slab %d: %w", slab, err)
	}
	st.marks = st.marks[:0]
	for i := range n {
		st.marks = append(st.marks, le.Uint64(op.Buf[i*table.MarkBytes:]))
	}
	return st.marks, nil
}

// scan notes the free extents of a class in a slab. It begins at a random mark, so that clients
// that scan the same slab collide less. others: units of other classes seem to have free extents.
func (x *Client) scan(shard, class, slab int, until time.Duration) (others bool, err error) {
	marks, err := x.readMarks(shard, slab, 1<<class, until)
	if err != nil {
		return false, err
	}
	x.stats.Scans++
	from := x.ep.Rand().IntN(len(marks))
	for n := range marks {
		i := (from + n) % len(marks)
		switch m := marks[i]; {
		case m&1 != 0:
		case x.table.Class(m>>1) == class:
			unit := uint64(slab*x.table.SlabExtents + i%x.table.SlabExtents)
			x.hint(shard, table.Ref{Extent: x.table.ExtentIn(unit, i/x.table.SlabExtents), Stamp: m >> 1})
		default:
			others = others || i < x.table.SlabExtents
		}
	}
	return others, nil
}

// grow asks the node for a slab. A crash after that leaves a slab with free extents, which other
// clients find. The error wraps client.ErrFull when there is no slab any more.
func (x *Client) grow(shard int) (slab int, err error) {
	if x.table.Replicas > 1 {
		return 0, client.ErrFull // all slabs were handed out when the pool was made
	}
	home, index := x.table.Leads[shard].Node, x.table.Leads[shard].Index
	r := rdma.Request{Step: steps.AskForASlab, Proc: node.ProcGrow}
	r.Arg = [6]uint64{x.table.Areas.Counts.Of(index), x.table.Areas.Slabs.Of(index), x.table.SlabBytes,
		uint64(x.table.Slabs), 1}
	if err := x.ep.Call(home, &r, x.timeout); err != nil {
		return 0, fmt.Errorf("ask node %d for a slab: %w", home, err)
	}
	x.stats.Handed++
	st := &x.stocks[shard]
	// A client looks there first, no more: any client may claim its extents.
	st.mine = append(st.mine, int(r.Ret[0]))
	return int(r.Ret[0]), nil
}

// hintAll notes that all units of a new slab are free, in class 0, as all marks are zero.
func (x *Client) hintAll(shard, slab int) {
	for i := range x.table.SlabExtents {
		x.hint(shard, table.Ref{Extent: x.table.ExtentIn(uint64(slab*x.table.SlabExtents+i), 0)})
	}
}

// claim tries to claim extents of a class that are hints: steps 1 and 2 of extent.go of package
// table. It overwrites the claim list: all that the claim list named before has been taken, and
// rows name it, or it was freed.
//
// What a crash leaves: before the claim list is whole, nothing is claimed. From then on the claim
// list names all that is claimed. If the batch fails it is not known which claims landed, so the
// stock is opened again, from the claim list.
func (x *Client) claim(shard, class int, until time.Duration) error {
	st, of := &x.stocks[shard], &x.stocks[shard].of[class]
	n := min(of.known(), x.want())
	if n == 0 {
		return nil
	}
	hints := of.hints[of.first : of.first+n]
	st.marks = st.marks[:0]
	for i := range hints {
		st.marks = append(st.marks, table.Mark(hints[i].Stamp, false))
		// The new stamp has the class of the old one. If the unit has another class by now, its
		// marks differ, and the CAS fails.
		hints[i] = table.Ref{Extent: hints[i].Extent, Stamp: table.NextStamp(hints[i].Stamp, x.id)}
	}
	// One chain: the claim list lands before the CASes.
	b := x.ep.Batch()
	b.Chain()
	x.addClaims(b, shard, class, hints)
	for i, r := range hints {
		b.CompareSwap(x.table.MarkAt(shard, r.Extent), st.marks[i], table.Mark(r.Stamp, true))
	}
	of.first += n // hints are not used twice, even if the claim fails
	if err := x.do(steps.ClaimExtents, b, until); err != nil {
		st.opened = false // what was claimed is found in the claim list
		b.Release()
		return fmt.Errorf("claim %d extents: %w", n, err)
	}
	for i := n - 1; i >= 0; i-- { // the use that ended first is taken first
		if b.Op(1 + i).Swapped() {
			of.claimed = append(of.claimed, hints[i])
		}
	}
	b.Release()
	x.stats.Claims += uint64(len(of.claimed))
	x.stats.Missed += uint64(n - len(of.claimed))
	return nil
}

// do posts a batch as a step of the protocol and waits for it until a time. It posts nothing if
// that has passed. The caller owns the batch.
func (x *Client) do(step rdma.Step, b *rdma.Batch, until time.Duration) error {
	left := until - x.ep.Now()
	if left <= 0 {
		return ErrNoTime
	}
	return rdma.Do(x.ep, b.As(step), left)
}

// ErrNoTime is the error of an operation that has used up its time.
var ErrNoTime = fmt.Errorf("the operation %w", rdma.ErrTimeout)

// Walk calls yield with each slab of a shard that was handed out, and all of its marks: see
// MarkOf. The marks are valid during the call. It may run while clients work.
func (x *Client) Walk(shard int, yield func(slab int, marks []uint64) error) error {
	handed, err := rdma.ReadWord(x.ep, steps.ReadCounts, x.table.At(x.table.Areas.Counts, shard, 0), x.timeout)
	if err != nil {
		return fmt.Errorf("read how many slabs shard %d has: %w", shard, err)
	}
	slabs := x.table.Slabs
	if x.table.Replicas == 1 {
		slabs = min(int(handed), slabs)
	}
	for slab := range slabs {
		marks, err := x.readMarks(shard, slab, x.table.Most(), x.ep.Now()+x.timeout)
		if err != nil {
			return fmt.Errorf("walk shard %d: %w", shard, err)
		}
		if err := yield(slab, marks); err != nil {
			return err
		}
	}
	return nil
}
