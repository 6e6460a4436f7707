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
)

// Tests of the owners of blocks, objects and numbers when clients come, go, wait and fall behind.

// cramped is a pool of so few blocks that clients must share them.
func cramped(blocks int) layout.Params {
	p := small(1, 1, 1)
	p.BlockBytes, p.Regions, p.Timeout = 4096, 1, 100*time.Millisecond
	p.RegionBytes = uint64(blocks)*4096 + 4096
	return p
}

// life opens a client and its endpoint, which the caller closes.
func life(t *testing.T, f rdma.Fabric, o Options) (*Client, func()) {
	ep, err := f.Open("life")
	must(t, err)
	c, err := Open(ep, thrifty(o))
	must(t, err)
	return c, func() {
		must(t, c.Close())
		must(t, ep.Close())
	}
}

// A departed client's block that was empty when its bitmap was read is adopted, used and left by
// another client before the CAS that would make it this one's.
func TestBlockIsLeftAgain(t *testing.T) {
	t.Run("another class", func(t *testing.T) {
		f := pool(t, 1, cramped(2))
		y, leave := life(t, f, Options{})
		must(t, y.Insert([]byte("y"), nil))
		z := worker(t, f, Options{}, nil)
		must(t, z.Insert([]byte("z"), nil))
		must(t, y.Delete([]byte("y")))
		leave()
		var h *hooked
		x := worker(t, f, Options{}, func(ep rdma.Endpoint) rdma.Endpoint { h = &hooked{Endpoint: ep}; return h })
		h.beforeCAS(1, func() {
			w, leave := life(t, f, Options{})
			must(t, w.Insert(k, []byte("1")))
			leave()
		})
		wantError(t, x.Insert([]byte("big"), make([]byte, 1000)), client.ErrFull)
		wantValue(t, x, "key", "1")
		checkClean(t, f)
	})
	t.Run("its own class", func(t *testing.T) {
		f := pool(t, 1, small(1, 1, 1))
		y, leave := life(t, f, Options{})
		must(t, y.Insert([]byte("y"), nil))
		must(t, y.Delete([]byte("y")))
		leave()
		var h *hooked
		x := worker(t, f, Options{}, func(ep rdma.Endpoint) rdma.Endpoint { h = &hooked{Endpoint: ep}; return h })
		h.beforeCAS(1, func() {
			w, leave := life(t, f, Options{})
			for i := range 130 {
				must(t, w.Insert(fmt.Appendf(nil, "%d", i), nil))
			}
			leave()
		})
		must(t, x.Insert(k, []byte("1")))
		checkClean(t, f)
	})
}

// unheard executes its worker's first batch of a step, and says that the node did not answer.
type unheard struct {
	rdma.Endpoint
	step rdma.Step
	then func()
}

func (d *unheard) Post(b *rdma.Batch) error {
	if b.Step() != d.step || b.Len() == 0 {
		return d.Endpoint.Post(b)
	}
	d.step = ""
	done := d.Endpoint.Batch()
	defer done.Release()
	for i := range b.Len() {
		done.CompareSwap(b.Op(i).Addr, b.Op(i).Expect, b.Op(i).Value)
	}
	if err := rdma.Do(d.Endpoint, done, time.Second); err != nil {
		return err
	}
	d.then()
	return &rdma.OpError{Verb: rdma.CompareSwap, Addr: b.Op(0).Addr, Len: 8, Err: rdma.ErrNodeDown}
}

// A client that leaves blocks does not know whether their entries have changed, and another client
// has adopted and filled one of them meanwhile. The first client does not mark its objects again.
func TestBlockIsLeftOnce(t *testing.T) {
	f := simPool(t, 1, cramped(1))
	y := worker(t, f, Options{}, nil)
	ep := &unheard{open2(t, f), session.StepPassOn, func() { must(t, y.Insert(k, []byte("1"))) }}
	x, err := Open(ep, Options{})
	must(t, err)
	must(t, x.Insert([]byte("x"), nil))
	must(t, x.Delete([]byte("x")))
	must(t, x.Close())
	wantValue(t, y, "key", "1")
	must(t, y.Insert([]byte("another"), []byte("2")))
	wantValue(t, y, "key", "1")
	checkClean(t, f)
}

