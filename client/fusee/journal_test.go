package fusee

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/fusee/layout"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/fault"
	"github.com/farkv/farkv/node/rdma/trace"
)

// Tests of what recovery reads, of the journal that names it, and of what recovery leaves to
// others.

// dieHalfway begins an UPDATE and dies when all backups have its word.
func dieHalfway(t *testing.T, f rdma.Fabric, c *Client, key, value []byte) {
	t.Helper()
	c.s.Start()
	must(t, c.begin(layout.OpUpdate, key, value))
	at, err := c.locate(key, race.Hash(key))
	must(t, err)
	w := write{slot: at.slot, old: at.word, new: c.draft.word(c.s, race.Hash(key)), inc: at.inc, obj: &c.draft.Object}
	_, err = c.writer.propose(&w)
	must(t, err)
	must(t, f.Revoke(c.s.ID))
}

// dying opens a client that must not be closed.
func dying(t *testing.T, f rdma.Fabric) *Client {
	t.Helper()
	ep, err := f.Open("dying")
	must(t, err)
	t.Cleanup(func() { ep.Close() })
	c, err := Open(ep, thrifty(Options{}))
	must(t, err)
	return c
}

// forget ends a client that was recovered.
func forget(t *testing.T, f rdma.Fabric, d *Client) {
	t.Helper()
	must(t, d.s.Close())
	for _, c := range f.Clients() {
		if c.ID == d.s.ID {
			must(t, f.Forget(c))
		}
	}
}

// TestRecoveryIsBounded: recovering a client takes as many trips, and reads as many bytes,
// whatever its blocks hold. Of each block it reads and changes only the entry.
func TestRecoveryIsBounded(t *testing.T) {
	for _, pairs := range []int{4, 400, 4000} {
		t.Run(fmt.Sprint(pairs, " pairs"), func(t *testing.T) {
			f := pool(t, 3, small(3, 2, 2))
			d := dying(t, f)
			for i := range pairs {
				must(t, d.Insert(key(i), make([]byte, 800)))
			}
			dieHalfway(t, f, d, key(1), []byte("halfway"))
			ep := open2(t, f)
			m, err := openMaster(ep)
			must(t, err)
			n := trace.Trips(ep, func() { must(t, m.Recover(m.s.View.View, d.s.ID)) })
			r := m.Breakdown()
			t.Logf("%d blocks: %+v, %+v", r.Blocks, n, r)
			if r.Unfinished != 1 {
				t.Errorf("%d writes are finished, want 1", r.Unfinished)
			}
			if most := 12 + r.Blocks/64; int(n.Trips) > most {
				t.Errorf("it takes %d trips, want at most %d", n.Trips, most)
			}
			tables := uint64(2*m.s.Regions*m.s.Space.Blocks()) * 8
			if most := tables + 32<<10; n.BytesRead > most {
				t.Errorf("it reads %d bytes, want at most %d", n.BytesRead, most)
			}
			c := worker(t, f, Options{}, nil)
			wantValue(t, c, string(key(1)), "halfway")
			must(t, c.Update(key(1), []byte("other")))
			if r, err := Check(f); err != nil || len(r.Damage) > 0 {
				t.Error("with unclean blocks:", r.Damage, err)
			}
			must(t, sweepAll(m))
			forget(t, f, d)
			checkClean(t, f)
		})
	}
}

// TestRecoveryIsRepeated: a master dies after each verb of a recovery, and another one recovers
// the client again. The write ends, and what it replaced is freed, in the block of a client that
// lives.
func TestRecoveryIsRepeated(t *testing.T) {
	for at := uint64(1); ; at++ {
		f := pool(t, 3, small(3, 2, 2))
		f.Seed = at // which nodes have the object, and its journal word
		x, leave := life(t, f, Options{})
		must(t, x.Insert(key(1), make([]byte, 800)))
		d := dying(t, f)
		must(t, d.Insert(key(2), []byte("other")))
		dieHalfway(t, f, d, key(1), []byte("halfway"))
		ep := open2(t, f)
		first := fault.New(ep, fault.Fault{At: at, Crash: fault.Stop})
		m, err := openMaster(first)
		if err == nil {
			err = m.Recover(m.s.View.View, d.s.ID)
		}
		must(t, ep.Close())
		if !first.Crashed() {
			must(t, err)
		}
		ep = open2(t, f)
		must(t, salvage(ep, d.s.ID))
		must(t, ep.Close())
		forget(t, f, d)
		wantValue(t, x, string(key(1)), "halfway")
		must(t, x.Update(key(1), []byte("other")))
		leave()
		r, err := Check(f)
		must(t, err)
		for _, what := range append(r.Damage, r.Waiting...) {
			t.Errorf("crash behind verb %d: %s", at-1, what)
		}
		if t.Failed() || !first.Crashed() {
			return
		}
	}
}

