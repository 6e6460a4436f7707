package extents

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node/rdma"
)

// classed is a pool of one shard, with units of up to 16 extents.
func classed(units int) table.Params {
	p := small()
	p.Shards, p.ExtentBytes, p.SlabExtents, p.Classes = 1, 1000, 8, 5
	p.Slabs = (units + p.SlabExtents - 1) / p.SlabExtents
	return p
}

// longest is the length of the longest values of a class.
func longest(l *table.Layout, class int) int {
	return min(int(l.SizeOf(class))-table.ExtentHeader, l.ExtentBytes)
}

// takeSized takes extents for pairs of so many bytes until there is none.
func takeSized(t testing.TB, x *Client, bytes int) (all []table.Ref) {
	t.Helper()
	for {
		r, err := takeNow(x, 0, bytes)
		if errors.Is(err, client.ErrFull) {
			return all
		}
		must(t, err)
		all = append(all, r)
	}
}

func endAll(t testing.TB, x *Client, all []table.Ref) {
	t.Helper()
	for _, r := range all {
		write(t, x, func(b *rdma.Batch) { x.table.AddMark(b, 0, r) })
	}
}

// TestUnitsChange: a pool that is filled with extents of one class, and emptied, can be filled with
// those of any other, by the same client or by another.
func TestUnitsChange(t *testing.T) {
	const units = 24
	l, v := homestead(t, classed(units), 1)
	one, other := extentsOn(t, l, v), extentsOn(t, l, v)
	stamps := map[uint64]uint64{} // the last one of each extent, without its class
	for turn, class := range []int{0, 4, 2, 3, 0, 1, 4, 0} {
		x := one
		if turn%3 == 2 {
			x = other
		}
		all := takeSized(t, x, longest(l, class))
		if len(all) != units<<class {
			t.Fatalf("turn %d: took %d extents of class %d, want %d", turn, len(all), class, units<<class)
		}
		seen := map[uint64]bool{}
		for _, r := range all {
			if seen[r.Extent] || !l.Names(r, 0) || l.Class(r.Stamp) != class {
				t.Fatalf("turn %d: %+v", turn, r)
			}
			seen[r.Extent] = true
			if table.WithClass(r.Stamp, 0)>>16 <= stamps[r.Extent]>>16 {
				t.Fatalf("turn %d: %+v, behind stamp %d", turn, r, stamps[r.Extent])
			}
			stamps[r.Extent] = table.WithClass(r.Stamp, 0)
		}
		endAll(t, x, all)
	}
	if one.stats.Carved == 0 || other.stats.Carved == 0 {
		t.Errorf("%+v, %+v", one.stats, other.stats)
	}
}

// TestPinned: a unit keeps its class while one of its extents is used. Extents in a client's own
// hands do not keep that client from changing the class.
func TestPinned(t *testing.T) {
	l, v := homestead(t, classed(8), 1)
	x := extentsOn(t, l, v)
	all := takeSized(t, x, 30)
	pinned, _ := l.UnitOf(all[0].Extent)
	var rest []table.Ref
	for _, r := range all {
		if unit, place := l.UnitOf(r.Extent); unit != pinned || place != 3 {
			rest = append(rest, r)
		}
	}
	endAll(t, x, rest)
	r, err := takeNow(x, 0, 30)
	must(t, err)
	x.Give(0, r)
	others := map[uint64]bool{}
	for _, r := range x.stocks[0].of[4].claimed {
		unit, _ := l.UnitOf(r.Extent)
		others[unit] = unit != pinned
	}
	large := takeSized(t, x, 1000)
	if len(others) < 2 || len(large) != 7 {
		t.Errorf("took %d of 7 units, and had extents of %d in hand", len(large), len(others))
	}
	for _, r := range large {
		if unit, _ := l.UnitOf(r.Extent); unit == pinned {
			t.Errorf("%+v, though one of its unit's extents is used", r)
		}
	}
	if x.claimedIn(0) != 0 {
		t.Errorf("the pool is full, and %d extents are in hand", x.claimedIn(0))
	}
}