// The same, and the client itself adopts the block: what it knew of the block before is void.
func TestBlockIsLeftAndAdopted(t *testing.T) {
	f := simPool(t, 1, cramped(1))
	y := worker(t, f, Options{}, nil)
	x, err := Open(&unheard{open2(t, f), session.StepPassOn, func() {}}, Options{})
	must(t, err)
	must(t, x.Insert([]byte("x"), nil))
	must(t, x.Delete([]byte("x")))
	must(t, x.mem.Drain())
	s := &x.mem.Holdings.Slabs[classOf(x, k, nil)]
	x.mem.Part(s.Split(s.Blocks[0]))
	wantError(t, x.mem.LeaveParting(), rdma.ErrNodeDown)
	must(t, x.Insert(k, []byte("1")))
	must(t, x.Close())
	wantValue(t, y, "key", "1")
	must(t, y.Insert([]byte("another"), []byte("2")))
	wantValue(t, y, "key", "1")
	checkClean(t, f)
}

// A client that has filled a pool can empty it, whatever the size of its pairs.
func TestFullPoolIsEmptied(t *testing.T) {
	for _, size := range []int{100, 1000, 1900, 3900} {
		f := pool(t, 1, cramped(15))
		c := worker(t, f, Options{}, nil)
		n := 0
		for ; c.Insert(key(n), make([]byte, size)) == nil; n++ {
		}
		for i := range n {
			if err := c.Delete(key(i)); err != nil {
				t.Fatalf("pairs of %d bytes: delete %d of %d: %v", size, i, n, err)
			}
		}
		if n == 0 {
			t.Errorf("no pair of %d bytes fits", size)
		}
	}
}

// A client that only reads does not keep what it freed when it still wrote.
func TestReaderHandsOverItsFrees(t *testing.T) {
	f := pool(t, 1, cramped(15))
	x, y := worker(t, f, Options{}, nil), worker(t, f, Options{}, nil)
	must(t, x.Insert([]byte("warm"), make([]byte, 20)))
	n := 0
	for ; y.Insert(key(n), make([]byte, 1000)) == nil; n++ {
	}
	for i := range 15 {
		must(t, x.Delete(key(i)))
	}
	const looks = 3 // one queues what has rested, where no DELETE did; one sends it off; one marks it
	for range looks * memory.TendEvery {
		if _, err := x.Get([]byte("warm")); err != nil {
			t.Fatal(err)
		}
		x.s.Sleep(x.mem.Reclaim.Rest)
	}
	must(t, y.Insert(key(n), make([]byte, 1000)))
}

// An identity that is used again begins above the numbers of its last holder: its objects are still
// there.
func TestNumbersGoOn(t *testing.T) {
	f := pool(t, 3, small(3, 2, 2))
	var last session.Numbers
	for range 3 {
		c, leave := life(t, f, Options{})
		must(t, c.Insert(k, nil))
		must(t, c.Delete(k))
		if c.s.ID != 1 || c.s.Numbers.Seq <= last.Seq || c.s.Numbers.Tomb <= last.Tomb {
			t.Errorf("client %d is at %+v, its predecessor was at %+v", c.s.ID, c.s.Numbers, last)
		}
		last = c.s.Numbers
		leave()
	}
}

// halfway executes the first op of its n-th batch of several CASes, then runs a function, then
// executes the rest.
type halfway struct {
	rdma.Endpoint
	n    int
	then func()
}

