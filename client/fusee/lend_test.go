package fusee

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/fusee/layout"
	"github.com/farkv/farkv/client/fusee/memory"
	"github.com/farkv/farkv/client/fusee/session"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/workloads/check/seeds"
)

// TestLent: clients whose pairs have all sizes fill a pool in turn, until it has refused ten pairs
// for each of them. Then three fifths of its bytes are pairs: what is free in one client's blocks
// is found by the others. Each client is able to DELETE its pairs, and it is so again when the
// pool is filled again.
func TestLent(t *testing.T) {
	const workers, least, most, blocks = 30, 300, 3000, 150
	p := cramped(blocks)
	p.BlockBytes, p.Groups = 8192, 400
	p.RegionBytes = blocks*p.BlockBytes + 4096
	f := simPool(t, 1, p)
	var clients []*Client
	for range workers {
		clients = append(clients, worker2(t, f))
	}
	rng := clients[0].s.Rand()
	for round := range 3 {
		held := make([][]string, workers)
		live := 0
		for full := 0; full < 10*workers; {
			for w, c := range clients {
				name := fmt.Sprintf("%d of %d", len(held[w]), w)
				size := least + rng.IntN(most-least)
				switch err := c.Insert([]byte(name), make([]byte, size)); {
				case errors.Is(err, client.ErrFull):
					full++
				case err != nil:
					t.Fatal(err)
				default:
					held[w] = append(held[w], name)
					live += len(name) + size
				}
			}
		}
		if live < 3*blocks*int(p.BlockBytes)/5 {
			t.Errorf("round %d: the pool is full with %d bytes in %d", round, live, blocks*p.BlockBytes)
		}
		for w, c := range clients {
			for _, name := range held[w] {
				if err := c.Delete([]byte(name)); err != nil {
					t.Fatalf("round %d: delete %s of %d: %v", round, name, len(held[w]), err)
				}
			}
		}
	}
	lent := uint64(0)
	for _, c := range clients {
		lent += c.Stats().Lent
		must(t, c.Close())
	}
	if lent < blocks {
		t.Errorf("%d blocks were lent: this test shows nothing", lent)
	}
	checkClean(t, f)
}

// TestSeldomWriterLeavesRoom: a client that was alone has filled a pool with small pairs and
// deleted them, and its empty blocks rest. It writes once in a while: a pair of their class, or of
// another one; or it only reads. Another client finds room for large pairs after some timeouts.
func TestSeldomWriterLeavesRoom(t *testing.T) {
	const reads = -1
	for _, size := range []int{0, 300, reads} {
		t.Run(fmt.Sprint(size), func(t *testing.T) {
			const blocks, timeouts = 60, 10
			p := cramped(blocks)
			f := simPool(t, 1, p)
			x, y := worker2(t, f), worker2(t, f)
			n := 0
			for ; x.Insert(key(n), nil) == nil; n++ {
			}
			for i := range n {
				must(t, x.Delete(key(i)))
			}
			x.s.Sleep(2 * x.mem.Reclaim.Rest)
			x.mem.TendIdle()
			must(t, x.mem.Vacate(true, 64))
			for i := range timeouts {
				x.s.Sleep(p.Timeout + time.Microsecond)
				if size != reads {
					must(t, x.Insert(fmt.Appendf(nil, "x %d", i), make([]byte, size)))
					continue
				}
				for range memory.TendEvery {
					_, err := x.Get(key(0))
					wantError(t, err, client.ErrNotFound)
				}
			}
			large := 0
			for ; y.Insert(fmt.Appendf(nil, "y %d", large), make([]byte, 1000)) == nil; large++ {
			}
			if want := (blocks - 6) * y.s.Classes.Objects[classOf(y, k, make([]byte, 1000))]; large < want {
				t.Errorf("got %d pairs into a pool that is nearly empty, want %d at least", large, want)
			}
			must(t, x.Close())
			must(t, y.Close())
			checkClean(t, f)
		})
	}
}

// TestAloneClientLends: a client that was alone has filled a pool with pairs of two sizes and
// deleted most of each. It writes pairs of one size once in a while. Another client finds room for
// pairs of the other size, in blocks of which none is empty.
func TestAloneClientLends(t *testing.T) {
	const blocks = 60
	p := cramped(blocks)
	f := simPool(t, 1, p)
	x, y := worker2(t, f), worker2(t, f)
	n := 0
	for ; x.Insert(key(n), make([]byte, 100+n%2*200)) == nil; n++ {
	}
	for i := range n {
		if i%8 > 1 {
			must(t, x.Delete(key(i)))
		}
	}
	for i := range 5 {
		x.s.Sleep(p.Timeout + time.Microsecond)
		must(t, x.Insert(fmt.Appendf(nil, "x %d", i), make([]byte, 300)))
	}
	found := 0
	for ; y.Insert(fmt.Appendf(nil, "y %d", found), make([]byte, 100)) == nil; found++ {
	}
	if want := n / 2; found < want { // some of them in the objects of the larger ones
		t.Errorf("got %d pairs into the room of %d that were deleted, want %d at least", found, n*3/4, want)
	}
	must(t, x.Close())
	must(t, y.Close())
	checkClean(t, f)
}

