package fusee

import (
	"bytes"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/fusee/session"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// upset runs a function before its worker's n-th batch or call.
type upset struct {
	rdma.Endpoint
	n, seen int
	then    func()
}

func (u *upset) count() {
	if u.seen++; u.seen == u.n {
		u.then()
	}
}

func (u *upset) Post(b *rdma.Batch) error {
	u.count()
	return u.Endpoint.Post(b)
}

func (u *upset) Call(n int, r *rdma.Request, within time.Duration) error {
	u.count()
	return u.Endpoint.Call(n, r, within)
}

// nextView makes a new view of the pool; change may change its members while the view is busy.
func nextView(t *testing.T, f rdma.Fabric, change func()) {
	t.Helper()
	was := f.View()
	busy := rdma.State{Epoch: was.Epoch + 1, Busy: true}
	ok, err := f.Advance(rdma.State{Epoch: was.Epoch}, busy)
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
	if change != nil {
		change()
	}
	must(t, f.Fence(busy.Epoch))
	ep, err := f.Open("master")
	must(t, err)
	must(t, mendNow(ep))
	must(t, ep.Close())
	ok, err = f.Advance(busy, rdma.State{Epoch: busy.Epoch})
	if err != nil || !ok {
		t.Fatal(ok, err)
	}
}

func mendNow(ep rdma.Endpoint) error {
	v, err := ep.Join()
	if err != nil {
		return err
	}
	m, err := openMaster(ep)
	if err != nil {
		return err
	}
	return m.Mend(v)
}

// steady repeats what a client does until the client's view is the pool's.
func steady(c *Client, op func() error) error {
	err := op()
	for range 4 {
		if !errors.Is(err, rdma.ErrStale) && !errors.Is(err, rdma.ErrNodeDown) {
			return err
		}
		c.s.Deadline = session.Unset
		if _, err = c.views.settled(err); err == nil {
			err = op()
		}
	}
	return err
}

// unharmed is what a check must not find, leaks included, before unfinished writes are recovered.
var unharmed = regexp.MustCompile("free and in use|another slot|not the slot's pair|" +
	"outside of the blocks in use|free on replica|not on replica|leaked|neither free|table says|no such client")

func wantUnharmed(t *testing.T, f rdma.Fabric, at int) {
	t.Helper()
	r, err := Check(f)
	must(t, err)
	for _, d := range append(r.Damage, r.Waiting...) {
		if unharmed.MatchString(d) {
			t.Fatalf("view changed before batch %d: %s", at, d)
		}
	}
}

// The view changes before any batch or call of a client that adopts, frees, leaves and closes: when
// all have left, nothing is lost, and nothing in use is free.
func TestViewChanges(t *testing.T) {
	for at, end := 1, 2; at < end; at++ {
		end = viewChanges(t, at)
	}
}

func viewChanges(t *testing.T, at int) (batches int) {
	p := small(2, 1, 2)
	p.Regions, p.BlockBytes = 2, 4096
	p.RegionBytes = 9 * 4096
	f := pool(t, 2, p)
	y, leave := life(t, f, Options{})
	for i := range 20 {
		must(t, y.Insert(key(i), make([]byte, 100)))
	}
	for i := range 10 {
		must(t, y.Delete(key(i)))
	}
	leave()
	ep, err := f.Open("other")
	must(t, err)
	other, err := Open(ep, Options{})
	must(t, err)
	for i := range 10 {
		must(t, other.Insert(key(100+i), make([]byte, 400)))
	}
	xep, err := f.Open("upset")
	must(t, err)
	u := &upset{Endpoint: xep}
	x, err := Open(u, Options{})
	must(t, err)
	x.mem.Reclaim.Rest, other.mem.Reclaim.Rest = 0, 0
	u.n, u.seen, u.then = at, 0, func() { nextView(t, f, nil) }
	update := func(c *Client, i, size int) {
		must(t, steady(c, func() error { return c.Update(key(i), make([]byte, size)) }))
	}
	for i := range 12 {
		update(x, 100+i%10, 400)
		update(x, 10+i%10, 100)
		update(other, 100+i%10, 400)
	}
	must(t, steady(x, func() error { return x.mem.ReclaimAll(classOf(x, key(0), make([]byte, 100))) }))
	if s := &x.mem.Holdings.Slabs[classOf(x, key(0), make([]byte, 100))]; len(s.Blocks) > 0 {
		x.mem.Part(s.Split(s.Blocks[0]))
		must(t, steady(x, x.mem.LeaveParting))
	}
	update(x, 15, 100)
	for _, c := range []*Client{x, other} {
		must(t, steady(c, c.Close))
		must(t, c.s.Close())
	}
	wantUnharmed(t, f, at)
	z := worker(t, f, Options{}, nil)
	for i := range 10 {
		wantValue(t, z, string(key(10+i)), string(make([]byte, 100)))
		wantValue(t, z, string(key(100+i)), string(make([]byte, 400)))
	}
	return u.seen
}

// The view changes while a client gives its blocks other size classes, or takes over those of one
// that left.
func TestViewChangesConvert(t *testing.T) {
	for _, own := range []bool{true, false} {
		for at, end := 1, 2; at < end; at++ {
			end = convertInNewView(t, own, at)
		}
	}
}

func convertInNewView(t *testing.T, own bool, at int) (batches int) {
	p := cramped(5)
	p.DataReplicas, p.Timeout = 2, 10*time.Millisecond
	f := simPool(t, 2, p) // virtual time: a loaded machine would time out
	ep, err := f.Open("x")
	must(t, err)
	u := &upset{Endpoint: ep}
	x, err := Open(u, Options{})
	must(t, err)
	first, leave := x, func() {}
	if !own {
		first, leave = life(t, f, Options{})
	}
	n := 0
	for ; first.Insert(key(n), bytes.Repeat([]byte{1}, 310)) == nil; n++ {
	}
	for i := range n {
		must(t, first.Delete(key(i)))
	}
	leave()
	u.n, u.seen, u.then = at, 0, func() { nextView(t, f, nil) }
	for i := range 3 {
		err := errors.New("not yet")
		for again := 0; err != nil && again < 3; again++ { // another key: the first may be proposed for ever
			err = steady(x, func() error { return x.Insert(fmt.Appendf(nil, "%d %d", i, again), make([]byte, 1000)) })
		}
		must(t, err)
	}
	if len(x.mem.Holdings.Slabs[classOf(x, key(0), make([]byte, 1000))].Blocks) == 0 { // the pool was full of others
		t.Fatal("no block changed its size class: this test shows nothing")
	}
	must(t, steady(x, x.Close))
	must(t, ep.Close())
	wantUnharmed(t, f, at)
	return u.seen
}

// TestHintOnceInNewView: a client has freed an object, and its view changes before it looks how
// that ended. It does not add the hint once more: that would carry into the neighbor's bit.
func TestHintOnceInNewView(t *testing.T) {
	f := simPool(t, 3, small(3, 2, 2))
	c := worker2(t, f)
	must(t, c.Insert(k, nil))
	must(t, c.Insert(key(2), nil)) // the neighbor
	class := classOf(c, k, nil)
	p, _ := c.mem.Holdings.PlaceOf(c.cache.Find(race.Hash(k)).word.Unit(), class)
	added := false
	f.Go("other", func(ep rdma.Endpoint) {
		b, err := Open(&onStep{ep, func(b *rdma.Batch) error {
			added = added || b.Step() == session.StepMarkFree && b.Op(b.Len()-1).Verb == rdma.FetchAdd
			return nil
		}}, Options{})
		must(t, err)
		must(t, b.Insert(key(3), nil))
		must(t, b.Update(k, nil))
		for range 10 {
			if !added {
				ep.Sleep(2 * b.mem.Reclaim.Rest)
				must(t, b.Update(key(3), nil))
			}
		}
		if !added || b.mem.Reclaim.Flying == 0 {
			t.Errorf("a hint was added: %v, %d batches are in flight: this test shows nothing", added,
				b.mem.Reclaim.Flying)
		}
		ep.Sleep(time.Millisecond)
		_, err = b.Get(key(3)) // it joins the new view
		must(t, err)
		must(t, b.Update(key(3), nil))
		must(t, b.Close())
	})
	f.Go("views", func(ep rdma.Endpoint) {
		for !added {
			ep.Sleep(100 * time.Microsecond)
		}
		ep.Sleep(100 * time.Microsecond)
		busy := rdma.State{Epoch: f.View().Epoch + 1, Busy: true}
		_, err := f.Advance(rdma.State{Epoch: busy.Epoch - 1}, busy)
		must(t, errors.Join(err, f.Fence(busy.Epoch), mendNow(ep)))
		_, err = f.Advance(busy, rdma.State{Epoch: busy.Epoch})
		must(t, err)
	})
	must(t, f.Run())
	bits, err := rdma.ReadWord(open2(t, f), "test", c.s.Space.Bitmap(p.Block.Block, 0), time.Second)
	must(t, err)
	if want := uint64(1) << p.Index; bits != want {
		t.Errorf("got hints %b, want %b", bits, want)
	}
	must(t, steady(c, func() error { return c.mem.ReclaimAll(class) }))
	if !p.Block.Idle(p.Index) {
		t.Error("the object is lost to its owner")
	}
	must(t, c.Close())
	checkClean(t, f)
}

// The primary of a block dies with its bitmap while others free its objects: their owner finds them
// by their marks.
func TestLostHints(t *testing.T) {
	lost := 0
	for _, at := range []int{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12} { // batches of the freer before the node dies
		p := small(4, 1, 3)
		p.Subtables, p.Regions = 1, 12
		f := pool(t, 4, p)
		f.Seed = uint64(at + 1) // which blocks are taken decides what a rule that is broken does
		x, y, watch := resident(t, f), resident(t, f), resident(t, f)
		class := classOf(x, k, nil)
		for i := range 100 {
			must(t, x.Insert(key(i), nil))
		}
		y.mem.Reclaim.Rest = 0
		u := y.s.Endpoint.(*upset)
		victim := -1
		for _, blk := range x.mem.Holdings.Slabs[class].Blocks {
			if n := x.s.Space.Place[blk.Region][0].Node; n != x.s.Index.Place[0][0].Node {
				victim = n
			}
		}
		if victim < 0 {
			continue
		}
		lost++
		for i := range 60 {
			must(t, y.Update(key(i), nil))
		}
		die := func() {
			nextView(t, f, func() {
				must(t, f.Expel(f.View().Epoch, victim))
				_, err := f.SetMember(f.View().Epoch, victim, rdma.Member{}, rdma.Member{Gone: true})
				must(t, err)
			})
		}
		u.n, u.seen, u.then = at, 0, die
		if at == 0 {
			die()
		}
		drained := y.drain()
		u.n = 0
		if u.seen < at {
			die()
		}
		if drained != nil && !errors.Is(drained, rdma.ErrStale) && !errors.Is(drained, rdma.ErrNodeDown) {
			t.Fatal(drained)
		}
		for _, c := range []*Client{x, y, watch} {
			without(c, victim)
			must(t, steady(c, c.views.catchUp))
		}
		must(t, y.drain())
		must(t, x.mem.ReclaimAll(class))
		wantTaken(t, x, class, fmt.Sprintf("node %d died before batch %d", victim, at))
		for _, c := range []*Client{y, x} {
			must(t, c.Close())
			must(t, c.s.Close())
		}
		k := &checker{s: watch.s, t: watch.mem.Tables, alive: map[rdma.ClientID]bool{watch.s.ID: true},
			owners: map[node.Block]node.Entry{}, used: map[uint64]bool{}, keys: map[string]race.Slot{}}
		must(t, errors.Join(k.tables(), k.index(), k.pairs(), k.blocks()))
		for _, d := range append(k.Damage, k.Waiting...) {
			t.Fatalf("node %d died before batch %d: %s", victim, at, d)
		}
		if k.live != 100 {
			t.Fatalf("check counts %d pairs, want 100", k.live)
		}
		must(t, watch.s.Close())
	}
	if lost < 3 {
		t.Errorf("%d nodes died that had hints: this test shows nothing", lost)
	}
}

// wantTaken: an owner has taken everything that is free in its blocks, and that is free on all
// replicas.
func wantTaken(t *testing.T, x *Client, class int, when string) {
	t.Helper()
	for _, blk := range x.mem.Holdings.Slabs[class].Blocks {
		heads, err := x.mem.Tables.Heads(blk.Block, class, 0)
		must(t, err)
		last, err := x.mem.Tables.Heads(blk.Block, class, x.s.Space.Copies(blk.Region)-1)
		must(t, err)
		for i, h := range heads {
			if h.Free() && !last[i].Free() {
				t.Fatalf("%s: block %v: object %d is free, but not on the last replica", when, blk.Block, i)
			}
			if h.Free() && !blk.Idle(i) {
				t.Fatalf("%s: block %v: got nothing, want object %d, which is free", when, blk.Block, i)
			}
		}
	}
}

// resident opens a client that the test closes.
func resident(t *testing.T, f rdma.Fabric) *Client {
	ep, err := f.Open("resident")
	must(t, err)
	c, err := Open(&upset{Endpoint: ep}, Options{})
	must(t, err)
	return c
}

// without places a client's items without a node, as a view does.
func without(c *Client, victim int) {
	gone := func(r node.Replica) bool { return r.Node == victim }
	c.views.oldSpace = append(c.views.oldSpace, slices.Clone(c.s.Space.Place))
	for g, rs := range c.s.Space.Place {
		c.s.Space.Place[g] = slices.DeleteFunc(slices.Clone(rs), gone)
	}
	c.s.Holders = slices.DeleteFunc(slices.Clone(c.s.Holders), func(n int) bool { return n == victim })
}

var _ client.Store = (*Client)(nil)