func (h *halfway) Post(b *rdma.Batch) error {
	first := b.Op(0)
	if b.Len() < 2 || first.Verb != rdma.CompareSwap || h.n == 0 {
		return h.Endpoint.Post(b)
	}
	if h.n--; h.n > 0 {
		return h.Endpoint.Post(b)
	}
	alone := h.Endpoint.Batch()
	op := alone.CompareSwap(first.Addr, first.Expect, first.Value)
	err := rdma.Do(h.Endpoint, alone, time.Second)
	result := op.Result
	alone.Release()
	h.then()
	expect := first.Expect
	first.Expect = ^uint64(0) // no slot holds it: it does nothing again
	err = errors.Join(err, h.Endpoint.Post(b))
	first.Expect, first.Result = expect, result
	return err
}

// A winner is slower than its loser's timeout, and then goes on: the loser's object is not lost for
// ever.
func TestUnresolvedComesBack(t *testing.T) {
	f := pool(t, 5, small(5, 3, 2))
	var h *halfway
	ep, err := f.Open("a")
	must(t, err)
	h = &halfway{Endpoint: ep}
	a, err := Open(h, Options{})
	must(t, err)
	b, leave := life(t, f, Options{Timeout: 500 * time.Millisecond})
	must(t, a.Insert(k, []byte("1")))
	must(t, b.Update(k, []byte("1")))
	for _, blk := range ownBlocks(b) { // a's word is the lesser one: it wins by rule 3
		for i := range blk.Incarnations {
			blk.Incarnations[i] += 100
		}
	}
	var lost error
	h.n, h.then = 1, func() { lost = b.Update(k, []byte("2")) }
	must(t, a.Update(k, []byte("3")))
	wantError(t, lost, client.ErrUncertain)
	if len(b.unresolved.list) == 0 {
		t.Fatal("nothing is unresolved: this test shows nothing")
	}
	must(t, b.Update(k, []byte("4")))
	must(t, a.Close())
	must(t, ep.Close())
	leave()
	checkClean(t, f)
}

// SNAPSHOT and FUSEE-CR change slots in different orders and would destroy each other's.
func TestProtocolsDoNotMix(t *testing.T) {
	p := small(3, 3, 2)
	for _, sequential := range []bool{false, true} {
		p.Sequential = sequential
		f := pool(t, 3, p)
		ep, err := f.Open("x")
		must(t, err)
		_, err = Open(ep, Options{Sequential: !sequential})
		wantError(t, err, node.ErrOtherStore)
		must(t, ep.Close())
	}
}

// A client that holds most of a pool and uses little of it leaves blocks to others, also when one
// of its writes has been cut off before.
func TestLargeHolderShedsBlocks(t *testing.T) {
	for _, cause := range []error{nil, rdma.ErrNodeDown, rdma.ErrTimeout} {
		t.Run(fmt.Sprintf("cut off: %v", cause), func(t *testing.T) { largeHolderShedsBlocks(t, cause) })
	}
}

func largeHolderShedsBlocks(t *testing.T, cause error) {
	f := simPool(t, 1, cramped(15))
	h := &onStep{}
	x := worker(t, f, Options{}, func(ep rdma.Endpoint) rdma.Endpoint { h.Endpoint = ep; return h })
	y := worker(t, f, Options{}, nil)
	n := 0
	for ; x.Insert(key(n), make([]byte, 1000)) == nil; n++ {
	}
	for i := range n - 1 {
		must(t, x.Delete(key(i)))
	}
	x.s.Sleep(4 * x.mem.Reclaim.Rest)
	if cause != nil {
		h.then = once(session.StepWriteReadSlot, cause)
		if err := x.Update(key(n-1), make([]byte, 1000)); err != nil {
			wantError(t, err, cause)
		}
	}
	// It looks twice whether it holds too much. It writes slowly: a fast client needs all of these
	// blocks, since what it has replaced rests.
	for range 512 {
		x.s.Sleep(x.mem.Reclaim.Rest)
		must(t, x.Update(key(n-1), make([]byte, 1000)))
	}
	for i := range n / 4 { // the rest of what x freed rests, or is its share
		if err := y.Insert(key(n+i), make([]byte, 1000)); err != nil {
			t.Fatalf("%d pairs of another client: got %v, want room", i, err)
		}
	}
	checkClean(t, f)
}
