package buffers

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
	"go.uber.org/goleak"
	"golang.org/x/sync/errgroup"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const timeout = time.Second

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func pool(t testing.TB, s *Space, nodes int) *shm.Fabric {
	t.Helper()
	must(t, s.Validate())
	f, err := shm.NewMem(shm.Geometry{Nodes: nodes, Memory: (s.Base + s.Size() + 4095) &^ 4095, Clients: 64},
		node.Serve)
	must(t, err)
	t.Cleanup(func() { f.Close() })
	for n := range nodes {
		must(t, f.Commit(n, s.Base, s.Tables()))
	}
	return f
}

func open(t testing.TB, f rdma.Fabric, s *Space) *Worker {
	t.Helper()
	ep, err := f.Open(t.Name())
	must(t, err)
	t.Cleanup(func() { ep.Close() })
	return s.Open(ep, f.Nodes(), timeout)
}

// TestAddresses: buffers lie behind the words and apart, and the last one ends where the space
// does.
func TestAddresses(t *testing.T) {
	for _, s := range []Space{{Base: 4096, Segments: 3, Buffers: 7, Bytes: 40},
		{Segments: 1, Buffers: MaxBuffers, Bytes: MinBytes}, {Base: 8, Segments: 2, Buffers: 1, Bytes: 64}} {
		must(t, s.Validate())
		next := s.Base + s.Tables()
		for seg := range s.Segments {
			for p := 1; p <= s.Buffers; p++ {
				if at := s.Resolve(1, uint64(seg+10*s.Segments), uint16(p)); at != rdma.At(1, next) {
					t.Fatalf("%+v: buffer %d of segment %d lies at %v, want %#x", s, p, seg, at, next)
				}
				next += uint64(s.Bytes)
			}
		}
		if next != s.Base+s.Size() {
			t.Errorf("%+v ends at %d, its buffers at %d", s, s.Base+s.Size(), next)
		}
		for _, p := range []uint16{0, uint16(min(s.Buffers+1, MaxBuffers)), MaxBuffers} {
			if at := s.Resolve(0, 0, p).Offset(); at < s.Base+s.Tables() || at+uint64(s.Bytes) > s.Base+s.Size() {
				t.Errorf("%+v: pointer %d leads out of it, to %d", s, p, at)
			}
		}
	}
	for _, bad := range []Space{{Segments: 0, Buffers: 1, Bytes: 64}, {Segments: 1, Buffers: 0, Bytes: 64},
		{Segments: 1, Buffers: MaxBuffers + 1, Bytes: 64},
		{Segments: 1, Buffers: 1, Bytes: 24}, {Segments: 1, Buffers: 1, Bytes: 65}, {Base: 4, Segments: 1, Buffers: 1,
			Bytes: 64}, {Segments: 1 << 30, Buffers: MaxBuffers, Bytes: 1 << 20}} {
		if err := bad.Validate(); !errors.Is(err, ErrParams) {
			t.Errorf("%+v: %v", bad, err)
		}
	}
}

// TestFull: a worker gets every buffer once, then ErrFull; what it gives comes back, the oldest
// first.
func TestFull(t *testing.T) {
	s := &Space{Base: 64, Segments: 2, Buffers: 200, Bytes: 48} // no whole number of chunks
	w := open(t, pool(t, s, 2), s)
	var got []uint16
	seen := map[rdma.Addr]bool{}
	for {
		p, at, err := w.Allocate(1, 7)
		if err != nil {
			if !errors.Is(err, client.ErrFull) {
				t.Fatal(err)
			}
			break
		}
		if seen[at] || at != s.Resolve(1, 7, p) || p == 0 {
			t.Fatalf("buffer %d at %v is handed out twice, or lies elsewhere", p, at)
		}
		seen[at] = true
		got = append(got, p)
	}
	if len(got) != s.Buffers {
		t.Errorf("%d of %d buffers", len(got), s.Buffers)
	}
	if _, _, err := w.Allocate(1, 8); err != nil {
		t.Error("another segment is full, too:", err)
	}
	for _, p := range got[:5] {
		w.Give(1, 7, p)
	}
	w.Give(1, 7, 0) // none
	for _, want := range got[:5] {
		p, _, err := w.Allocate(1, 7)
		must(t, err)
		if p != want {
			t.Errorf("buffer %d is used again before %d, which was free for longer", p, want)
		}
	}
}

