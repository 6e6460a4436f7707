package rcuckoo

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"pgregory.net/rapid"
)

// TestClasses: a pair's extent has room for it, and is at most twice as large, or of the smallest
// class. The extents of a slab share no byte with each other or with the marks.
func TestClasses(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		p := small()
		p.KeyBytes = rapid.IntRange(1, maxKeyBytes).Draw(r, "key bytes")
		p.ExtentBytes = rapid.IntRange(p.InlineBytes+1, 20_000).Draw(r, "value bytes")
		p.Classes = rapid.IntRange(1, classesFor(extentBytes(p))).Draw(r, "classes")
		p.SlabExtents = rapid.IntRange(1, 9).Draw(r, "units")
		l := lay(t, p, 1)
		key, value := rapid.IntRange(0, p.KeyBytes).Draw(r, "key"), rapid.IntRange(0, p.ExtentBytes).Draw(r, "value")
		class := l.classFor(key + value)
		need := uint64(extentHeader + key + value)
		if l.sizeOf(class) < need || class < p.Classes-1 && l.sizeOf(class+1) >= need {
			r.Fatalf("%d bytes are in an extent of %d", need, l.sizeOf(class))
		}
		end := uint64(l.slabMarks()) * markBytes
		for unit := range uint64(p.SlabExtents) {
			for place := range 1 << class {
				u := ref{extent: l.extentIn(unit, place), length: value, stamp: withClass(1<<16, class)}
				if i, at := l.unitOf(u.extent); i != unit || at != place || !l.names(u, key) ||
					l.class(u.stamp) != class {
					r.Fatalf("%+v is in unit %d, place %d", u, i, at)
				}
				if off := l.extentOff(u); off < end || off%8 != 0 {
					r.Fatalf("%+v begins at %d, behind what ends at %d", u, off, end)
				}
				end = l.extentOff(u) + l.sizeOf(class)
			}
		}
		if end > l.slab {
			r.Fatalf("a slab of %d bytes has extents up to %d", l.slab, end)
		}
		if u := (ref{extent: l.extentIn(0, 1<<class), length: value,
			stamp: withClass(1<<16, class)}); class < p.Classes-1 && l.names(u, key) {
			r.Fatalf("%+v is named, and a unit has no such place", u)
		}
	})
}

// classed is a pool of one shard, with units of up to 16 extents.
func classed(units int) Params {
	p := small()
	p.Shards, p.ExtentBytes, p.SlabExtents, p.Classes = 1, 1000, 8, 5
	p.Slabs = (units + p.SlabExtents - 1) / p.SlabExtents
	return p
}

// longest is the length of the longest values of a class.
func (l *layout) longest(class int) int {
	return min(int(l.sizeOf(class))-extentHeader, l.ExtentBytes)
}

