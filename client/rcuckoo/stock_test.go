package rcuckoo

import (
	"errors"
	"fmt"
	"math/rand/v2"
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

// TestTake: every extent of a shard is taken once, and again only what came to nothing or has ended: with greater stamps, but for
// what came to nothing, which is the first to be taken.
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
	if len(seen) != 210 || len(all) != 210 || all[0].stamp != 1<<16|uint64(x.id) || all[0].length != 5 {
		t.Fatalf("%d extents, %d different ones, of 210; the first is %+v", len(all), len(seen), all[0])
	}
	if _, err := other.take(1, 5); !errors.Is(err, client.ErrFull) {
		t.Errorf("another client takes what is not there: %v", err)
	}
	if r, err := other.take(0, 5); err != nil || r.stamp>>16 != 1 {
		t.Errorf("another shard is full, too: %v", err)
	}
	x.give(1, all[7])
	if r, err := x.take(1, 5); err != nil || r != all[7] {
		t.Errorf("took %+v, want what came to nothing, %+v: %v", r, all[7], err)
	}
	write(t, other, func(b *rdma.Batch) { // who replaced it
		l.addMark(b, 1, all[9])
		l.addMark(b, 1, all[200])
		l.addMark(b, 1, ref{extent: all[30].extent, stamp: 7 << 16}) // a use that never was
	})
	x.ended(1, ref{extent: all[50].extent, stamp: all[50].stamp}) // which is not so
	again := takeAll(t, x, 1)
	if len(again) != 2 || again[0].extent+again[1].extent != all[9].extent+all[200].extent || again[0].stamp>>16 != 2 || again[1].stamp>>16 != 2 {
		t.Errorf("took %+v, want those that were ended, %+v and %+v", again, all[9], all[200])
	}
	write(t, other, func(b *rdma.Batch) { l.addMark(b, 1, all[9]) }) // late, as the next use has begun
	if again = takeAll(t, x, 1); len(again) > 0 {
		t.Errorf("took %+v, of which the use that ended is not the last one", again)
	}
	if x.stats.Missed == 0 {
		t.Errorf("%+v", x.stats)
	}
}

// TestUnequalClients: who brings nothing into the pool any more keeps nothing of its memory from those who do.
func TestUnequalClients(t *testing.T) {
	p, _, err := Size(Shape{Nodes: 1, Records: 2000, ValueBytes: 100, Clients: 8})
	must(t, err)
	l, v := homestead(t, p, 1)
	var x []*extents
	for range 8 {
		x = append(x, settler(t, l, v))
	}
	var held []ref
	for range 2000 {
		r, err := x[0].take(0, 5)
		must(t, err)
		held = append(held, r)
	}
	for i := range 20_000 {
		w := x[1+i%7]
		if i > 10_000 { // and then one alone
			w = x[7]
		}
		r, err := w.take(0, 5)
		if err != nil {
			t.Fatalf("replacement %d: %v", i, err)
		}
		old := &held[i*7919%len(held)]
		write(t, w, func(b *rdma.Batch) { l.addMark(b, 0, *old) })
		w.ended(0, *old)
		*old = r
	}
	if s := x[7].stats; s.Scans > 100 {
		t.Errorf("%+v, though it ended as many uses as it began", s)
	}
}

// name makes a row of a key name a use, beside what it has.
func name(t testing.TB, x *extents, key []byte, second bool, r ref) {
	t.Helper()
	at := x.place(key)
	n := at.first
	if second {
		n = at.second
	}
	read := x.ep.Batch()
	defer read.Release()
	op := read.Read(x.rowAt(at.shard, n), x.rowBytes)
	must(t, rdma.Do(x.ep, read, time.Second))
	write(t, x, func(b *rdma.Batch) {
		p := row(b.Alloc(x.rowBytes))
		copy(p, op.Buf)
		x.put(p, x.form.free(p), x.named(make([]byte, x.entryBytes), key, r))
		x.seal(p, at.shard, n)
		b.Write(x.rowAt(at.shard, n), p)
	})
}

