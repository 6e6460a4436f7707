package fusee

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/fusee/layout"
	"github.com/farkv/farkv/client/fusee/session"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/shm"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/workloads/check/teeth"
)

func key(i int) []byte { return fmt.Appendf(nil, "user%d", uint64(i)*0x9e3779b97f4a7c15) }

// sized makes a pool with the parameters that Size returns.
func sized(t testing.TB, s layout.Shape) *shm.Fabric {
	p, bytes, err := layout.Size(s)
	must(t, err)
	f := pool(t, s.Nodes, p)
	if f.Size() > bytes {
		t.Fatalf("Size says %d bytes a node, the pool has %d", bytes, f.Size())
	}
	return f
}

// TestSizedPoolHoldsItsRecords: a pool made for a number of records takes them, in a few clients,
// without being full.
func TestSizedPoolHoldsItsRecords(t *testing.T) {
	for _, n := range []int{1, 10, 1000, 30_000} {
		for _, nodes := range []int{1, 3} {
			t.Run(fmt.Sprintf("%d records on %d nodes", n, nodes), func(t *testing.T) {
				f := sized(t, layout.Shape{Nodes: nodes, Records: uint64(n), PairBytes: 100,
					IndexReplicas: min(2, nodes), DataReplicas: 1, Clients: 8})
				var clients [4]*Client
				for i := range clients {
					clients[i] = worker(t, f, Options{}, nil)
				}
				for i := range n {
					must(t, clients[i%4].Insert(key(i), make([]byte, 80)))
				}
				if r := checkClean(t, f); r.Facts[0].Count != uint64(n) {
					t.Errorf("check counts %d pairs", r.Facts[0].Count)
				}
			})
		}
	}
}

func TestFullIndex(t *testing.T) {
	p := small(3, 2, 2)
	p.Subtables, p.Groups = 1, 2
	f := pool(t, 3, p)
	c := worker(t, f, Options{}, nil)
	n := 0
	for ; ; n++ {
		if err := c.Insert(key(n), []byte("1")); err != nil {
			wantError(t, err, client.ErrFull)
			break
		}
	}
	if n < race.Candidates {
		t.Fatalf("full with %d pairs", n)
	}
	for i := range n {
		must(t, c.Update(key(i), []byte("2")))
	}
	wantError(t, c.Insert(key(n), []byte("1")), client.ErrFull)
	must(t, c.Delete(key(0)))
	checkClean(t, f)
}

// TestFullMemory: a pool without room returns ErrFull and loses nothing. What is deleted makes
// room, for other sizes, too. It runs in virtual time, in which a busy machine takes no part of an
// operation's timeout.
func TestFullMemory(t *testing.T) {
	p := small(3, 2, 2)
	p.RegionBytes, p.Timeout = 64<<10, 100*time.Millisecond
	f := simPool(t, 3, p)
	c := worker2(t, f)
	n := 0
	for ; ; n++ {
		if err := c.Insert(key(n), make([]byte, 300)); err != nil {
			wantError(t, err, client.ErrFull)
			break
		}
	}
	for i := range n {
		if v, err := c.Get(key(i)); err != nil || len(v) != 300 {
			t.Fatal(err)
		}
	}
	for i := range n {
		must(t, c.Delete(key(i)))
	}
	for i := range n / 4 {
		if err := c.Insert(key(n+i), make([]byte, 1000)); err != nil {
			t.Fatalf("%d of %d: %v", i, n, err)
		}
	}
	if c.Stats().Converted == 0 {
		t.Error("no block changed its size class")
	}
	checkClean(t, f)
}

