package fusee

import (
	"errors"
	"fmt"
	"regexp"
	"testing"
	"time"

	"github.com/farkv/farkv/client/fusee/layout"
	"github.com/farkv/farkv/client/fusee/memory"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/fault"
	"github.com/farkv/farkv/workloads/check/seeds"
	"github.com/farkv/farkv/workloads/check/teeth"
)

// Tests of what marks are for: a client that frees an object twice, or late, or that dies while
// it frees, leaves or adopts, does no harm.

// classOf returns the size class of a pair.
func classOf(c *Client, key, value []byte) int {
	return int(c.s.Classes.Of[layout.UnitsFor(len(key), len(value))])
}

// useUp inserts pairs of k's class until their owner has used every object that it takes for
// free, and a few more.
func useUp(t *testing.T, c *Client, prefix string) {
	t.Helper()
	class := classOf(c, k, nil)
	must(t, c.mem.ReclaimAll(class))
	for i := range c.mem.Holdings.Slabs[class].Idle() + 4 {
		must(t, c.Insert(fmt.Appendf(nil, "%s%d", prefix, i), nil))
	}
}

// An FAA on a bit that is set carries into the bit of the neighbor, which is live.
func TestDoubleFree(t *testing.T) {
	f := pool(t, 3, small(3, 2, 2))
	c, b := worker(t, f, Options{}, nil), worker(t, f, Options{}, nil)
	must(t, c.Insert(k, []byte("1")))
	must(t, c.Insert([]byte("kez"), []byte("1")))
	word := c.cache.Find(race.Hash(k)).word
	if next := c.cache.Find(race.Hash([]byte("kez"))).word.Unit(); next != word.Unit()+uint64(word.Units()) {
		t.Fatal("the two are no neighbours: this test shows nothing")
	}
	b.mem.Reclaim.Rest = 0
	must(t, b.Update(k, []byte("2")))
	b.mem.Reclaim.Free(word, 0) // again, in the same batch
	must(t, b.drain())
	useUp(t, c, "more ")
	wantValue(t, c, "kez", "1")
	wantValue(t, c, "key", "2")
	checkClean(t, f)
}

// A free is stopped before it writes the mark. Meanwhile another client frees the same object,
// and the owner uses it again and fills it. So the mark is of an earlier incarnation, and the
// hint is wrong.
func TestLateFree(t *testing.T) {
	for _, data := range []int{1, 2, 3} {
		f := pool(t, 3, small(3, 2, data))
		var h *hooked
		c, b := worker(t, f, Options{}, nil), worker(t, f, Options{}, nil)
		late := worker(t, f, Options{}, func(ep rdma.Endpoint) rdma.Endpoint { h = &hooked{Endpoint: ep}; return h })
		must(t, c.Insert(k, []byte("1")))
		must(t, late.Insert([]byte("warm"), nil))
		word := c.cache.Find(race.Hash(k)).word
		b.mem.Reclaim.Rest, late.mem.Reclaim.Rest = 0, 0
		again := ""
		h.n, h.verb, h.then = 1, rdma.Write, func() {
			must(t, b.Update(k, []byte("2")))
			must(t, b.drain())
			must(t, c.mem.ReclaimAll(classOf(c, k, nil)))
			for i := 0; again == "" && i < 200; i++ {
				key := fmt.Sprintf("a %d", i) // with its value of the size class of k
				must(t, c.Insert([]byte(key), []byte("3")))
				if c.cache.Find(race.Hash([]byte(key))).word.Unit() == word.Unit() {
					again = key
				}
			}
		}
		late.mem.Reclaim.Free(word, 0)
		must(t, late.drain())
		if again == "" {
			t.Fatal("the object was not used again: this test shows nothing")
		}
		useUp(t, c, "more ")
		wantValue(t, c, again, "3")
		checkClean(t, f)
	}
}

// The hint at an object is added twice before the owner has used the object again: the object is
// free once.
func TestHintTwice(t *testing.T) {
	f := pool(t, 3, small(3, 2, 2))
	c, b := worker(t, f, Options{}, nil), worker(t, f, Options{}, nil)
	must(t, c.Insert(k, []byte("1")))
	word := c.cache.Find(race.Hash(k)).word
	b.mem.Reclaim.Rest = 0
	must(t, b.Update(k, []byte("2")))
	class := classOf(c, k, nil)
	for range 2 {
		must(t, b.drain())
		must(t, c.mem.ReclaimAll(class))
		b.mem.Reclaim.Free(word, 0)
	}
	seen := map[memory.Place]bool{}
	for _, p := range c.mem.Holdings.Slabs[class].Free.Items() {
		if seen[p] {
			t.Fatalf("got object %d twice, want it once", p.Index)
		}
		seen[p] = true
	}
	useUp(t, c, "more ")
	checkClean(t, f)
}

// parted executes the first op of each batch with an FAA before the others, and runs a function
// in between.
type parted struct {
	rdma.Endpoint
	then func()
}

