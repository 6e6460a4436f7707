package rcuckoo

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/shm"
	"github.com/farkv/farkv/node/rdma/sim"
	"golang.org/x/sync/errgroup"
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

// TestFewLeft: what is found free once is not found again, when it is so little that the client goes on looking.
func TestFewLeft(t *testing.T) {
	p := small()
	p.Shards, p.Slabs, p.SlabExtents = 1, 1, 40
	l, v := homestead(t, p, 1)
	x := settler(t, l, v)
	for i, r := range takeAll(t, x, 0) {
		key := []byte{byte(i)}
		n := l.place(key).first
		write(t, x, func(b *rdma.Batch) {
			l.addValue(b, 0, r, key, []byte("value"))
			if i == 17 {
				l.addMark(b, 0, r)
				return
			}
			read := x.ep.Batch()
			defer read.Release()
			op := read.Read(l.rowAt(0, n), l.rowBytes)
			must(t, rdma.Do(x.ep, read, time.Second))
			p := row(b.Alloc(l.rowBytes))
			copy(p, op.Buf)
			l.put(p, l.free(p), l.named(make([]byte, l.entryBytes), key, r))
			l.seal(p, 0, n)
			b.Write(l.rowAt(0, n), p)
		})
	}
	if got := takeAll(t, openExtents(l, x.ep), 0); len(got) != 1 || got[0].extent != 17 || got[0].stamp != 2 {
		t.Errorf("took %+v, want extent 17", got)
	}
}

// TestLostSlab: a slab that was handed out to a client which was not told so is found again.
func TestLostSlab(t *testing.T) {
	p := small()
	l, v := homestead(t, p, 1)
	w := v.Go("settler", func(ep rdma.Endpoint) {
		x := openExtents(l, ep)
		must(t, x.look(0))
		x.timeout = time.Nanosecond
		if _, err := x.take(0, 1); !errors.Is(err, rdma.ErrTimeout) {
			t.Errorf("a call that took too long: %v", err)
		}
		ep.Sleep(time.Millisecond)
		x.timeout = time.Second
		if got := takeAll(t, x, 0); len(got) != p.Slabs*p.SlabExtents {
			t.Errorf("%d of %d extents", len(got), p.Slabs*p.SlabExtents)
		}
	})
	must(t, v.Run())
	if !w.Finished() {
		t.Error("it has not come to its end")
	}
}

// TestUnmarked: a repairer marks a use that has ended if nobody has, and leaves one alone that is long over.
func TestUnmarked(t *testing.T) {
	word := func(n uint64) *rdma.Op { return &rdma.Op{Buf: le.AppendUint64(nil, n)} }
	for _, c := range []struct {
		mark, stamp uint64
		want        bool
	}{{4, 5, true}, {0, 5, true}, {5, 5, false}, {5, 6, false}, {6, 6, false}, {6, 7, false}} {
		if got := unmarked(word(c.mark), word(c.stamp), ref{stamp: 5}); got != c.want {
			t.Errorf("use 5, with mark %d and stamp %d: %v", c.mark, c.stamp, got)
		}
	}
}

// TestOneOwnerOfExtents: no extent has two owners on real processors, though slabs are left and adopted all the time.
func TestOneOwnerOfExtents(t *testing.T) {
	p := small()
	p.Shards, p.Slabs, p.SlabExtents, p.Clients = 2, 5, 9, 64
	l := lay(t, p, 1)
	f, err := shm.NewMem(shm.Geometry{Nodes: 1, Memory: l.bytes, Clients: 64}, node.Serve)
	must(t, err)
	defer f.Close()
	must(t, node.Commit(f, 0, 0, l.slabs.base))
	owners := make([]atomic.Int32, p.Shards*int(l.allExtents()))
	var adopted atomic.Uint64
	var g errgroup.Group
	for i := range 4 {
		ep, err := f.Open("settler")
		must(t, err)
		g.Go(func() error {
			rng := rand.New(rand.NewPCG(uint64(i), 9))
			for range 300 {
				x := openExtents(l, ep)
				if err := sojourn(x, rng, owners, int32(i+1)); err != nil {
					return err
				}
				adopted.Add(x.stats.Adopted)
			}
			return ep.Close()
		})
	}
	must(t, g.Wait())
	if adopted.Load() == 0 {
		t.Error("nothing was adopted")
	}
	ep, err := f.Open("audit")
	must(t, err)
	defer ep.Close()
	x := openExtents(l, ep)
	for shard := range p.Shards {
		if got := takeAll(t, x, shard); len(got) != int(l.allExtents()) {
			t.Errorf("%d of the %d extents of shard %d are free", len(got), l.allExtents(), shard)
		}
	}
}