// TestGivenBack: what a worker has goes to others when it closes, and what it has too much of
// before.
func TestGivenBack(t *testing.T) {
	s := &Space{Segments: 3, Buffers: 1000, Bytes: 40}
	f := pool(t, s, 2)
	x, y := open(t, f, s), open(t, f, s)
	var mine [][3]int
	for n := range 2 * 3 * 900 {
		node, seg := n%2, n/2%3
		p, _, err := x.Allocate(node, uint64(seg))
		must(t, err)
		mine = append(mine, [3]int{node, seg, int(p)})
	}
	if _, _, err := y.Allocate(0, 0); err != nil {
		t.Fatal(err)
	}
	for _, m := range mine {
		x.Give(m[0], uint64(m[1]), uint16(m[2]))
	}
	for _, l := range x.lists {
		if n := l.len() + len(l.out); n > s.mostKept()+2*s.listed() {
			t.Errorf("the worker keeps %d buffers", n)
		}
	}
	fresh := y.Stats().Fresh
	for range 50 {
		_, _, err := y.Allocate(1, 2)
		must(t, err)
	}
	if n := y.Stats().Fresh; n != fresh {
		t.Errorf("%d buffers are new, beside those that were given back", n-fresh)
	}
	for range 850 { // more than are new
		_, _, err := y.Allocate(1, 2)
		must(t, err)
	}
	if y.Stats().Taken == 0 {
		t.Error("nothing was given back")
	}
	must(t, x.Close())
	if n := x.Stats(); n.Lost != 0 {
		t.Errorf("%d buffers are lost", n.Lost)
	}
	free(t, f, s, map[[2]int]int{{1, 2}: 900, {0, 0}: 1})
}

// free expects all buffers of a pool that were handed out to be free, but for so many of a node and
// segment.
func free(t *testing.T, f rdma.Fabric, s *Space, held map[[2]int]int) {
	t.Helper()
	ep, err := f.Open("walk")
	must(t, err)
	defer ep.Close()
	for n := range f.Nodes() {
		for seg := range s.Segments {
			got, err := s.Walk(ep, n, seg, timeout)
			must(t, err)
			w := 0
			if want := held[[2]int{n, seg}]; want > 0 {
				w = want
			}
			// A worker that holds some has the rest of its chunk or bundle, too.
			if left := got.Handed - len(got.Pointers); left < w || w == 0 && left > 0 || left > w+s.mostKept() {
				t.Errorf("node %d, segment %d: %d of %d buffers are free, and %d in use", n, seg, len(got.Pointers),
					got.Handed, w)
			}
		}
	}
}

// TestSameBundleAgain: a worker that has seen a bundle on top does not take it if it was taken and
// given back meanwhile, though the same pointer is there.
func TestSameBundleAgain(t *testing.T) {
	s := &Space{Segments: 1, Buffers: 50, Bytes: 64}
	f := pool(t, s, 1)
	x, y := open(t, f, s), open(t, f, s)
	var mine [4]uint16
	for n := range mine {
		p, _, err := y.Allocate(0, 0)
		must(t, err)
		mine[n] = p
	}
	for _, p := range mine {
		y.Give(0, 0, p)
	}
	l, other := x.list(0, 0), y.list(0, 0)
	must(t, y.push(other))
	y.settle(other)
	must(t, x.look(l, x.Patience()))
	seen := l.top
	if ok, err := y.pop(other); !ok || err != nil {
		t.Fatal(ok, err)
	}
	must(t, y.push(other))
	y.settle(other)
	if other.top.pointer() != seen.pointer() || seen.pointer() == 0 {
		t.Fatalf("bundle %d was on top, and now %d", seen.pointer(), other.top.pointer())
	}
	if ok, err := x.swap(l, 0); ok || err != nil {
		t.Errorf("a bundle that was taken meanwhile is taken again: %v, %v", ok, err)
	}
}

// beaten is the endpoint of a worker that loses its first CASes of a stack: rival changes the stack
// before each.
type beaten struct {
	rdma.Endpoint
	left  int
	rival func()
}

func (e *beaten) Post(b *rdma.Batch) error {
	if b.Op(0).Verb == rdma.CompareSwap && e.left > 0 {
		e.left--
		e.rival()
	}
	return e.Endpoint.Post(b)
}

// TestBeaten: a worker that others beat to a bundle many times takes it all the same, where no
// buffer is new. It gives up when its time is over.
func TestBeaten(t *testing.T) {
	s := &Space{Segments: 1, Buffers: 4, Bytes: MinBytes}
	for _, times := range []int{3 * popAttempts, 1 << 17} {
		patience := 20 * time.Millisecond
		if times == 3*popAttempts { // a machine may stand still for longer than that
			patience = 10 * time.Second
		}
		f := pool(t, s, 1)
		y := open(t, f, s)
		other := y.list(0, 0)
		for range s.Buffers {
			_, _, err := y.Allocate(0, 0)
			must(t, err)
		}
		other.put(1, 2, 3, 4)
		must(t, y.push(other))
		y.settle(other)
		ep, err := f.Open("beaten")
		must(t, err)
		t.Cleanup(func() { ep.Close() })
		x := s.Open(&beaten{Endpoint: ep, left: times, rival: func() {
			if ok, err := y.pop(other); !ok || err != nil {
				t.Error(ok, err)
			}
			must(t, y.push(other))
			y.settle(other)
		}}, 1, patience)
		began := x.ep.Now()
		switch _, _, err = x.Allocate(0, 0); {
		case times == 3*popAttempts:
			must(t, err)
		case !errors.Is(err, client.ErrFull) || x.ep.Now()-began < patience:
			t.Errorf("after %v: %v, want ErrFull after %v", x.ep.Now()-began, err, patience)
		}
	}
}