func (p *parted) Post(b *rdma.Batch) error {
	adds := false
	for i := range b.Len() {
		adds = adds || b.Op(i).Verb == rdma.FetchAdd
	}
	if !adds || p.then == nil {
		return p.Endpoint.Post(b)
	}
	first := b.Op(0)
	alone := p.Endpoint.Batch()
	if first.Verb == rdma.FetchAdd {
		alone.FetchAdd(first.Addr, first.Value)
		first.Value = 0
	} else {
		q := alone.Alloc(len(first.Buf))
		copy(q, first.Buf)
		alone.Write(first.Addr, q) // a WRITE may be repeated
	}
	err := rdma.Do(p.Endpoint, alone, time.Second)
	alone.Release()
	p.then()
	return errors.Join(err, p.Endpoint.Post(b))
}

// An owner that finds the hint finds the mark: it need not read twice.
func TestMarkBeforeHint(t *testing.T) {
	f := pool(t, 3, small(3, 2, 2))
	c := worker(t, f, Options{}, nil)
	var p *parted
	b := worker(t, f, Options{}, func(ep rdma.Endpoint) rdma.Endpoint { p = &parted{Endpoint: ep}; return p })
	must(t, c.Insert(k, []byte("1")))
	must(t, b.Update(k, []byte("2")))
	class := classOf(c, k, nil)
	idle := c.mem.Holdings.Slabs[class].Idle()
	p.then = func() { must(t, c.mem.ReclaimAll(class)) }
	must(t, b.drain())
	must(t, c.mem.ReclaimAll(class))
	if now := c.mem.Holdings.Slabs[class].Idle(); now != idle+1 {
		t.Errorf("got %d free objects, want %d: the freed one is lost", now, idle+1)
	}
	p.then = nil
}

// An object that was taken and perhaps never written looks as free as before. A client that
// leaves marks it as in use.
func TestUnresolvedIsNotAdopted(t *testing.T) {
	f := pool(t, 3, small(3, 2, 2))
	y, b := worker(t, f, Options{}, nil), worker(t, f, Options{}, nil)
	ep, err := f.Open("x")
	must(t, err)
	x, err := Open(ep, thrifty(Options{}))
	must(t, err)
	must(t, x.Insert(k, []byte("1")))
	must(t, b.Update(k, []byte("2")))
	must(t, b.drain())
	class := classOf(x, k, nil)
	must(t, x.mem.ReclaimAll(class))
	for { // until it is the turn of the one that b freed
		must(t, x.begin(layout.OpInsert, k, nil))
		if x.draft.Object.Incarnation > 1 {
			break
		}
		must(t, x.Insert(fmt.Appendf(nil, "%d", x.draft.Unit), nil))
		x.recycle()
	}
	x.abandon(rdma.ErrTimeout)
	unit := x.draft.Unit
	must(t, x.mem.Drain())
	s := &x.mem.Holdings.Slabs[class]
	for len(s.Blocks) > 0 {
		x.mem.Part(s.Split(s.Blocks[0]))
	}
	must(t, x.mem.LeaveParting())
	for {
		if ok, err := y.mem.Adopt(class, 1, false); err != nil || !ok {
			t.Fatal(ok, err)
		}
		if p, own := y.mem.Holdings.PlaceOf(unit, class); own {
			if p.Block.Idle(p.Index) {
				t.Error("got an object of an unresolved write of the client that left, want it to stay away")
			}
			return
		}
	}
}

// crashing runs lives of a client that dies at each of its verbs in turn: it adopts a block,
// frees objects of its own and of others, and leaves blocks early and at the end. It returns how
// many verbs that took.
func crashing(t *testing.T, at uint64) (verbs uint64, f rdma.Fabric) {
	p := small(2, 1, 2)
	p.Regions, p.BlockBytes, p.Clients = 2, 4096, 8
	p.RegionBytes = 9 * 4096
	s := simPool(t, 2, p)
	y, leave := life(t, s, Options{})
	for i := range 20 {
		must(t, y.Insert(key(i), make([]byte, 100)))
	}
	for i := range 10 {
		must(t, y.Delete(key(i)))
	}
	leave()
	other := worker(t, s, Options{}, nil)
	for i := range 10 {
		must(t, other.Insert(key(100+i), make([]byte, 400)))
	}
	ep, err := s.Open("dies")
	must(t, err)
	x := fault.New(ep, fault.Fault{At: at, Crash: fault.Stop})
	func() {
		c, err := Open(x, thrifty(Options{}))
		if err != nil {
			return
		}
		c.mem.Reclaim.Rest = 0
		for i := range 6 {
			if c.Update(key(100+i%10), make([]byte, 400)) != nil || c.Update(key(10+i%10), make([]byte, 100)) != nil {
				return
			}
		}
		s := &c.mem.Holdings.Slabs[classOf(c, key(0), make([]byte, 100))]
		if len(s.Blocks) > 0 {
			c.mem.Part(s.Split(s.Blocks[0]))
			if c.mem.LeaveParting() != nil {
				return
			}
		}
		if c.Update(key(15), make([]byte, 100)) == nil {
			c.Close()
		}
	}()
	return x.Sent(), s
}