// TestCutCarving: whichever CASes of a change have landed when a client is cut off, after its
// recovery the unit is of one class, and all its extents are free. A second recovery changes
// nothing.
func TestCutCarving(t *testing.T) {
	for _, c := range [][2]int{{0, 2}, {2, 0}, {1, 2}, {2, 1}} {
		from, to := c[0], c[1]
		places := 1 << max(from, to)
		for landed := range 2*places + 1 { // so many of the CASes of steps 2, 3 and 4
			t.Run(fmt.Sprintf("%d to %d, %d landed", from, to, landed), func(t *testing.T) {
				l, v := homestead(t, classed(8), 1)
				x, keeper := extentsOn(t, l, v), extentsOn(t, l, v)
				all := takeSized(t, x, longest(l, from))
				endAll(t, x, all)
				must(t, cutCarving(x, 0, from, to, landed))
				if r := keeperLeaves(t, keeper, x.id); landed > 0 && landed < 2*places && r == 0 {
					t.Error("nothing was settled")
				}
				for _, class := range []int{to, from, 4, 0} {
					y := extentsOn(t, l, v)
					all := takeSized(t, y, longest(l, class))
					if len(all) != 8<<class {
						t.Errorf("%d extents of class %d", len(all), class)
					}
					endAll(t, y, all)
				}
			})
		}
	}
}

// cutCarving changes the class of a unit of slab 0, up to so many CASes.
func cutCarving(x *Client, unit, from, to, landed int) error {
	marks, err := x.readMarks(0, 0, x.table.Most(), x.ep.Now()+x.timeout)
	if err != nil {
		return err
	}
	c, ok := x.holdable(marks, 0, unit, to)
	if !ok || c.from != from {
		return fmt.Errorf("the unit cannot change: %+v", c)
	}
	b := x.ep.Batch()
	defer b.Release()
	x.addMoves(b, 0, []Carving{c})
	places := len(c.marks)
	for n := range landed {
		at := n % places
		if n >= places { // step 3 begins with the second place, step 4 is about the first one
			at = (n + 1) % places
		}
		held := table.Mark(table.WithClass(table.NextStamp(c.marks[at]>>1, x.id), table.Converting), true)
		if n < places {
			b.CompareSwap(x.table.MarkAt(0, x.table.ExtentIn(c.Unit, at)), c.marks[at], held)
		} else {
			b.CompareSwap(x.table.MarkAt(0, x.table.ExtentIn(c.Unit, at)), held, table.Mark(table.WithClass(held>>1,
				to), false))
		}
	}
	return rdma.Do(x.ep, b, time.Second)
}

// keeperLeaves recovers a client twice, and returns how many marks the first time changed.
func keeperLeaves(t *testing.T, keeper *Client, gone rdma.ClientID) (changed int) {
	t.Helper()
	var before []uint64
	for turn := range 3 {
		marks, err := keeper.readMarks(0, 0, keeper.table.Most(), keeper.ep.Now()+keeper.timeout)
		must(t, err)
		differ := 0
		for i := range before {
			if before[i] != marks[i] {
				differ++
			}
		}
		switch {
		case turn == 1:
			changed = differ
		case turn == 2 && differ > 0:
			t.Errorf("done again, it changes %d marks", differ)
		}
		before = append(before[:0], marks...)
		_, err = keeper.Leave(0, gone)
		must(t, err)
	}
	return changed
}

// TestLostClaim: after a claim was cut off, a client frees what its claim lists name. It has no
// extents of other classes claimed then, as these are freed as well.
func TestLostClaim(t *testing.T) {
	l, v := homestead(t, classed(24), 1)
	x := extentsOn(t, l, v)
	_, err := takeNow(x, 0, 1000)
	must(t, err)
	if x.claimedIn(0) == 0 {
		t.Fatal("nothing is in hand")
	}
	x.stocks[0].opened = false // as a claim of another class leaves it that was cut off
	_, err = takeNow(x, 0, 100)
	must(t, err)
	r, err := takeNow(x, 0, 1000)
	must(t, err)
	if m := readMark(t, x, r); m != table.Mark(r.Stamp, true) {
		t.Errorf("%+v was taken, and its mark is %#x", r, m)
	}
}

func readMark(t *testing.T, x *Client, r table.Ref) (m uint64) {
	t.Helper()
	b := x.ep.Batch()
	defer b.Release()
	op := b.Read(x.table.MarkAt(0, r.Extent), table.MarkBytes)
	must(t, rdma.Do(x.ep, b, time.Second))
	return op.Word(0)
}