// owners records which worker has a buffer.
type owners struct {
	*Space
	of    []atomic.Int32
	twice atomic.Int32
}

func own(s *Space, nodes int) *owners {
	return &owners{Space: s, of: make([]atomic.Int32, nodes*s.Segments*(s.Buffers+1))}
}

func (o *owners) slot(node, segment int, p uint16) *atomic.Int32 {
	return &o.of[(node*o.Segments+segment)*(o.Buffers+1)+int(p)]
}

// churn opens a worker again and again, so that buffers go from one to the other.
func (o *owners) churn(me int32, ep rdma.Endpoint, nodes, turns, rounds, most int) error {
	rng := rand.New(rand.NewPCG(uint64(me), 5))
	for range turns {
		if err := o.turn(me, ep, rng, nodes, 1+rng.IntN(rounds), most); err != nil {
			return err
		}
	}
	return nil
}

// turn takes and gives buffers in any order, and fills them while they are its own.
func (o *owners) turn(me int32, ep rdma.Endpoint, rng *rand.Rand, nodes, rounds, most int) error {
	w := o.Open(ep, nodes, timeout)
	type held struct {
		node, segment int
		p             uint16
	}
	var mine []held
	give := func(i int) {
		h := mine[i]
		mine[i] = mine[len(mine)-1]
		mine = mine[:len(mine)-1]
		if !o.slot(h.node, h.segment, h.p).CompareAndSwap(me, 0) {
			o.twice.Add(1)
		}
		w.Give(h.node, uint64(h.segment), h.p)
	}
	for range rounds {
		if len(mine) == most || len(mine) > 0 && rng.IntN(2) == 0 {
			give(rng.IntN(len(mine)))
			continue
		}
		h := held{node: rng.IntN(nodes), segment: rng.IntN(o.Segments)}
		p, at, err := w.Allocate(h.node, uint64(h.segment))
		if errors.Is(err, client.ErrFull) {
			continue
		}
		if err != nil {
			return err
		}
		h.p = p
		mine = append(mine, h)
		if !o.slot(h.node, h.segment, p).CompareAndSwap(0, me) {
			o.twice.Add(1)
		}
		b := ep.Batch()
		content := b.Alloc(o.Bytes)
		for i := range content {
			content[i] = byte(me)
		}
		b.Write(at, content)
		err = rdma.Do(ep, b, timeout)
		b.Release()
		if err != nil {
			return err
		}
	}
	for len(mine) > 0 {
		give(0)
	}
	if err := w.Close(); err != nil {
		return err
	}
	if n := w.Stats(); n.Lost > 0 {
		return fmt.Errorf("%+v", n)
	}
	return nil
}

// TestOneOwner: no buffer has two owners, and all are free when all workers are gone, on real
// processors.
func TestOneOwner(t *testing.T) {
	s := &Space{Segments: 2, Buffers: 150, Bytes: 40}
	f := pool(t, s, 2)
	o := own(s, 2)
	var g errgroup.Group
	for i := range 6 {
		ep, err := f.Open("worker")
		must(t, err)
		g.Go(func() error { return errors.Join(o.churn(int32(i+1), ep, 2, 500, 100, 60), ep.Close()) })
	}
	must(t, g.Wait())
	if n := o.twice.Load(); n > 0 {
		t.Errorf("buffers had two owners %d times", n)
	}
	free(t, f, s, nil)
}

// TestOneOwnerInVirtualTime is TestOneOwner where verbs are torn, late and reordered, and clients
// die at any: what those leave is bounded.
func TestOneOwnerInVirtualTime(t *testing.T) {
	s := &Space{Segments: 1, Buffers: 40, Bytes: MinBytes}
	lost := 0
	for seed := uint64(1); seed <= 60; seed++ {
		o := sim.Hostile(seed)
		o.Nodes, o.Memory, o.Handler = 2, s.Size(), node.Serve
		v := sim.New(o)
		owned := own(s, 2)
		dead := 0
		rng := rand.New(rand.NewPCG(seed, 6))
		for i := range 4 {
			w := v.Go(fmt.Sprintf("worker %d", i), func(ep rdma.Endpoint) {
				if err := owned.churn(int32(i+1), ep, 2, 20, 40, 12); err != nil && dead == 0 {
					t.Errorf("seed %d: %v", seed, err)
				}
			})
			if seed%2 == 0 && i < 2 {
				v.CrashAt(w, rng.Uint64N(600))
				dead++
			}
		}
		must(t, v.Run())
		if n := owned.twice.Load(); n > 0 {
			t.Errorf("seed %d: buffers had two owners %d times", seed, n)
		}
		if dead == 0 {
			free(t, v, s, nil)
		} else {
			lost += leaked(t, v, s, dead)
		}
		v.Close()
		if t.Failed() {
			t.FailNow()
		}
	}
	if lost == 0 {
		t.Error("no worker that died had a buffer")
	}
}