// takeSized takes extents for pairs of so many bytes until there is none.
func takeSized(t testing.TB, x *extents, bytes int) (all []ref) {
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

func endAll(t testing.TB, x *extents, all []ref) {
	t.Helper()
	for _, r := range all {
		write(t, x, func(b *rdma.Batch) { x.addMark(b, 0, r) })
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
		all := takeSized(t, x, l.longest(class))
		if len(all) != units<<class {
			t.Fatalf("turn %d: took %d extents of class %d, want %d", turn, len(all), class, units<<class)
		}
		seen := map[uint64]bool{}
		for _, r := range all {
			if seen[r.extent] || !l.names(r, 0) || l.class(r.stamp) != class {
				t.Fatalf("turn %d: %+v", turn, r)
			}
			seen[r.extent] = true
			if withClass(r.stamp, 0)>>16 <= stamps[r.extent]>>16 {
				t.Fatalf("turn %d: %+v, behind stamp %d", turn, r, stamps[r.extent])
			}
			stamps[r.extent] = withClass(r.stamp, 0)
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
	pinned, _ := l.unitOf(all[0].extent)
	var rest []ref
	for _, r := range all {
		if unit, place := l.unitOf(r.extent); unit != pinned || place != 3 {
			rest = append(rest, r)
		}
	}
	endAll(t, x, rest)
	r, err := takeNow(x, 0, 30)
	must(t, err)
	x.give(0, r)
	others := map[uint64]bool{}
	for _, r := range x.stocks[0].of[4].hand {
		unit, _ := l.unitOf(r.extent)
		others[unit] = unit != pinned
	}
	large := takeSized(t, x, 1000)
	if len(others) < 2 || len(large) != 7 {
		t.Errorf("took %d of 7 units, and had extents of %d in hand", len(large), len(others))
	}
	for _, r := range large {
		if unit, _ := l.unitOf(r.extent); unit == pinned {
			t.Errorf("%+v, though one of its unit's extents is used", r)
		}
	}
	if x.inHands(0) != 0 {
		t.Errorf("the pool is full, and %d extents are in hand", x.inHands(0))
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
				all := takeSized(t, x, l.longest(from))
				endAll(t, x, all)
				must(t, cutCarving(x, 0, from, to, landed))
				if r := keeperLeaves(t, keeper, x.id); landed > 0 && landed < 2*places && r == 0 {
					t.Error("nothing was settled")
				}
				for _, class := range []int{to, from, 4, 0} {
					y := extentsOn(t, l, v)
					all := takeSized(t, y, l.longest(class))
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
func cutCarving(x *extents, unit, from, to, landed int) error {
	marks, err := x.readMarks(0, 0, x.most(), x.ep.Now()+x.timeout)
	if err != nil {
		return err
	}
	c, ok := x.holdable(marks, 0, unit, to)
	if !ok || c.from != from {
		return fmt.Errorf("the unit cannot change: %+v", c)
	}
	b := x.ep.Batch()
	defer b.Release()
	x.addMoves(b, 0, []carving{c})
	places := len(c.marks)
	for n := range landed {
		at := n % places
		if n >= places { // step 3 begins with the second place, step 4 is about the first one
			at = (n + 1) % places
		}
		held := mark(withClass(nextStamp(c.marks[at]>>1, x.id), converting), true)
		if n < places {
			b.CompareSwap(x.markAt(0, x.extentIn(c.unit, at)), c.marks[at], held)
		} else {
			b.CompareSwap(x.markAt(0, x.extentIn(c.unit, at)), held, mark(withClass(held>>1, to), false))
		}
	}
	return rdma.Do(x.ep, b, time.Second)
}

// keeperLeaves recovers a client twice, and returns how many marks the first time changed.
func keeperLeaves(t *testing.T, keeper *extents, gone rdma.ClientID) (changed int) {
	t.Helper()
	var before []uint64
	for turn := range 3 {
		marks, err := keeper.readMarks(0, 0, keeper.most(), keeper.ep.Now()+keeper.timeout)
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
		_, err = keeper.leave(0, gone)
		must(t, err)
	}
	return changed
}

// TestSmallValues: in a pool of small pairs the extents, the marks and what clients have in hand
// take at most three times the bytes of the pairs. With one class each pair takes as much as the
// largest one.
func TestSmallValues(t *testing.T) {
	const n, value, most = 10_000, 40, 3
	for classes, within := range map[bool]bool{true: true, false: false} {
		p, _, err := Size(Shape{Nodes: 1, Records: n, ValueBytes: 1152, Clients: 8})
		must(t, err)
		if !classes {
			p.Classes = 0
		}
		f := memPool(t, 1, p)
		s := storeOn(t, f, Options{})
		live := 0
		for i := range n {
			key := fmt.Appendf(nil, "user%d", i)
			must(t, s.Insert(key, make([]byte, value)))
			live += len(key) + value
		}
		handed, err := s.layout.handed(s.ep, 0)
		must(t, err)
		took := int(handed * s.slab)
		t.Logf("classes: %v: %d bytes of pairs take %d of slabs", classes, live, took)
		if (took <= most*live) != within {
			t.Errorf("classes: %v: %d bytes of pairs take %d", classes, live, took)
		}
		must(t, s.Close())
		judge(t, f)
	}
}

// TestSizesComeAndGo: a pool made for a number of the largest pairs has room for as many of any
// sizes. Four clients fill it with one size, empty it, and fill it with another.
func TestSizesComeAndGo(t *testing.T) {
	const n = 1000
	p, _, err := Size(Shape{Nodes: 1, Records: n, ValueBytes: 1152, Clients: 4})
	must(t, err)
	f := memPool(t, 1, p)
	var stores []*Store
	for range 3 {
		stores = append(stores, storeOn(t, f, Options{}))
	}
	for turn, sizes := range [][]int{{9}, {1152}, {300}, {9, 1152, 100, 600}, {1152}, {20, 40, 80, 150}} {
		for i := range n {
			if err := stores[i%3].Insert(fmt.Appendf(nil, "%d", i), make([]byte, sizes[i%len(sizes)])); err != nil {
				t.Fatalf("turn %d, pair %d: %v", turn, i, err)
			}
		}
		for i := range n {
			must(t, stores[(i+turn)%3].Delete(fmt.Appendf(nil, "%d", i)))
		}
	}
	for _, s := range stores {
		must(t, s.Close())
	}
	r, err := Check(f)
	must(t, err)
	if len(r.Damage)+len(r.Waiting) > 0 {
		t.Errorf("%+v", r)
	}
}

// TestLostClaim: after a claim was cut off, a client frees what its hands name. It has no extents
// of other classes in hand then, as these are freed as well.
func TestLostClaim(t *testing.T) {
	l, v := homestead(t, classed(24), 1)
	x := extentsOn(t, l, v)
	_, err := takeNow(x, 0, 1000)
	must(t, err)
	if x.inHands(0) == 0 {
		t.Fatal("nothing is in hand")
	}
	x.stocks[0].opened = false // as a claim of another class leaves it that was cut off
	_, err = takeNow(x, 0, 100)
	must(t, err)
	r, err := takeNow(x, 0, 1000)
	must(t, err)
	if m := readMark(t, x, r); m != mark(r.stamp, true) {
		t.Errorf("%+v was taken, and its mark is %#x", r, m)
	}
}

func readMark(t *testing.T, x *extents, r ref) (m uint64) {
	t.Helper()
	b := x.ep.Batch()
	defer b.Release()
	op := b.Read(x.markAt(0, r.extent), markBytes)
	must(t, rdma.Do(x.ep, b, time.Second))
	return op.Word(0)
}

// TestVersions: pools without classes have the version that older clients, which know no classes,
// read.
func TestVersions(t *testing.T) {
	for classes, want := range []uint32{OldestVersion, OldestVersion, FormatVersion} {
		p := classed(8)
		p.Classes = classes
		f := memPool(t, 1, p)
		ep, err := f.Open("reader")
		must(t, err)
		h, err := node.ReadHeader(ep, 1)
		if err != nil || h.Version != want {
			t.Errorf("%d classes: version %d, %v", classes, h.Version, err)
		}
		must(t, ep.Close())
	}
}