// TestUnresolvedKeepsItsJournalWord: a write of unknown outcome is found by recovery, however many
// writes its client has made since.
func TestUnresolvedKeepsItsJournalWord(t *testing.T) {
	p := small(3, 2, 2)
	p.Timeout = 20 * time.Millisecond
	f := simPool(t, 3, p)
	h := &beforeCAS{Endpoint: &onStep{Endpoint: open2(t, f), then: noFence(rdma.ErrTimeout)}}
	d, err := Open(h, thrifty(Options{}))
	must(t, err)
	for i := range 3 {
		must(t, d.Insert(key(i), []byte("old")))
	}
	h.n, h.then = 2, func(b *rdma.Batch) error { // the CAS of the primary
		return &rdma.OpError{Verb: rdma.CompareSwap, Addr: b.Op(0).Addr, Len: 8, Err: rdma.ErrTimeout}
	}
	wantError(t, d.Update(key(0), []byte("unknown")), client.ErrUncertain)
	for i := range 100 {
		must(t, d.Update(key(1+i%2), fmt.Append(nil, i)))
	}
	must(t, f.Revoke(d.s.ID))
	must(t, h.Close())
	recoverNow(t, f)
	c := worker2(t, f)
	wantValue(t, c, string(key(0)), "unknown")
	must(t, c.Update(key(0), []byte("new")))
	must(t, c.Close())
	checkClean(t, f)
}

// TestUnresolvedWritesAreLanded: waits that time out do not stop a client for good. When writes
// of which verbs may be in flight hold all of its journal, it finds out whether they are.
func TestUnresolvedWritesAreLanded(t *testing.T) {
	p := small(3, 2, 2)
	p.Timeout = 20 * time.Millisecond
	f := simPool(t, 3, p)
	h := &beforeCAS{Endpoint: open2(t, f)}
	c, err := Open(h, thrifty(Options{}))
	must(t, err)
	h.then = func(b *rdma.Batch) error {
		return &rdma.OpError{Verb: rdma.CompareSwap, Addr: b.Op(0).Addr, Len: 8, Err: rdma.ErrTimeout}
	}
	for i := range 3 * layout.JournalWords {
		must(t, c.Insert(key(i), []byte("old")))
		h.n = 2
		wantError(t, c.Update(key(i), []byte("unknown")), client.ErrUncertain)
	}
	for i := range 3 * layout.JournalWords {
		must(t, c.Update(key(i), []byte("new")))
	}
	must(t, c.Close())
	checkClean(t, f)
}

// TestUncleanBlocks: what a dead client had replaced lies in blocks of another one, and only the
// dead client's logs name it. No client uses an object of the dead client's blocks before what it
// replaced is free.
func TestUncleanBlocks(t *testing.T) {
	p := small(3, 2, 2)
	p.Timeout = 20 * time.Millisecond
	f := simPool(t, 3, p)
	x := worker2(t, f)
	for i := range 20 {
		must(t, x.Insert(key(i), make([]byte, 300)))
	}
	d := dying(t, f)
	for i := range 20 {
		must(t, d.Update(key(i), make([]byte, 300)))
	}
	must(t, f.Revoke(d.s.ID))
	m, err := openMaster(open2(t, f))
	must(t, err)
	must(t, m.Recover(m.s.View.View, d.s.ID))
	forget(t, f, d)
	isLeft := func(e node.Entry) bool { return e.Owner() == node.Left }
	list, err := m.t.ListAll(0, 100, isLeft)
	must(t, err)
	if len(list) == 0 {
		t.Fatal("no block is left: this test shows nothing")
	}
	for _, b := range list {
		if !layout.IsUnclean(b.Entry) {
			t.Fatalf("block %v is not unclean: %v", b.Block, b.Entry)
		}
	}
	y := worker2(t, f)
	for i := range 20 {
		must(t, y.Update(key(i), bytes.Repeat([]byte("y"), 300)))
	}
	if y.Stats().Adopted > 0 {
		t.Fatal("an unclean block is adopted")
	}
	must(t, sweepAll(m)) // x owns still what was replaced: no sweep of left blocks finds that
	list, err = m.t.ListAll(0, 100, layout.IsUnclean)
	must(t, err)
	if len(list) > 0 {
		t.Fatalf("%d blocks are unclean still", len(list))
	}
	must(t, y.Close())
	must(t, x.Close())
	r, err := Check(f)
	must(t, err)
	for _, d := range append(r.Damage, r.Waiting...) {
		t.Error("leaked:", d)
	}
}

// TestSweepGoesOn: a master that dies after a recovery, or in the midst of a sweep, leaves the
// rest to the next one, though no other client dies.
func TestSweepGoesOn(t *testing.T) {
	p := small(3, 2, 2)
	p.Timeout = 20 * time.Millisecond
	f := simPool(t, 3, p)
	d := dying(t, f)
	for i := range 400 {
		must(t, d.Insert(key(i), make([]byte, 800)))
		must(t, d.Update(key(i), make([]byte, 800)))
	}
	must(t, f.Revoke(d.s.ID))
	m, err := openMaster(open2(t, f))
	must(t, err)
	must(t, m.Recover(m.s.View.View, d.s.ID))
	forget(t, f, d)
	must(t, m.s.Close()) // the first master
	f.Go("keeper", func(ep rdma.Endpoint) {
		start := ep.Now()
		must(t, cluster.Keep(ep, f, recoverer, cluster.Options{Lease: time.Millisecond,
			Stop: func() bool { return ep.Now()-start > time.Second }}))
	})
	must(t, f.Run())
	if r := checkClean(t, f); len(r.Facts) == 0 {
		t.Error("check says nothing")
	}
	z := worker2(t, f)
	list, err := z.mem.Tables.ListAll(0, 1, layout.IsUnclean)
	must(t, err)
	if len(list) > 0 {
		t.Error("blocks are unclean still")
	}
	must(t, z.Close())
}