func leaked(t *testing.T, f rdma.Fabric, s *Space, dead int) (lost int) {
	t.Helper()
	ep, err := f.Open("walk")
	must(t, err)
	defer ep.Close()
	for n := range 2 {
		for seg := range s.Segments {
			got, err := s.Walk(ep, n, seg, timeout)
			must(t, err)
			left := got.Handed - len(got.Pointers)
			lost += left
			if bound := dead * (12 + s.mostKept() + s.listed() + 1); left > bound {
				t.Errorf("%d dead clients had %d buffers of a segment, at most %d are allowed", dead, left, bound)
			}
		}
	}
	return lost
}

// TestDamagedStack: a stack that is none is said to be, and nothing of it is handed out.
func TestDamagedStack(t *testing.T) {
	s := &Space{Segments: 1, Buffers: 50, Bytes: 64}
	f := pool(t, s, 1)
	w := open(t, f, s)
	b := w.ep.Batch()
	b.CompareSwap(s.top(0, 0), 0, 7) // no client wrote that bundle
	must(t, rdma.Do(w.ep, b, timeout))
	b.Release()
	if _, _, err := w.Allocate(0, 0); !errors.Is(err, client.ErrDamaged) {
		t.Errorf("got %v", err)
	}
	if _, err := s.Walk(w.ep, 0, 0, timeout); err != nil { // which took it off
		t.Error(err)
	}
}

// TestDeadNode: a node that is dead hands nothing out and takes nothing back, and keeps no worker
// from closing.
func TestDeadNode(t *testing.T) {
	s := &Space{Segments: 1, Buffers: 50, Bytes: 64}
	f := pool(t, s, 2)
	w := open(t, f, s)
	for n := range 2 {
		p, _, err := w.Allocate(n, 0)
		must(t, err)
		w.Give(n, 0, p)
	}
	must(t, f.KillNode(0))
	for range 10 {
		if _, _, err := w.Allocate(0, 0); err != nil && !errors.Is(err, rdma.ErrNodeDown) {
			t.Error(err)
		}
	}
	must(t, w.Close())
	if n := w.Stats(); n.Given == 0 {
		t.Errorf("%+v", n)
	}
}

// TestNoAllocations: taking and giving makes none, once the lists are there.
func TestNoAllocations(t *testing.T) {
	s := &Space{Segments: 4, Buffers: 1000, Bytes: 64}
	w := open(t, pool(t, s, 3), s)
	var held [12]uint16
	round := func() {
		for i := range held {
			p, _, err := w.Allocate(i%3, uint64(i))
			must(t, err)
			w.Give(i%3, uint64(i), held[i])
			held[i] = p
		}
	}
	for range 200 {
		round()
	}
	if n := testing.AllocsPerRun(200, round); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestCloseIsBounded: Close waits for silent nodes for one timeout, however many segments of theirs
// the worker has buffers of, and gives the other nodes' buffers back.
func TestCloseIsBounded(t *testing.T) {
	s := &Space{Segments: 5, Buffers: 100, Bytes: 64}
	f := sim.New(sim.Options{Nodes: 3, Memory: (s.Base + s.Size() + 4095) &^ 4095, Handler: node.Serve,
		NodeTimeout: time.Hour})
	defer f.Close()
	draw := func(w *Worker) {
		for n := range 15 {
			p, _, err := w.Allocate(n%3, uint64(n))
			must(t, err)
			w.Give(n%3, uint64(n), p)
		}
	}
	f.Go("client", func(ep rdma.Endpoint) {
		w, other := s.Open(ep, 3, timeout), s.Open(ep, 3, timeout)
		draw(w)
		draw(other)
		must(t, other.Close()) // the client does not know the stacks, and its first CASes fail
		must(t, f.KillNode(0))
		must(t, f.KillNode(1))
		began := f.Now()
		must(t, w.Close())
		if took := f.Now() - began; took > timeout+time.Millisecond {
			t.Errorf("it took %v, and the timeout is %v", took, timeout)
		}
		if n := w.Stats(); n.Given != uint64(5*s.chunk()) || n.Lost != uint64(10*s.chunk()) {
			t.Errorf("%+v", n)
		}
	})
	must(t, f.Run())
}
