package tcp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/memnode"
)

// TestWakeUps has workers wait in every way there is, over connections that are cut at random, for
// as long as it takes. In each round some wait once, so that no worker comes by later that reads
// what they wait for. What would set things right after a while is missing: the links have no
// watch. So a worker that is not woken, or a connection that is not read, stops the test.
// FARKV_LONG=1 takes minutes.
func TestWakeUps(t *testing.T) {
	rounds := 2000
	if os.Getenv("FARKV_LONG") == "1" {
		rounds *= 30
	}
	for _, processors := range []int{1, 2, 4} {
		t.Run(fmt.Sprintf("%d processors", processors), func(t *testing.T) {
			defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(processors))
			newUnwatched(t).run(t, 8, rounds)
		})
	}
}

// unwatched is a fabric with links for verbs that are made again when they break, but have no
// watch.
type unwatched struct {
	*Fabric
	cuts int
}

const unwatchedNodes = 3

func newUnwatched(t *testing.T) *unwatched {
	var addrs []string
	for range unwatchedNodes {
		n, err := memnode.Listen(memnode.Config{Listen: "127.0.0.1:0", Memory: 1 << 20,
			Handler: func(_ rdma.Memory, r *rdma.Request) error {
				r.Ret[0] = r.Arg[0] + 1
				time.Sleep(time.Duration(rand.IntN(50)) * time.Microsecond) // others answer meanwhile
				return nil
			}})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { n.Close() })
		addrs = append(addrs, n.Addr())
	}
	o := control.Options{Addresses: addrs, Lease: control.MaxLease}
	maker, err := Create(o, control.Geometry{Nodes: unwatchedNodes, Memory: 1 << 20, Clients: 64}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { maker.Close() })
	u := &unwatched{Fabric: newFabric(control.New(o, maker.Record()))}
	u.ConnectControl(t.Context())
	for node := range unwatchedNodes {
		u.Link(node).Unwatched = true
	}
	if err := u.ConnectVerbs(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		u.Close()
	})
	return u
}

func (u *unwatched) run(t *testing.T, workers, rounds int) {
	rnd := rand.New(rand.NewPCG(2, 2))
	var all []*driver
	done := make(chan int, workers)
	for i := range workers {
		ep, err := u.Open("worker")
		if err != nil {
			t.Fatal(err)
		}
		w := &driver{Endpoint: ep, t: t, rnd: rand.New(rand.NewPCG(1, uint64(i))), own: uint64(i) * 64,
			turns: make(chan []way)}
		all = append(all, w)
		go func() {
			for ways := range w.turns {
				w.turn(ways[w.rnd.IntN(len(ways))])
				done <- i
			}
			w.check()
			if err := ep.Close(); err != nil {
				t.Error(err)
			}
			done <- i
		}()
	}
	late := time.NewTimer(clientPatience)
	for range rounds {
		var ways []way
		for _, x := range rnd.Perm(int(numWays))[:1+rnd.IntN(2)] {
			ways = append(ways, way(x))
		}
		out := map[int]bool{}
		for _, i := range rnd.Perm(workers)[:1+rnd.IntN(workers)] {
			out[i] = true
			all[i].turns <- ways
		}
		if rnd.IntN(50) == 0 {
			u.cutOne(rnd)
		}
		await(t, late, out, done)
	}
	out := map[int]bool{}
	for i, w := range all {
		out[i] = true
		close(w.turns)
	}
	await(t, late, out, done)
	t.Logf("%d connections were cut", u.cuts)
}

// await waits until all workers that are out are done.
func await(t *testing.T, late *time.Timer, out map[int]bool, done <-chan int) {
	t.Helper()
	late.Reset(clientPatience)
	for len(out) > 0 {
		select {
		case i := <-done:
			delete(out, i)
		case <-late.C:
			p := make([]byte, 1<<20)
			t.Fatalf("workers %v wait for ever\n%s", out, p[:runtime.Stack(p, true)])
		}
	}
}

