package extents

import (
	"errors"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
)

func openExtents(l *table.Layout, ep rdma.Endpoint) *Client {
	return New(l, ep, time.Second)
}

// homestead is a pool in which no verb fails, and which is used outside of simulated runs.
func homestead(t testing.TB, p table.Params, nodes int) (*table.Layout, *sim.Sim) {
	l := lay(t, p, nodes)
	v := sim.New(sim.Options{Nodes: nodes, Memory: l.Bytes, Handler: node.Serve})
	t.Cleanup(func() { v.Close() })
	return l, v
}

func extentsOn(t testing.TB, l *table.Layout, v *sim.Sim) *Client {
	ep, err := v.Open("settler")
	must(t, err)
	return openExtents(l, ep)
}

// takeAll takes extents of a shard until it is full.
func takeAll(t testing.TB, x *Client, shard int) (all []table.Ref) {
	t.Helper()
	for {
		r, err := takeNow(x, shard, 5)
		if errors.Is(err, client.ErrFull) {
			return all
		}
		must(t, err)
		if !x.table.Names(r, 0) {
			t.Fatalf("%+v is none", r)
		}
		all = append(all, r)
	}
}

func write(t testing.TB, x *Client, add func(b *rdma.Batch)) {
	t.Helper()
	b := x.ep.Batch()
	defer b.Release()
	add(b)
	must(t, rdma.Do(x.ep, b, time.Second))
}

// TestTake: every extent of a shard is taken once. It is taken again only after its use has
// ended, with a greater stamp, or after it was given back: such an extent is taken first, with
// the same stamp.
func TestTake(t *testing.T) {
	p := small()
	p.Slabs, p.SlabExtents = 3, 70
	l, v := homestead(t, p, 2)
	x, other := extentsOn(t, l, v), extentsOn(t, l, v)
	all := takeAll(t, x, 1)
	seen := map[uint64]bool{}
	for _, r := range all {
		seen[r.Extent] = true
	}
	if len(seen) != 210 || len(all) != 210 || all[0].Stamp != 1<<16|uint64(x.id) || all[0].Length != 5 {
		t.Fatalf("%d extents, %d different ones, of 210; the first is %+v", len(all), len(seen), all[0])
	}
	if _, err := takeNow(other, 1, 5); !errors.Is(err, client.ErrFull) {
		t.Errorf("another client takes what is not there: %v", err)
	}
	if r, err := takeNow(other, 0, 5); err != nil || r.Stamp>>16 != 1 {
		t.Errorf("another shard is full, too: %v", err)
	}
	x.Give(1, all[7])
	if r, err := takeNow(x, 1, 5); err != nil || r != all[7] {
		t.Errorf("took %+v, want what came to nothing, %+v: %v", r, all[7], err)
	}
	write(t, other, func(b *rdma.Batch) { // the client that replaced them
		l.AddMark(b, 1, all[9])
		l.AddMark(b, 1, all[200])
		l.AddMark(b, 1, table.Ref{Extent: all[30].Extent, Stamp: 7 << 16}) // a use that never was
	})
	x.Ended(1, table.Ref{Extent: all[50].Extent, Stamp: all[50].Stamp}) // a wrong hint: its use goes on
	again := takeAll(t, x, 1)
	if len(again) != 2 || again[0].Extent+again[1].Extent != all[9].Extent+all[200].Extent ||
		again[0].Stamp>>16 != 2 || again[1].Stamp>>16 != 2 {
		t.Errorf("took %+v, want those that were ended, %+v and %+v", again, all[9], all[200])
	}
	write(t, other, func(b *rdma.Batch) { l.AddMark(b, 1, all[9]) }) // late, as the next use has begun
	if again = takeAll(t, x, 1); len(again) > 0 {
		t.Errorf("took %+v, of which the use that ended is not the last one", again)
	}
	if x.stats.Missed == 0 {
		t.Errorf("%+v", x.stats)
	}
}

// claimedIn is how many extents a client has claimed.
func (x *Client) claimedIn(shard int) (n int) {
	for _, of := range x.stocks[shard].of {
		n += len(of.claimed)
	}
	return n
}

// takeNow takes an extent in the time that an operation has.
func takeNow(x *Client, shard, length int) (table.Ref, error) {
	return x.Take(shard, 0, length, x.ep.Now()+x.timeout)
}