// TestRoomComesWhileBlocksRest: a client in a full pool waits for its empty blocks to become
// vacant. Meanwhile another one leaves blocks of the class that it needs: it waits no longer.
func TestRoomComesWhileBlocksRest(t *testing.T) {
	p := cramped(16)
	f := simPool(t, 1, p)
	half, full, waits := false, false, false
	until := func(ep rdma.Endpoint, so *bool) {
		for !*so {
			ep.Sleep(100 * time.Microsecond)
		}
	}
	f.Go("waits", func(ep rdma.Endpoint) {
		y, err := Open(ep, Options{})
		must(t, err)
		n, class := 0, classOf(y, key(0), make([]byte, 300))
		for ; n < 7*y.s.Classes.Objects[class]; n++ {
			must(t, y.Insert(key(n), make([]byte, 300)))
		}
		half = true
		until(ep, &full)
		for i := range n {
			must(t, y.Delete(key(i)))
		}
		waits = true
		began := ep.Now()
		must(t, y.Insert(k, make([]byte, 1000)))
		if took := ep.Now() - began; took < p.Timeout/20 || took > p.Timeout/2 {
			t.Errorf("got room after %v, want it after %v at least, and %v at most", took, p.Timeout/20, p.Timeout/2)
		}
		must(t, y.Close())
	})
	f.Go("leaves", func(ep rdma.Endpoint) {
		x, err := Open(ep, Options{})
		must(t, err)
		until(ep, &half)
		n := 0
		for ; x.Insert(fmt.Appendf(nil, "x %d", n), make([]byte, 1000)) == nil; n++ {
		}
		full = true
		until(ep, &waits)
		ep.Sleep(p.Timeout / 10)
		for i := range n {
			must(t, x.Delete(fmt.Appendf(nil, "x %d", i)))
		}
		must(t, x.Close())
	})
	must(t, f.Run())
	checkClean(t, f)
}

// TestLentAfterBlip: a node does not answer a client for a moment when the client lends blocks in a
// full pool. They are lent all the same, and another client finds room in them. step is where: the
// entries of the blocks are known to be as they were, or not.
func TestLentAfterBlip(t *testing.T) {
	for _, step := range []rdma.Step{session.StepMarkFree, session.StepSetBits, session.StepPassOn} {
		t.Run(string(step), func(t *testing.T) {
			f := simPool(t, 1, cramped(15))
			h := &onStep{Endpoint: open2(t, f)}
			x, err := Open(h, Options{})
			must(t, err)
			y := worker2(t, f)
			must(t, y.Insert([]byte("y"), make([]byte, 300)))
			n := 0
			for ; x.Insert(key(n), make([]byte, 1000)) == nil; n++ {
			}
			for i := range n {
				must(t, x.Delete(key(i)))
			}
			x.s.Sleep(2 * x.mem.Reclaim.Rest)
			wantError(t, y.Insert([]byte("large"), make([]byte, 1000)), client.ErrFull)
			h.then = once(step, rdma.ErrNodeDown)
			must(t, x.Insert(key(0), make([]byte, 300)))
			if x.Stats().Lent == 0 {
				t.Fatal("no block was lent: this test shows nothing")
			}
			for i := 1; i < 30 && err == nil; i++ {
				err = x.Insert(key(i), make([]byte, 300))
			}
			if err == nil {
				err = y.Insert([]byte("large"), make([]byte, 1000))
			}
			if err != nil {
				t.Fatalf("got %v, want room in what is free", err)
			}
			must(t, x.Close())
			must(t, y.Close())
			checkClean(t, f)
		})
	}
}