// sojourn takes extents, marks them in any order, and leaves.
func sojourn(x *extents, rng *rand.Rand, owners []atomic.Int32, me int32) error {
	type mine struct {
		shard int
		r     ref
	}
	var held []mine
	end := func(i int) error {
		h := held[i]
		held[i] = held[len(held)-1]
		held = held[:len(held)-1]
		if !owners[h.shard*int(x.allExtents())+int(h.r.extent)].CompareAndSwap(me, 0) {
			return fmt.Errorf("extent %+v went to another one", h.r)
		}
		b := x.ep.Batch()
		x.addMark(b, h.shard, h.r)
		err := rdma.Do(x.ep, b, time.Second)
		b.Release()
		if rng.IntN(2) == 0 {
			x.ended(h.shard, h.r)
		}
		return err
	}
	for range rng.IntN(200) {
		if len(held) > 20 || len(held) > 0 && rng.IntN(2) == 0 {
			if err := end(rng.IntN(len(held))); err != nil {
				return err
			}
			continue
		}
		shard := rng.IntN(x.Shards)
		r, err := x.take(shard, 3)
		if errors.Is(err, client.ErrFull) {
			continue
		}
		if err != nil {
			return err
		}
		if !owners[shard*int(x.allExtents())+int(r.extent)].CompareAndSwap(0, me) {
			return fmt.Errorf("extent %+v is another one's", r)
		}
		b := x.ep.Batch()
		x.addValue(b, shard, r, []byte("key"), []byte("val"))
		err = rdma.Do(x.ep, b, time.Second)
		b.Release()
		if err != nil {
			return err
		}
		held = append(held, mine{shard, r})
	}
	for len(held) > 0 {
		if err := end(0); err != nil {
			return err
		}
	}
	for shard := range x.Shards {
		if _, err := x.leave(shard, x.id); err != nil {
			return err
		}
	}
	return nil
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

// TestTwoLooks: that no row names a use is known when two looks find both rows whole, and as they were.
func TestTwoLooks(t *testing.T) {
	p := small()
	p.Shards = 1
	l, v := homestead(t, p, 1)
	x := settler(t, l, v)
	key := []byte("k")
	at := l.place(key)
	if at.first == at.second {
		t.Fatal("the key has one row")
	}
	set := func(n uint32, version uint64, torn bool) {
		write(t, x, func(b *rdma.Batch) {
			r := row(b.Alloc(l.rowBytes))
			clear(r)
			l.put(r, 0, l.inline(make([]byte, l.entryBytes), []byte("other"), nil))
			l.sealAs(r, 0, n, version)
			if torn {
				r[1] ^= 1
			}
			b.Write(l.rowAt(0, n), r)
		})
	}
	s := &slab{stamps: make([]uint64, p.SlabExtents), idle: make([]bool, p.SlabExtents)}
	suspects := []suspect{{i: 3, stamp: 1, at: at, key: key}}
	for i, look := range []struct {
		first, second uint64 // versions
		torn          int    // row
		known         bool
	}{{first: 1, second: 1}, {first: 1, second: 2}, {first: 2, second: 2}, {first: 2, second: 2, torn: 1}, {first: 2, second: 2, torn: 2},
		{first: 2, second: 2}, {first: 3, second: 2}, {first: 3, second: 2, known: true}} {
		set(at.first, look.first, look.torn == 1)
		set(at.second, look.second, look.torn == 2)
		var err error
		suspects, err = x.lookFor(0, s, suspects, x.ep.Now()+time.Second)
		must(t, err)
		if s.idle[3] != look.known || (len(suspects) == 0) != look.known {
			t.Fatalf("look %d: found free: %v, still looked for: %v", i, s.idle[3], suspects)
		}
	}
}

func BenchmarkExtents(b *testing.B) {
	p := small()
	p.SlabExtents, p.ExtentBytes = 256, 1000
	l := lay(b, p, 1)
	f, err := shm.NewMem(shm.Geometry{Nodes: 1, Memory: l.bytes, Clients: 4}, node.Serve)
	must(b, err)
	defer f.Close()
	must(b, node.Commit(f, 0, 0, l.slabs.base))
	ep, err := f.Open("settler")
	must(b, err)
	defer ep.Close()
	x := openExtents(l, ep)
	key, value := []byte("user1234567890"), make([]byte, 1000)
	b.Run("take, write and mark 1 KB", func(b *testing.B) {
		for b.Loop() {
			r, err := x.take(0, len(value))
			if err != nil {
				b.Fatal(err)
			}
			batch := ep.Batch()
			l.addValue(batch, 0, r, key, value)
			l.addMark(batch, 0, r)
			err = rdma.Do(ep, batch, time.Second)
			batch.Release()
			if err != nil {
				b.Fatal(err)
			}
		}
	})
	r, err := x.take(0, len(value))
	must(b, err)
	write(b, x, func(batch *rdma.Batch) { l.addValue(batch, 0, r, key, value) })
	b.Run("read 1 KB", func(b *testing.B) {
		for b.Loop() {
			batch := ep.Batch()
			read := l.addRead(batch, 0, r, key)
			err := rdma.Do(ep, batch, time.Second)
			if _, ok := l.valueOf(read.Buf, 0, r, key); !ok || err != nil {
				b.Fatal(ok, err)
			}
			batch.Release()
		}
	})
}
