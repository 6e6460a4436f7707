package shm

import (
	"errors"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/farkv/farkv/node/rdma"
)

func add(at rdma.Addr) func(b *rdma.Batch) *rdma.Op {
	return func(b *rdma.Batch) *rdma.Op { return b.FetchAdd(at, 1) }
}

func TestLostConnectionSaysSince(t *testing.T) {
	_, e := newMem(t)
	_, first := do(t, e, func(b *rdma.Batch) *rdma.Op { return b.FetchAdd(rdma.At(0, 12), 1) })
	_, later := do(t, e, add(rdma.At(0, 0)))
	if !errors.Is(later, rdma.ErrAccess) || !strings.Contains(later.Error(), "down since "+first.Error()) {
		t.Fatalf("first %v, later %v", first, later)
	}
	if err := e.Call(0, &rdma.Request{}, time.Second); err == nil {
		t.Fatal("a call passed the broken connection")
	}
	_, beyond := do(t, e, add(rdma.At(99, 0)))
	if !errors.Is(beyond, rdma.ErrAccess) {
		t.Fatalf("no such node: %v", beyond)
	}
}

func TestUnknownVerb(t *testing.T) {
	_, e := newMem(t)
	for _, v := range []rdma.Verb{0, rdma.Append + 1, 255} {
		_, err := do(t, e, func(b *rdma.Batch) *rdma.Op {
			op := b.FetchAdd(rdma.At(0, 0), 1)
			op.Verb = v
			return op
		})
		if !errors.Is(err, rdma.ErrNotSupported) {
			t.Fatalf("verb %d: %v", v, err)
		}
	}
}

func TestKillNode(t *testing.T) {
	f, e := newMem(t)
	if err := f.KillNode(1); err != nil {
		t.Fatal(err)
	}
	if !f.NodeDown(1) || f.NodeDown(0) {
		t.Fatal("the wrong node is down")
	}
	if _, err := do(t, e, add(rdma.At(1, 0))); !errors.Is(err, rdma.ErrNodeDown) {
		t.Fatalf("verb to a dead node: %v", err)
	}
	if _, err := do(t, e, add(rdma.At(0, 0))); err != nil {
		t.Fatalf("verb to a live node: %v", err)
	}
	if err := f.KillNode(3); !errors.Is(err, rdma.ErrAccess) {
		t.Fatalf("kill of a node that is not there: %v", err)
	}
}

