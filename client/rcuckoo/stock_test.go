package rcuckoo

import (
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
)

// homestead is a pool in which nothing is in the way of verbs, and which is used outside of runs.
func homestead(t testing.TB, p Params, nodes int) (*layout, *sim.Sim) {
	l := lay(t, p, nodes)
	v := sim.New(sim.Options{Nodes: nodes, Memory: l.bytes, Handler: node.Serve})
	t.Cleanup(func() { v.Close() })
	return l, v
}

func settler(t testing.TB, l *layout, v *sim.Sim) *extents {
	ep, err := v.Open("settler")
	must(t, err)
	return openExtents(l, ep)
}

// takeAll takes extents of a shard until it is full.
func takeAll(t testing.TB, x *extents, shard int) (all []ref) {
	t.Helper()
	for {
		r, err := x.take(shard, 5)
		if errors.Is(err, client.ErrFull) {
			return all
		}
		must(t, err)
		if !x.names(r) {
			t.Fatalf("%+v is none", r)
		}
		all = append(all, r)
	}
}

func write(t testing.TB, x *extents, add func(b *rdma.Batch)) {
	t.Helper()
	b := x.ep.Batch()
	defer b.Release()
	add(b)
	must(t, rdma.Do(x.ep, b, time.Second))
}

// TestTake: a client gets every extent of a shard once, and again only what came to nothing or has ended, with greater stamps: what
// came to nothing at once, and then what has been free for longest.
func TestTake(t *testing.T) {
	p := small()
	p.Slabs, p.SlabExtents = 3, 70
	l, v := homestead(t, p, 2)
	x, other := settler(t, l, v), settler(t, l, v)
	all := takeAll(t, x, 1)
	seen := map[uint64]bool{}
	for _, r := range all {
		seen[r.extent] = true
	}
	if len(seen) != 210 || len(all) != 210 || all[0].stamp != 1 || all[0].length != 5 {
		t.Fatalf("%d extents, %d different ones, of 210; the first is %+v", len(all), len(seen), all[0])
	}
	if _, err := other.take(1, 5); !errors.Is(err, client.ErrFull) {
		t.Errorf("another client takes what is not there: %v", err)
	}
	if r, err := other.take(0, 5); err != nil || r.stamp != 1 {
		t.Errorf("another shard is full, too: %v", err)
	}
	x.give(1, all[7])
	x.give(1, all[7]) // it has it already
	x.ended(1, all[3])
	x.ended(1, ref{all[5].extent, 5, 9})                                    // no use of today's
	write(t, other, func(b *rdma.Batch) { x.addMark(b, 1, all[9]) })        // by who replaced it
	write(t, other, func(b *rdma.Batch) { x.addMark(b, 1, all[200]) })      // so far back
	write(t, other, func(b *rdma.Batch) { x.addMark(b, 1, ref{stamp: 7}) }) // a use that never was
	want := []ref{{all[7].extent, 5, 2}, {all[3].extent, 5, 2}}
	for _, w := range want {
		if r, err := x.take(1, 5); err != nil || r != w {
			t.Errorf("took %+v, want %+v: %v", r, w, err)
		}
	}
	rest := takeAll(t, x, 1)
	slices.SortFunc(rest, func(a, b ref) int {
		return slices.IndexFunc(all, func(r ref) bool { return r.extent == a.extent }) - slices.IndexFunc(all, func(r ref) bool { return r.extent == b.extent })
	})
	if len(rest) != 2 || rest[0] != (ref{all[9].extent, 5, 2}) || rest[1] != (ref{all[200].extent, 5, 2}) {
		t.Errorf("took %+v, want those that were marked, %+v and %+v", rest, all[9], all[200])
	}
}