// TestHands: what a client that is gone had in hand is free, but for what rows name; so are extents in doubt, and those of an
// identity whose next holder comes before it was recovered.
func TestHands(t *testing.T) {
	p := small()
	p.Shards, p.Slabs, p.SlabExtents = 1, 2, 31
	l, v := homestead(t, p, 1)
	x := settler(t, l, v)
	named := map[uint64]bool{}
	use := func(i int) ref {
		r, err := x.take(0, 5)
		must(t, err)
		key := []byte{'k', byte(i)}
		switch i % 5 {
		case 0: // it has not come to writing the value
		case 1: // nor the row
			write(t, x, func(b *rdma.Batch) { l.addValue(b, 0, r, key, []byte("value")) })
		case 2: // whose rows name another use
			write(t, x, func(b *rdma.Batch) { l.addValue(b, 0, r, key, []byte("value")) })
			name(t, x, key, i%2 == 0, ref{r.extent, r.length, r.stamp + 1})
		default:
			write(t, x, func(b *rdma.Batch) { l.addValue(b, 0, r, key, []byte("value")) })
			name(t, x, key, i%2 == 0, r)
			named[r.extent] = true
		}
		return r
	}
	var doubts []ref
	for i := range 25 {
		doubts = append(doubts, use(i))
	}
	keeper := settler(t, l, v)
	for turn, want := range []int{31 - len(named), 0} {
		if n, err := keeper.leave(0, x.id); n != want || err != nil {
			t.Errorf("turn %d: %d extents are freed of a hand, want %d: %v", turn, n, want, err)
		}
	}
	x = openExtents(l, x.ep) // the identity's next holder
	doubts = doubts[:0]
	for i := 25; i < 50; i++ {
		r := use(i)
		doubts = append(doubts, r)
	}
	for _, r := range doubts {
		x.doubt(0, r)
	}
	if n, err := x.leave(0, x.id); err != nil || n != 31-25 {
		t.Errorf("%d extents are given back: %v", n, err)
	}
	for i := 50; i < 60; i++ {
		use(i)
	}
	// It dies, and its identity has another holder, who knows nothing.
	got := takeAll(t, openExtents(l, x.ep), 0)
	for _, r := range got {
		if named[r.extent] {
			t.Errorf("%+v is in use", r)
		}
	}
	if len(got)+len(named) != 62 {
		t.Errorf("%d extents are free and %d in use, of 62", len(got), len(named))
	}
}

// TestWalk: it shows which slabs were handed out, and which extents of them are used.
func TestWalk(t *testing.T) {
	p := small()
	l, v := homestead(t, p, 1)
	x := settler(t, l, v)
	a, err := x.take(2, 5)
	must(t, err)
	write(t, x, func(b *rdma.Batch) { l.addMark(b, 2, a) })
	slabs, used, over := 0, 0, 0
	must(t, x.walk(2, func(_ int, ended, stamps []uint64) error {
		slabs++
		for i := range stamps {
			if stamps[i] != ended[i] {
				used++
			} else if stamps[i] > 0 {
				over++
			}
		}
		return nil
	}))
	if slabs != 1 || used != p.SlabExtents-1 || over != 1 {
		t.Errorf("%d slabs, %d extents are used, %d were", slabs, used, over)
	}
}

// TestUnknownOutcome: a slab that was handed out to a client which was not told so is found, and so is a claim.
func TestUnknownOutcome(t *testing.T) {
	p := small()
	for seed := uint64(1); seed <= 100; seed++ {
		l := lay(t, p, 1)
		o := sim.Hostile(seed)
		o.Memory, o.Handler, o.FlyProb = l.bytes, node.Serve, 0.3
		v := sim.New(o)
		v.Go("settler", func(ep rdma.Endpoint) {
			x := openExtents(l, ep)
			got := takeAll(t, x, 0)[:7]
			for _, r := range got {
				write(t, x, func(b *rdma.Batch) { l.addMark(b, 0, r) })
				x.ended(0, r)
			}
			if err := x.claim(0, ep.Now()); !errors.Is(err, rdma.ErrTimeout) {
				t.Errorf("a claim that took too long: %v", err)
			}
			if again := takeAll(t, x, 0); len(again) != 7 {
				t.Errorf("seed %d: took %+v, want those that were claimed", seed, again)
			}
			x.timeout = time.Nanosecond
			if err := x.grow(1); !errors.Is(err, rdma.ErrTimeout) {
				t.Errorf("a call that took too long: %v", err)
			}
			ep.Sleep(time.Millisecond)
			x.timeout = time.Second
			if got := takeAll(t, x, 1); len(got) != p.Slabs*p.SlabExtents {
				t.Errorf("seed %d: %d of %d extents", seed, len(got), p.Slabs*p.SlabExtents)
			}
		})
		must(t, v.Run())
		must(t, v.Close())
	}
}