// TestOverwriting: freed memory is used again, by the clients that freed it and by those that come
// later. With $FARKV_LONG it takes 100,000 records and 10 million writes. It runs in virtual time:
// while a worker that the machine has suspended frees nothing, the other one allocates blocks.
func TestOverwriting(t *testing.T) {
	records, writes := 3_000, 60_000
	if os.Getenv("FARKV_LONG") == "1" {
		records, writes = 100_000, 10_000_000
	}
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	const pairBytes, generations, workers = 1024, 5, 2
	p, bytes, err := layout.Size(layout.Shape{Nodes: 3, Records: uint64(records), PairBytes: pairBytes,
		IndexReplicas: 2, DataReplicas: 2, Clients: 16})
	must(t, err)
	f := sim.New(sim.Options{Nodes: 3, Memory: bytes, Clients: 16, Handler: node.Serve})
	defer f.Close()
	must(t, session.Make(f, p))
	value := make([]byte, pairBytes-24)
	for g := range generations {
		var errs [workers]error
		for w := range workers {
			f.Go(fmt.Sprint("worker ", w), func(ep rdma.Endpoint) {
				errs[w] = overwrite(ep, g, w, records, writes/generations/workers, value)
			})
		}
		must(t, errors.Join(f.Run(), errors.Join(errs[:]...)))
	}
	use, err := Usage(f)
	must(t, err)
	blocks := use[3].Count + use[4].Count // of clients, and to adopt
	live := (uint64(records)*uint64(layout.UnitsFor(24, len(value)))*64 + p.BlockBytes - 1) / p.BlockBytes
	t.Logf("%d records fill %d blocks of %d bytes; after %d writes %d are in use",
		records, live, p.BlockBytes, writes, blocks)
	if limit := live + live/2; blocks > limit {
		t.Errorf("%d blocks are in use, more than %d", blocks, limit)
	}
	if r := checkClean(t, f); r.Facts[0].Count != uint64(records) {
		t.Errorf("check counts %d pairs", r.Facts[0].Count)
	}
}

// overwrite is one worker of one generation: the first loads its share.
func overwrite(ep rdma.Endpoint, generation, w, records, writes int, value []byte) error {
	c, err := Open(ep, Options{})
	if err != nil {
		return err
	}
	if generation == 0 {
		for i := w; i < records; i += 2 {
			if err := c.Insert(fmt.Appendf(nil, "user%020d", i), value); err != nil {
				return err
			}
		}
	}
	rng := rand.New(rand.NewPCG(uint64(generation), uint64(w)))
	for n := 0; n < writes; {
		err := c.Update(fmt.Appendf(nil, "user%020d", rng.IntN(records)), value)
		if err == nil {
			n++
		} else if generation > 0 || !errors.Is(err, client.ErrNotFound) { // the other one still loads
			return err
		}
	}
	return c.Close()
}

// TestCrowdedPool: many clients in a pool with little room find what others free, instead of
// returning ErrFull. It runs in virtual time, since how long the others take must not depend on
// the machine.
func TestCrowdedPool(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	const records, workers = 200, 24
	p, bytes, err := layout.Size(layout.Shape{Nodes: 3, Memory: 1000 << 10, Records: records, PairBytes: 1024,
		IndexReplicas: 2, DataReplicas: 2, Clients: 32})
	must(t, err)
	for seed := range uint64(3) {
		s := sim.New(sim.Options{Seed: seed, Nodes: 3, Memory: bytes, Clients: 32, Handler: node.Serve})
		must(t, session.Make(s, p))
		var errs [workers]error
		for w := range workers {
			s.Go(fmt.Sprint("worker ", w), func(ep rdma.Endpoint) { errs[w] = crowd(ep, w, records) })
		}
		must(t, errors.Join(s.Run(), errors.Join(errs[:]...)))
		checkClean(t, s)
		must(t, s.Close())
	}
}

// crowd is a worker: the first two load the pool and have it to themselves for a while, then all
// overwrite it.
func crowd(ep rdma.Endpoint, w, records int) error {
	c, err := Open(ep, Options{CacheBytes: new(1 << 12)})
	if err != nil {
		return err
	}
	value := make([]byte, 1000)
	for i := w; w < 2 && i < records; i += 2 {
		if err := c.Insert(key(i), value); err != nil {
			return err
		}
	}
	if w >= 2 {
		ep.Sleep(50 * time.Millisecond)
	}
	for n := 0; n < 1000 || w < 2 && n < 3000; n++ {
		err := c.Update(key(ep.Rand().IntN(records)), value)
		if err != nil && !(w < 2 && errors.Is(err, client.ErrNotFound)) {
			return err
		}
	}
	return c.Close()
}

// refusal is a pool of which backups have no memory for blocks while it is on. Of more than one
// backup the last has none.
type refusal struct {
	*sim.Sim
	on      bool
	records int
}

func refusing(t *testing.T, p layout.Params) *refusal {
	l, err := layout.New(p, p.DataReplicas, 1<<40)
	must(t, err)
	f := &refusal{on: true}
	f.Sim = sim.New(sim.Options{Nodes: p.DataReplicas, Memory: l.Bytes, Clients: p.Clients,
		Handler: func(m rdma.Memory, r *rdma.Request) error {
			if f.on && r.Proc == node.ProcRecord {
				if f.records++; f.records >= p.DataReplicas-1 {
					return rdma.ErrFull
				}
			}
			return node.Serve(m, r)
		}})
	t.Cleanup(func() { f.Close() })
	must(t, session.Make(f, p))
	return f
}