// TestLeftSlabs: what a client leaves is another's, but for what rows name; and what an identity's last holder did not leave is
// its next holder's, on the same terms.
func TestLeftSlabs(t *testing.T) {
	p := small()
	p.Slabs, p.SlabExtents = 2, 50
	l, v := homestead(t, p, 1)
	x := settler(t, l, v)
	all := takeAll(t, x, 0)
	named := map[uint64]bool{}
	for i, r := range all[:60] {
		key := []byte{'k', byte(i)}
		at := l.place(key)
		if at.shard != 0 {
			continue
		}
		n := []uint32{at.first, at.second}[i%2]
		write(t, x, func(b *rdma.Batch) {
			l.addValue(b, 0, r, key, []byte("value"))
			if i%3 == 0 {
				return // and no row names it
			}
			p := b.Alloc(l.rowBytes)
			clear(p)
			stamp := r
			if i%7 == 0 {
				stamp.stamp++ // another use
			} else {
				named[r.extent] = true
			}
			l.put(p, 2, l.named(make([]byte, l.entryBytes), key, stamp))
			l.seal(p, 0, n)
			b.Write(l.rowAt(0, n), p)
		})
	}
	check := func(y *extents) {
		t.Helper()
		got := takeAll(t, y, 0)
		for _, r := range got {
			if named[r.extent] {
				t.Errorf("%+v was in use", r)
			}
		}
		if len(got)+len(named) != len(all) || len(named) < 5 {
			t.Errorf("%d extents are free and %d in use, of %d", len(got), len(named), len(all))
		}
		if y.stats.Rescued == 0 {
			t.Error("all were marked")
		}
	}
	check(openExtents(l, x.ep)) // the same identity, which knows nothing
	if n, err := x.leave(0, x.id); n != 2 || err != nil {
		t.Errorf("%d slabs left: %v", n, err)
	}
	if n, err := x.leave(0, x.id); n != 0 || err != nil {
		t.Errorf("%d slabs left again: %v", n, err)
	}
	y := settler(t, l, v)
	check(y)
	if y.stats.Adopted != 2 || y.stats.Handed != 0 {
		t.Errorf("%+v", y.stats)
	}
	slabs, free, marked := 0, 0, 0
	must(t, y.walk(0, func(slab int, owner rdma.ClientID, marks, stamps []uint64) error {
		if slabs++; owner != y.id {
			t.Errorf("slab %d belongs to %d, want %d", slab, owner, y.id)
		}
		for i := range marks {
			if stamps[i] == 0 {
				free++
			} else if marks[i] == stamps[i] {
				marked++
			}
		}
		return nil
	}))
	if slabs != 2 || free == 0 || marked != 0 {
		t.Errorf("%d slabs, with %d extents that were never used and %d marked", slabs, free, marked)
	}
}

// TestDeadNodesSlabs: a dead node's shards have no extents, which is said at once.
func TestDeadNodesSlabs(t *testing.T) {
	l, v := homestead(t, small(), 2)
	x := settler(t, l, v)
	if _, err := x.take(0, 1); err != nil {
		t.Fatal(err)
	}
	must(t, v.KillNode(1))
	if _, err := x.take(1, 1); !errors.Is(err, rdma.ErrNodeDown) {
		t.Errorf("took one of a dead node: %v", err)
	}
	if _, err := x.take(0, 1); err != nil {
		t.Error(err)
	}
	if _, err := x.leave(1, x.id); !errors.Is(err, rdma.ErrNodeDown) {
		t.Errorf("left slabs of a dead node: %v", err)
	}
}

// TestTakeAllocatesNothing once a client has its slabs, though others mark what it has written.
func TestTakeAllocatesNothing(t *testing.T) {
	l, v := homestead(t, small(), 1)
	x, other := settler(t, l, v), settler(t, l, v)
	var held [20]ref
	for i := range held {
		r, err := x.take(0, 5)
		must(t, err)
		held[i] = r
	}
	n := 0
	turn := func() {
		n++
		r := &held[n%len(held)]
		b := other.ep.Batch()
		l.addMark(b, 0, *r)
		err := rdma.Do(other.ep, b, time.Second)
		b.Release()
		if err == nil {
			*r, err = x.take(0, 5)
		}
		if err != nil {
			t.Error(err)
		}
	}
	for range 2000 {
		turn()
	}
	if got := testing.AllocsPerRun(2000, turn); got > 0 || x.stats.Scans < 100 {
		t.Errorf("%v allocations a turn, with %d scans", got, x.stats.Scans)
	}
}