// TestKillNodeWithBusyClients kills a node while workers post without a pause: KillNode must not
// wait for one.
func TestKillNodeWithBusyClients(t *testing.T) {
	f, _ := newMem(t)
	var stop atomic.Bool
	var all sync.WaitGroup
	for range 2 {
		e, err := f.Open("busy")
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			defer e.Close()
			for !stop.Load() {
				if _, err := do(t, e, func(b *rdma.Batch) *rdma.Op { return b.Read(rdma.At(0, 0), 4096) }); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 100 {
		if err := f.KillNode(1); err != nil {
			t.Error(err)
		}
	}
	stop.Store(true)
	all.Wait()
}

// forget forgets the client that has an identity.
func forget(f *Fabric, c rdma.ClientID) error {
	for _, h := range f.Clients() {
		if h.ID == c {
			return f.Forget(h)
		}
	}
	return f.Forget(rdma.Client{ID: c})
}

func TestRevokedClient(t *testing.T) {
	f, e := newMem(t)
	other, err := f.Open("other")
	if err != nil {
		t.Fatal(err)
	}
	at := rdma.At(0, 0)
	if _, err := do(t, other, add(rdma.At(1, 0))); err != nil {
		t.Fatal(err)
	}
	if err := f.Revoke(other.Client()); err != nil {
		t.Fatal(err)
	}
	if _, err := do(t, other, add(at)); !errors.Is(err, rdma.ErrRevoked) {
		t.Fatalf("verb: %v", err)
	}
	if got, err := do(t, e, add(at)); got != 0 || err != nil {
		t.Fatalf("the word is %d, %v", got, err)
	}
	if err := forget(f, other.Client()); !errors.Is(err, rdma.ErrHeld) {
		t.Fatalf("forget before close: %v", err)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	if all := f.Clients(); len(all) != 2 || all[1].Alive || !all[0].Alive {
		t.Fatalf("clients: %+v", all)
	}
	if err := forget(f, other.Client()); err != nil {
		t.Fatal(err)
	}
	successor, err := f.Open("successor")
	if err != nil || successor.Client() != other.Client() {
		t.Fatalf("successor: %v", err)
	}
	defer successor.Close()
	if _, err := do(t, successor, add(at)); err != nil {
		t.Fatalf("the successor of a revoked client is revoked: %v", err)
	}
	for _, c := range []rdma.ClientID{0, 5} {
		if err := errors.Join(f.Revoke(c), forget(f, c)); !errors.Is(err, rdma.ErrAccess) {
			t.Fatalf("client %d: %v", c, err)
		}
	}
}

func TestCalls(t *testing.T) {
	fail := errors.New("no")
	h := func(m rdma.Memory, r *rdma.Request) error {
		if r.Proc == 9 {
			return fail
		}
		m.FetchAdd(8, r.Arg[0])
		m.CompareSwap(16, 0, uint64(r.Client))
		r.Ret = [6]uint64{m.Load(8), uint64(m.Node()), m.Size()}
		return m.Commit(0, m.Size())
	}
	f, err := NewMem(Geometry{Nodes: 2, Memory: 4096, Clients: 2}, h)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	e, err := f.Open("caller")
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	r := rdma.Request{Proc: 1, Arg: [6]uint64{5}}
	if err := e.Call(1, &r, time.Second); err != nil || r.Ret != [6]uint64{5, 1, 4096} || r.Client != e.Client() {
		t.Fatalf("call: %v, %+v", err, r)
	}
	if got, err := do(t, e, add(rdma.At(1, 16))); got != uint64(e.Client()) || err != nil {
		t.Fatalf("what the call wrote: %d, %v", got, err)
	}
	if err := e.Call(0, &rdma.Request{Proc: 9}, time.Second); !errors.Is(err, fail) {
		t.Fatalf("failing procedure: %v", err)
	}
	if err := f.KillNode(0); err != nil {
		t.Fatal(err)
	}
	if err := e.Call(0, &r, time.Second); !errors.Is(err, rdma.ErrNodeDown) {
		t.Fatalf("dead node: %v", err)
	}
	if err := f.Revoke(e.Client()); err != nil {
		t.Fatal(err)
	}
	if err := e.Call(1, &r, time.Second); !errors.Is(err, rdma.ErrRevoked) {
		t.Fatalf("revoked: %v", err)
	}
}

func TestCloseStopsTasks(t *testing.T) {
	f, err := NewMem(Geometry{Nodes: 1, Memory: 4096, Clients: 3}, nil)
	if err != nil {
		t.Fatal(err)
	}
	e, err := f.Open("parent")
	if err != nil {
		t.Fatal(err)
	}
	var ended atomic.Int32
	begun := make(chan struct{}, 2)
	for _, pause := range []time.Duration{0, time.Hour} {
		err := e.Go("task", func(own rdma.Endpoint) {
			begun <- struct{}{}
			for {
				own.Sleep(pause)
				if _, err := do(t, own, add(rdma.At(0, 0))); err != nil {
					if !errors.Is(err, rdma.ErrClosed) {
						t.Error(err)
					}
					ended.Add(1)
					return
				}
			}
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := e.Go("one too many", func(rdma.Endpoint) {}); !errors.Is(err, rdma.ErrFull) {
		t.Fatalf("task without a free identity: %v", err)
	}
	<-begun
	<-begun
	if err := f.Close(); err != nil || ended.Load() != 2 {
		t.Fatalf("close: %v, %d tasks ended", err, ended.Load())
	}
	if _, err := do(t, e, add(rdma.At(0, 0))); !errors.Is(err, rdma.ErrClosed) {
		t.Fatalf("post behind close: %v", err)
	}
	if err := e.Go("late", func(rdma.Endpoint) {}); !errors.Is(err, rdma.ErrClosed) {
		t.Fatalf("task behind close: %v", err)
	}
	if f.Close() != nil || e.Close() != nil || e.Close() != nil {
		t.Fatal("closing again is an error")
	}
}

// TestUnclosedEndpointsLeakNothing leaves endpoints open, as tests of crashes do: the mapping goes
// with the last of them, once it is not reachable.
func TestUnclosedEndpointsLeakNothing(t *testing.T) {
	gone := make(chan struct{}, 1)
	func() {
		f, err := NewMem(Geometry{Nodes: 1, Memory: 4096, Clients: 1}, nil)
		if err != nil {
			t.Fatal(err)
		}
		e, err := f.Open("crashed")
		if err != nil {
			t.Fatal(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
		if n := f.Clients(); len(n) != 1 {
			t.Fatalf("clients: %+v", n)
		}
		f.cleanup.Stop()
		f.cleanup = runtime.AddCleanup(f, func(m []byte) {
			if err := unix.Munmap(m); err != nil {
				t.Error(err)
			}
			gone <- struct{}{}
		}, f.mapping)
		runtime.KeepAlive(e)
	}()
	for range 100 {
		runtime.GC()
		select {
		case <-gone:
			return
		case <-time.After(10 * time.Millisecond):
		}
	}
	t.Fatal("the mapping is still there")
}

func TestSleep(t *testing.T) {
	_, e := newMem(t)
	for _, d := range []time.Duration{0, time.Microsecond, 20 * time.Microsecond, time.Millisecond} {
		before := e.Now()
		e.Sleep(d)
		if slept := e.Now() - before; slept < d {
			t.Errorf("slept %v instead of %v", slept, d)
		}
	}
}

func TestRandDerivesFromTheSeed(t *testing.T) {
	draw := func(seed uint64) (drawn [2]uint64) {
		f, _ := newMem(t)
		f.Seed = seed
		for i := range drawn { // one after the other, with the same identity
			e, err := f.Open("dice")
			if err != nil {
				t.Fatal(err)
			}
			drawn[i] = e.Rand().Uint64()
			e.Close()
		}
		return drawn
	}
	one := draw(1)
	if one != draw(1) || one == draw(2) || one[0] == one[1] {
		t.Errorf("workers of seed 1 drew %x, then %x; of seed 2 %x", one, draw(1), draw(2))
	}
}

func TestGeometryIsChecked(t *testing.T) {
	for _, g := range []Geometry{
		{}, {Nodes: 1, Memory: 4096}, {Nodes: 1, Clients: 1}, {Memory: 4096, Clients: 1},
		{Nodes: MaxNodes + 1, Memory: 4096, Clients: 1}, {Nodes: 1, Memory: 4097, Clients: 1},
		{Nodes: 1, Memory: MaxMemory + 8, Clients: 1}, {Nodes: 1, Memory: 4096, Clients: MaxClients + 1},
	} {
		if f, err := NewMem(g, nil); err == nil {
			f.Close()
			t.Errorf("%+v was accepted", g)
		}
	}
}

func TestNothingIsAllocatedABatch(t *testing.T) {
	_, e := newMem(t)
	n := testing.AllocsPerRun(1000, func() {
		if _, err := do(t, e, func(b *rdma.Batch) *rdma.Op { return b.Read(rdma.At(0, 0), 1024) }); err != nil {
			t.Fatal(err)
		}
	})
	if n != 0 {
		t.Fatalf("%v allocations a batch", n)
	}
}

// Of two workers on one processor the other one runs within yieldEvery trips, and not only when a
// time slice ends. An endpoint that is closed is no worker any more.
func TestWorkersYield(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	f, e := newMem(t)
	before := workers.Load()
	other, err := f.Open("other")
	if err != nil {
		t.Fatal(err)
	}
	var ran atomic.Bool
	go ran.Store(true)
	for range yieldEvery {
		if _, err := do(t, e, add(rdma.At(0, 0))); err != nil {
			t.Fatal(err)
		}
	}
	if !ran.Load() {
		t.Errorf("the other worker did not run within %d trips", yieldEvery)
	}
	for range 2 {
		if err := other.Close(); err != nil {
			t.Error(err)
		}
	}
	if n := workers.Load(); n != before {
		t.Errorf("%d workers behind Close, %d before Open", n, before)
	}
}