// TestRefusedBlockStays: a backup has no memory for a block, and the client cannot give it back,
// since the primary does not answer by then. The client knows that the block may be its own, and
// leaves it when it closes.
func TestRefusedBlockStays(t *testing.T) {
	f := refusing(t, small(2, 1, 2))
	h := &away{Endpoint: open2(t, f), n: 1}
	c, err := Open(h, Options{})
	must(t, err)
	if err := c.Insert(k, nil); err == nil || errors.Is(err, client.ErrFull) || !c.mem.Untidy {
		t.Errorf("got %v, untidy is %v", err, c.mem.Untidy)
	}
	h.gone, f.on = false, false
	must(t, c.Insert(k, nil))
	must(t, c.Close())
	checkClean(t, f)
}

// TestRefusedBlockGoesBack: as TestRefusedBlockStays, but the backup has no memory still when the
// master mends the pool, when it recovers the client, and when the client looks what it owns. The
// block is free then, and nothing else waits for it.
func TestRefusedBlockGoesBack(t *testing.T) {
	for _, copies := range []int{2, 3} {
		for _, then := range []string{"mend", "recover", "close"} {
			t.Run(fmt.Sprintf("%s, %d replicas", then, copies), func(t *testing.T) {
				f := refusing(t, small(copies, 1, copies))
				ep, err := f.Open("refused")
				must(t, err)
				h := &away{Endpoint: ep, n: 1}
				c, err := Open(h, Options{})
				must(t, err)
				if err := c.Insert(k, nil); err == nil || !c.mem.Untidy {
					t.Fatalf("got %v, untidy is %v: this test shows nothing", err, c.mem.Untidy)
				}
				h.gone = false
				switch then {
				case "mend":
					nextView(t, f, nil)
				case "recover":
					must(t, f.Revoke(c.s.ID))
					must(t, ep.Close())
					recoverNow(t, f.Sim)
				}
				if then != "recover" {
					wantError(t, c.Delete(k), client.ErrFull) // it has no object for a DELETE
					must(t, c.Close())
				}
				if use, err := Usage(f); err != nil || use[3].Count+use[4].Count > 0 {
					t.Errorf("got %v, %v, want no block in use", use, err)
				}
				checkClean(t, f)
				f.on = false
				must(t, worker2(t, f.Sim).Insert(k, nil))
			})
		}
	}
}

// TestRefusedTakeOver: a backup does not know a block that was left, and has no memory for it. The
// client that would adopt it gives it back, and uses nothing in it.
func TestRefusedTakeOver(t *testing.T) {
	p := cramped(1)
	p.DataReplicas = 2
	f := refusing(t, p)
	f.on = false
	y, leave := life(t, f, Options{})
	must(t, y.Insert(k, nil))
	must(t, y.Delete(k))
	leave()
	m, err := openMaster(open2(t, f))
	must(t, err)
	entry := m.s.Space.Entry(node.Block{}, 1)
	left, err := rdma.ReadWord(m.s.Endpoint, "test", entry, time.Second)
	must(t, err)
	_, err = m.s.Swap("test", entry, left, 0)
	must(t, err)
	f.on = true
	x := worker2(t, f.Sim)
	wantError(t, x.Insert(k, nil), client.ErrFull)
	if use, err := Usage(f); err != nil || use[5].Count != 1 {
		t.Errorf("got %v, %v, want a free block", use, err)
	}
	f.on = false
	must(t, x.Insert(k, []byte("1")))
	must(t, x.Close())
	checkClean(t, f)
}

// TestRefusedNodeBlock: a block of which a node hands out objects stays the node's where a backup
// has no memory for it. The pool is mended all the same.
func TestRefusedNodeBlock(t *testing.T) {
	p := small(2, 1, 2)
	p.NodeCentric = true
	f := refusing(t, p)
	c := worker2(t, f.Sim)
	wantError(t, c.Insert(k, nil), client.ErrFull)
	nextView(t, f, nil)
	if use, err := Usage(f); err != nil || use[3].Count != 1 {
		t.Errorf("got %v, %v, want a block of a node", use, err)
	}
	f.on = false
	must(t, c.Insert(k, nil))
	must(t, c.Close())
	if r, err := Check(f); err != nil || len(r.Damage) > 0 {
		t.Error(r.Damage, err)
	}
}