// cutOne cuts a connection, as its own process does or as its end is seen. One that is down for the
// moment it leaves alone.
func (u *unwatched) cutOne(rnd *rand.Rand) {
	l := u.Link(rnd.IntN(unwatchedNodes))
	why := fmt.Errorf("cut: %w", rdma.ErrNodeDown)
	if rnd.IntN(2) == 0 {
		why = nil // a worker that waits for something over it sees it
	}
	if l.BreakOff(why) {
		u.cuts++
	}
}

// way is one to wait.
type way int

const (
	forOne     way = iota // node
	forAll                // of several nodes
	forFirst              // of several nodes, and then for the others
	inPortions            // with a limit, and again
	later                 // after a pause
	forCall
	numWays
)

// driver is a worker with words of its own, one at each node.
type driver struct {
	rdma.Endpoint
	t          *testing.T
	rnd        *rand.Rand
	own        uint64
	turns      chan []way
	sure, most [unwatchedNodes]uint64 // additions to its words that succeeded, and that were tried
}

// turn adds to some of the words, or calls a node, and waits for that.
func (w *driver) turn(by way) {
	if by == forCall {
		w.call()
		return
	}
	b := w.Batch()
	defer b.Release()
	k := 1
	if by != forOne {
		k += w.rnd.IntN(unwatchedNodes)
	}
	var ops [unwatchedNodes]*rdma.Op
	for _, n := range w.rnd.Perm(unwatchedNodes)[:k] {
		ops[n] = b.FetchAdd(rdma.At(n, w.own), 1)
		w.most[n]++
	}
	if err := w.Post(b); err != nil {
		w.t.Error(err)
	}
	pause := time.Duration(w.rnd.IntN(100)) * time.Microsecond
	switch by {
	case forFirst:
		w.wait(b, 1)
	case inPortions:
		if err := w.Wait(b, rdma.All, pause); err != nil && !errors.Is(err, rdma.ErrTimeout) {
			w.t.Error(err)
		}
	case later:
		w.Sleep(pause)
	}
	w.wait(b, rdma.All)
	for n, op := range ops {
		switch {
		case op == nil:
		case op.Err != nil:
			w.broken(op.Err)
		case op.Result < w.sure[n] || op.Result >= w.most[n]:
			w.t.Errorf("a word is %d after %d additions of %d", op.Result, w.sure[n], w.most[n])
		default:
			w.sure[n]++
		}
	}
}

func (w *driver) call() {
	r := rdma.Request{Arg: [6]uint64{w.own}}
	if err := w.Call(w.rnd.IntN(unwatchedNodes), &r, time.Hour); err != nil {
		w.broken(err)
	} else if r.Ret[0] != w.own+1 {
		w.t.Errorf("a call was answered %d", r.Ret[0])
	}
}

func (w *driver) wait(b *rdma.Batch, n int) {
	if err := w.Wait(b, n, rdma.Forever); err != nil {
		w.t.Error(err)
	}
}

func (w *driver) broken(err error) {
	if !errors.Is(err, rdma.ErrNodeDown) {
		w.t.Errorf("a cut connection ends in %v", err)
	}
	time.Sleep(100 * time.Microsecond) // it is about to be made again
}

// check reads the words at last.
func (w *driver) check() {
	for n := range unwatchedNodes {
		for until := time.Now().Add(clientPatience); ; {
			b := w.Batch()
			op := b.Read(rdma.At(n, w.own), 8)
			if err := w.Post(b); err != nil {
				w.t.Error(err)
			}
			w.wait(b, rdma.All)
			v, err := uint64(0), op.Err
			if err == nil {
				v = binary.LittleEndian.Uint64(op.Buf)
			}
			b.Release()
			if err == nil && (v < w.sure[n] || v > w.most[n]) {
				w.t.Errorf("a word is %d, of %d to %d", v, w.sure[n], w.most[n])
			}
			if err == nil {
				break
			}
			if w.broken(err); time.Now().After(until) {
				w.t.Errorf("node %d does not come back: %v", n, err)
				break
			}
		}
	}
}