// TestOneOwnerOfExtents: no extent has two owners on real processors, though they take what others have ended.
func TestOneOwnerOfExtents(t *testing.T) {
	p := small()
	p.Shards, p.Slabs, p.SlabExtents, p.Clients = 2, 5, 9, 64
	l := lay(t, p, 1)
	f, err := shm.NewMem(shm.Geometry{Nodes: 1, Memory: l.bytes, Clients: 64}, node.Serve)
	must(t, err)
	defer f.Close()
	must(t, node.Commit(f, 0, 0, l.slabs.base))
	owners := make([]atomic.Int32, p.Shards*int(l.allExtents()))
	var missed atomic.Uint64
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
				missed.Add(x.stats.Missed)
			}
			return ep.Close()
		})
	}
	must(t, g.Wait())
	if missed.Load() == 0 {
		t.Error("nobody was ever faster than another one")
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

// sojourn takes extents, ends their uses in any order, and leaves.
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

// TestDeadNodesExtents: a dead node's shards have no extents, which is said at once.
func TestDeadNodesExtents(t *testing.T) {
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
	if _, err := x.leave(1, 7); !errors.Is(err, rdma.ErrNodeDown) {
		t.Errorf("freed extents of a dead node: %v", err)
	}
}

// TestTakeAllocatesNothing once a client has its slabs, though others mark what it has written.
func TestTakeAllocatesNothing(t *testing.T) {
	l, v := homestead(t, small(), 1)
	x, other := settler(t, l, v), settler(t, l, v)
	var held [70]ref
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
	if got := testing.AllocsPerRun(2000, turn); got > 0 || x.stats.Scans < 50 {
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
	suspects := []suspect{{ref: ref{extent: 3, stamp: 1}, at: at, key: key}}
	var idle []ref
	for i, look := range []struct {
		first, second uint64 // versions
		torn          int    // row
		known         bool
	}{{first: 1, second: 1}, {first: 1, second: 2}, {first: 2, second: 2}, {first: 2, second: 2, torn: 1}, {first: 2, second: 2, torn: 2},
		{first: 2, second: 2}, {first: 3, second: 2}, {first: 3, second: 2, known: true}} {
		set(at.first, look.first, look.torn == 1)
		set(at.second, look.second, look.torn == 2)
		var err error
		suspects, idle, err = x.look(0, suspects, idle, x.ep.Now()+time.Second)
		must(t, err)
		if (len(idle) == 1) != look.known || (len(suspects) == 0) != look.known {
			t.Fatalf("look %d: found free: %v, still looked for: %v", i, idle, suspects)
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

// TestCheckOfExtents: what a client has in hand is found waiting, and what nobody has is said to be lost.
func TestCheckOfExtents(t *testing.T) {
	s := storeOn(t, memPool(t, 1, extentPool(1)), Options{})
	for i := range 30 {
		must(t, s.Insert([]byte{byte(i)}, make([]byte, 500)))
	}
	f := s.opt.Pool.(rdma.Fabric)
	in := len(s.extents.stocks[0].hand)
	r, err := Check(f)
	must(t, err)
	if len(r.Damage) > 0 || len(r.Waiting) != in || in == 0 {
		t.Errorf("with %d extents in hand: %+v", in, r)
	}
	n, err := s.extents.leave(0, s.id)
	if r, e := Check(f); err != nil || e != nil || n != in || len(r.Damage)+len(r.Waiting) > 0 {
		t.Errorf("gave %d extents back, of %d: %v; %+v, %v", n, in, err, r, e)
	}
	lost, err := s.extents.take(0, 5)
	must(t, err)
	for _, u := range append(s.extents.stocks[0].hand, lost) { // which its hand does not have
		write(t, s.extents, func(b *rdma.Batch) { s.extents.addHand(b, 0, nil) })
		if u == lost {
			continue
		}
		write(t, s.extents, func(b *rdma.Batch) { s.addMark(b, 0, u) })
	}
	s.extents.stocks[0].hand = nil
	if r, err = Check(f); err != nil || len(r.Damage) != 1 || len(r.Waiting) > 0 {
		t.Errorf("an extent is lost: %+v, %v", r, err)
	}
}

// TestExtentTrips: what a value in an extent takes, once a client has some: a GET that hits one trip more, an UPDATE no more, but
// for a claim now and then; and nothing is allocated.
func TestExtentTrips(t *testing.T) {
	p := extentPool(1)
	p.SlabExtents = 64
	s := storeOn(t, memPool(t, 1, p), Options{})
	key, value := []byte("key"), make([]byte, 500)
	must(t, s.Insert(key, value))
	get := func() error { _, err := s.Get(key); return err }
	update := func() error { return s.Update(key, value) }
	if got := s.costs(t, get, nil); got != (cost{2, 2}) {
		t.Errorf("get: %+v", got)
	}
	best, all := s.costs(t, update, nil), uint64(0)
	const updates = 10 * claimAtOnce
	for range updates {
		c := s.costs(t, update, nil)
		best.trips = min(best.trips, c.trips)
		all += c.trips
	}
	at := s.place(key)
	first, _ := s.lockOf(at.first)
	second, _ := s.lockOf(at.second)
	want := uint64(3) // with the fence behind the lock
	if first != second {
		want++
	}
	if more := all - updates*best.trips; best.trips != want || more > 2*updates/claimAtOnce {
		t.Errorf("an update takes %d trips, want %d, and %d of them %d more", best.trips, want, updates, more)
	}
	for what, f := range map[string]func() error{"get": get, "update": update} {
		if n := testing.AllocsPerRun(500, func() { must(t, f()) }); n != 0 {
			t.Errorf("%s allocates %v times", what, n)
		}
	}
}