// TestNoBlockIsForgotten: as many pairs fit into a pool where its client has not heard what became
// of a block: of one that it gets, or of one that it makes vacant.
func TestNoBlockIsForgotten(t *testing.T) {
	p := cramped(15)
	p.DataReplicas = 2
	pairs := func(spoil func(x *Client, h *lateCall)) (live int) {
		f := simPool(t, 2, p)
		h := &lateCall{onStep: onStep{Endpoint: open2(t, f)}}
		x, err := Open(h, Options{})
		must(t, err)
		spoil(x, h)
		for full := false; !full; {
			switch err := x.Insert(key(live), make([]byte, 300)); {
			case errors.Is(err, client.ErrFull):
				full = true
			case err == nil:
				live++
			case !errors.Is(err, rdma.ErrTimeout):
				t.Fatal(err)
			}
		}
		must(t, x.Close())
		checkClean(t, f)
		return live
	}
	want := pairs(func(*Client, *lateCall) {})
	for what, spoil := range map[string]func(x *Client, h *lateCall){
		"recorded": func(_ *Client, h *lateCall) { h.proc = node.ProcRecord },
		"vacant": func(x *Client, h *lateCall) {
			must(t, x.Insert(k, make([]byte, 300)))
			must(t, x.Delete(k))
			must(t, x.mem.Drain())
			must(t, x.mem.Vacate(true, 64))
			x.s.Sleep(p.Timeout)
			h.then = once(session.StepPassOn, rdma.ErrTimeout)
			wantError(t, x.mem.Clear(), rdma.ErrTimeout)
		},
	} {
		if got := pairs(spoil); got != want {
			t.Errorf("a block may be %s: got %d pairs into the pool, want %d", what, got, want)
		}
	}
}

// TestLateAllocation: a node allocates a block when its client has given the call up, and has
// looked since which blocks are its own. The client leaves the block when it closes.
func TestLateAllocation(t *testing.T) {
	f := simPool(t, 1, cramped(15))
	h := &lateCall{onStep: onStep{Endpoint: open2(t, f)}, proc: node.ProcAlloc}
	x, err := Open(h, Options{})
	must(t, err)
	wantError(t, x.Insert(k, nil), rdma.ErrTimeout)
	if _, err := x.mem.Ascertain(); err != nil {
		t.Fatal(err)
	}
	must(t, h.land())
	must(t, x.Close())
	if use, err := Usage(f); err != nil || use[3].Count != 0 || use[4].Count != 1 {
		t.Errorf("got %v, %v, want a block to adopt", use, err)
	}
}

// lateCall gives its worker's first call of a procedure up. land executes the call.
type lateCall struct {
	onStep
	proc rdma.Proc
	land func() error
}

func (h *lateCall) Call(n int, r *rdma.Request, within time.Duration) error {
	if r.Proc != h.proc {
		return h.Endpoint.Call(n, r, within)
	}
	q := *r
	h.proc, h.land = 0, func() error { return h.Endpoint.Call(n, &q, within) }
	return fmt.Errorf("call: %w", rdma.ErrTimeout)
}

// TestDeletesFindRoom: clients with pairs of all sizes share a pool that is full most of the time.
// Each keeps an object for its DELETEs, also while it waits for a block of another size class,
// which others may take.
func TestDeletesFindRoom(t *testing.T) {
	seeds.Each(t, 12, deletesFindRoom)
}

func deletesFindRoom(seed uint64) error {
	p := cramped(60)
	p.BlockBytes, p.Timeout, p.Groups = 16<<10, 20*time.Millisecond, 200
	p.RegionBytes = 60*p.BlockBytes + 4096
	l, err := layout.New(p, 1, 1<<40)
	if err != nil {
		return err
	}
	s := sim.New(sim.Options{Seed: seed, Nodes: 1, Memory: l.Bytes, Clients: p.Clients, Handler: node.Serve})
	defer s.Close()
	if err := session.Make(s, p); err != nil {
		return err
	}
	var wrong error
	for w := range 20 {
		s.Go(fmt.Sprint(w), func(ep rdma.Endpoint) {
			if err := insertAndDelete(ep, w); err != nil {
				wrong = fmt.Errorf("client %d: %w", w, err)
			}
		})
	}
	return errors.Join(s.Run(), wrong)
}

// insertAndDelete inserts pairs as the pool has room, and deletes all of them.
func insertAndDelete(ep rdma.Endpoint, number int) error {
	c, err := Open(ep, Options{})
	if err != nil {
		return err
	}
	var held []string
	remove := func() error {
		err := c.Delete([]byte(held[0]))
		held = held[1:]
		return err
	}
	for i := range 100 {
		name := fmt.Sprintf("%d of %d", i, number)
		err := c.Insert([]byte(name), make([]byte, ep.Rand().IntN(7<<10)))
		if err == nil {
			held = append(held, name)
		} else if !errors.Is(err, client.ErrFull) {
			return err
		}
		if len(held) > 0 && (err != nil || ep.Rand().IntN(3) == 0) {
			if err := remove(); err != nil {
				return err
			}
		}
	}
	for len(held) > 0 {
		if err := remove(); err != nil {
			return err
		}
	}
	return c.Close()
}