var harm = regexp.MustCompile("free and in use|another slot|not the slot's pair|" +
	"outside of the blocks in use|and free on replica")

func harmless(t *testing.T, f rdma.Fabric, at uint64) {
	t.Helper()
	r, err := Check(f)
	must(t, err)
	for _, d := range r.Damage {
		if harm.MatchString(d) {
			t.Fatalf("crash after verb %d: %s", at-1, d)
		}
	}
}

// A client that dies between any two of its verbs leaves no object that is free and in use, and the
// clients that come later take none.
func TestCrashedFrees(t *testing.T) {
	verbs, _ := crashing(t, 0)
	for at := uint64(1); at <= verbs; at++ {
		_, f := crashing(t, at)
		harmless(t, f, at)
		c, leave := life(t, f, Options{Timeout: 200 * time.Millisecond})
		for i := range 24 {
			if err := c.Insert(key(200+i), make([]byte, []int{100, 400}[i%2])); err != nil &&
				!errors.Is(err, rdma.ErrFull) {
				t.Fatalf("crash after verb %d: %v", at-1, err)
			}
		}
		for i := range 10 {
			for _, n := range []int{10 + i, 100 + i} {
				if _, err := c.Get(key(n)); err != nil {
					t.Fatalf("crash after verb %d: get: %v", at-1, err)
				}
			}
		}
		leave()
		harmless(t, f, at)
	}
}

// salvage recovers a dead client and cleans its blocks. When the master dies another one repeats
// it.
func salvage(ep rdma.Endpoint, dead rdma.ClientID) error {
	m, err := openMaster(ep)
	if err != nil {
		return err
	}
	if err := m.Recover(m.s.View.View, dead); err != nil {
		return err
	}
	return sweepAll(m)
}

func sweepAll(m *master) error {
	for {
		if more, err := m.Unswept(m.s.View.View); err != nil || !more {
			return err
		}
		if err := m.Sweep(m.s.View.View); err != nil {
			return err
		}
	}
}

// What a dead client held is marked, and its blocks are passed on. The master may die anywhere in
// between, and another one repeats it.
func TestSalvage(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	for seed := range seeds.Few(4) { // which regions a client draws decides where a crash shows
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { salvages(t, seed+1) })
	}
}

func salvages(t *testing.T, seed uint64) {
	dead := func() (rdma.Fabric, rdma.ClientID) {
		f := pool(t, 3, small(3, 1, 3))
		f.Seed = seed
		ep, err := f.Open("dead")
		must(t, err)
		c, err := Open(ep, thrifty(Options{}))
		must(t, err)
		value := make([]byte, 1000) // few objects a block
		for i := range 3 {
			must(t, c.Insert(key(i), value))
			must(t, c.Update(key(i), value))
		}
		// One replica of its last allocation, and of its last draft, is all that it came to.
		b := c.s.Batch()
		for _, blk := range ownBlocks(c) {
			b.CompareSwap(
				c.s.Space.Entry(node.Block{Region: blk.Region, Index: (blk.Index + 1) % c.s.Space.Blocks()}, 0),
				0, uint64(node.MakeEntry(c.s.ID, 2)))
			must(t, c.s.Do("test", b))
		}
		b.Release()
		for _, blk := range ownBlocks(c) {
			for i := range blk.Incarnations {
				blk.Incarnations[i] += 5
			}
		}
		must(t, c.begin(layout.OpInsert, key(6), value))
		b = c.s.Batch()
		p := b.Alloc(c.draft.bytes)
		c.draft.Fields.Incarnation = c.draft.Object.Incarnation
		c.draft.Encode(p)
		b.Write(c.s.Space.UnitAt(c.draft.Unit, 1), p)
		must(t, c.s.Do("test", b))
		b.Release()
		must(t, f.Revoke(c.s.ID))
		must(t, ep.Close())
		return f, c.s.ID
	}
	for at := uint64(1); ; at++ {
		f, id := dead()
		ep, err := f.Open("first")
		must(t, err)
		first := fault.New(ep, fault.Fault{At: at, Crash: fault.Stop})
		err = salvage(first, id)
		must(t, ep.Close())
		if !first.Crashed() {
			must(t, err)
			break
		}
		ep, err = f.Open("second")
		must(t, err)
		must(t, salvage(ep, id))
		must(t, ep.Close())
		for _, x := range f.Clients() {
			if x.ID == id {
				must(t, f.Forget(x)) // nothing is left of it
			}
		}
		checkClean(t, f)
		c, leave := life(t, f, Options{})
		must(t, c.Insert(key(9), make([]byte, 1000)))
		if c.Stats().Adopted == 0 {
			t.Fatalf("crash after verb %d: the block is not adopted", at-1)
		}
		leave()
		checkClean(t, f)
	}
}