// TestUnequalClients: a client that writes no more values does not keep memory from clients that
// do.
func TestUnequalClients(t *testing.T) {
	p, _, err := table.Size(table.Shape{Nodes: 1, Records: 2000, ValueBytes: 100, Clients: 8})
	must(t, err)
	l, v := homestead(t, p, 1)
	var x []*Client
	for range 8 {
		x = append(x, extentsOn(t, l, v))
	}
	var held []table.Ref
	for range 2000 {
		r, err := takeNow(x[0], 0, 5)
		must(t, err)
		held = append(held, r)
	}
	for i := range 20_000 {
		w := x[1+i%7]
		if i > 10_000 { // and then one alone
			w = x[7]
		}
		r, err := takeNow(w, 0, 5)
		if err != nil {
			t.Fatalf("replacement %d: %v", i, err)
		}
		old := &held[i*7919%len(held)]
		write(t, w, func(b *rdma.Batch) { l.AddMark(b, 0, *old) })
		w.Ended(0, *old)
		*old = r
	}
	if s := x[7].stats; s.Scans > 100 {
		t.Errorf("%+v, though it ended as many uses as it began", s)
	}
}

// TestWalk: walk yields the slabs that were handed out, and shows which of their extents are used.
func TestWalk(t *testing.T) {
	p := small()
	l, v := homestead(t, p, 1)
	x := extentsOn(t, l, v)
	a, err := takeNow(x, 2, 5)
	must(t, err)
	write(t, x, func(b *rdma.Batch) { l.AddMark(b, 2, a) })
	slabs, used, over := 0, 0, 0
	must(t, x.Walk(2, func(_ int, marks []uint64) error {
		slabs++
		for _, m := range marks {
			if m&1 != 0 {
				used++
			} else if m > 0 {
				over++
			}
		}
		return nil
	}))
	if slabs != 1 || used != p.SlabExtents-1 || over != 1 {
		t.Errorf("%d slabs, %d extents are used, %d were", slabs, used, over)
	}
}

// TestUnknownOutcome: if a client does not learn that it got a slab, other clients find the slab.
// So it is with a claim.
func TestUnknownOutcome(t *testing.T) {
	p := small()
	for seed := uint64(1); seed <= 100; seed++ {
		l := lay(t, p, 1)
		o := sim.Hostile(seed)
		o.Memory, o.Handler, o.FlyProb = l.Bytes, node.Serve, 0.3
		v := sim.New(o)
		v.Go("settler", func(ep rdma.Endpoint) {
			x := openExtents(l, ep)
			got := takeAll(t, x, 0)[:7]
			for _, r := range got {
				write(t, x, func(b *rdma.Batch) { l.AddMark(b, 0, r) })
				x.Ended(0, r)
			}
			if err := x.claim(0, 0, ep.Now()+1); !errors.Is(err, rdma.ErrTimeout) {
				t.Errorf("a claim that took too long: %v", err)
			}
			if again := takeAll(t, x, 0); len(again) != 7 {
				t.Errorf("seed %d: took %+v, want those that were claimed", seed, again)
			}
			x.timeout = time.Nanosecond
			if _, err := x.grow(1); !errors.Is(err, rdma.ErrTimeout) {
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

// TestDeadNodesExtents: take fails at once for the shards of a dead node.
func TestDeadNodesExtents(t *testing.T) {
	l, v := homestead(t, small(), 2)
	x := extentsOn(t, l, v)
	if _, err := takeNow(x, 0, 1); err != nil {
		t.Fatal(err)
	}
	must(t, v.KillNode(1))
	if _, err := takeNow(x, 1, 1); !errors.Is(err, rdma.ErrNodeDown) {
		t.Errorf("took one of a dead node: %v", err)
	}
	if _, err := takeNow(x, 0, 1); err != nil {
		t.Error(err)
	}
	if _, err := x.Leave(1, 7); !errors.Is(err, rdma.ErrNodeDown) {
		t.Errorf("freed extents of a dead node: %v", err)
	}
}

// TestTakeAllocatesNothing: once a client has its slabs, take allocates nothing, though other
// clients free what it has written.
func TestTakeAllocatesNothing(t *testing.T) {
	l, v := homestead(t, small(), 1)
	x, other := extentsOn(t, l, v), extentsOn(t, l, v)
	var held [70]table.Ref
	for i := range held {
		r, err := takeNow(x, 0, 5)
		must(t, err)
		held[i] = r
	}
	n := 0
	turn := func() {
		n++
		r := &held[n%len(held)]
		b := other.ep.Batch()
		l.AddMark(b, 0, *r)
		err := rdma.Do(other.ep, b, time.Second)
		b.Release()
		if err == nil {
			*r, err = takeNow(x, 0, 5)
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
