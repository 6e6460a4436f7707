package fusee

import (
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/client/fusee/layout"
	"github.com/farkv/farkv/client/fusee/memory"
	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma/sim"
)

func recoverNow(t *testing.T, f *sim.Sim) {
	t.Helper()
	ep, err := f.Open("recover")
	must(t, err)
	_, err = cluster.Once(ep, f, recoverer, cluster.Options{Lease: time.Millisecond})
	must(t, err)
	must(t, ep.Close())
}

// TestLateCarrier: a client pauses in the midst of freeing others' objects. Meanwhile their owner
// dies, recovery frees them, too, and their block is given another size class. When the client goes
// on its marks must not land within the pairs that are there now.
func TestLateCarrier(t *testing.T) {
	p := small(3, 2, 2)
	p.Timeout = 20 * time.Millisecond
	p.Regions = 1
	p.RegionBytes = 64 << 10
	f := simPool(t, 3, p)
	dep, err := f.Open("dead")
	must(t, err)
	d, err := Open(dep, Options{})
	must(t, err)
	x, err := Open(open2(t, f), Options{})
	must(t, err)
	for i := range 20 {
		must(t, d.Insert(key(i), []byte("value")))
	}
	for i := range 20 {
		must(t, x.Update(key(i), []byte("other")))
	}
	x.s.Sleep(time.Millisecond)
	must(t, x.Update(key(0), []byte("again"))) // what rested is sent off: learning
	if x.mem.Reclaim.Flying == 0 {
		t.Fatal("nothing is being freed: this test shows nothing")
	}
	must(t, f.Revoke(d.s.ID)) // it died
	dep.Close()
	recoverNow(t, f)
	z, err := Open(open2(t, f), Options{})
	must(t, err)
	n := 0
	big := make([]byte, 3000)
	for ; ; n++ {
		if err := z.Insert(fmt.Appendf(nil, "big %d", n), big); err != nil {
			break
		}
	}
	if z.s.Stats.Converted == 0 {
		t.Fatal("no block changed its size class: this test shows nothing")
	}
	x.s.Sleep(time.Second)
	for i := range 20 { // x goes on
		must(t, x.Update(key(i), []byte("third")))
		x.s.Sleep(time.Millisecond)
	}
	for i := range n {
		if v, err := z.Get(fmt.Appendf(nil, "big %d", i)); err != nil || string(v) != string(big) {
			t.Errorf("big %d: %v", i, err)
		}
	}
}

// TestMarkWithoutHint: a client dies between marking what it replaced and hinting at it. The owner
// lives, and finds it.
func TestMarkWithoutHint(t *testing.T) {
	p := small(3, 2, 2)
	p.Timeout = 20 * time.Millisecond
	p.Regions = 1
	p.RegionBytes = 64 << 10
	f := simPool(t, 3, p)
	y, err := Open(open2(t, f), Options{})
	must(t, err)
	dep, err := f.Open("dead")
	must(t, err)
	d, err := Open(dep, Options{})
	must(t, err)
	for i := range 20 {
		must(t, y.Insert(key(i), []byte("value")))
	}
	for i := range 20 {
		must(t, d.Update(key(i), []byte("other")))
	}
	// What d's carrier wrote before it died: marks on all replicas, and no FAA.
	blk := y.mem.Holdings.Slabs[y.s.Classes.Of[layout.UnitsFor(len(key(0)), 5)]].Blocks[0]
	b := d.s.Batch()
	for i := range 20 {
		buf := b.Alloc(8)
		layout.LE.PutUint64(buf, 1)
		for r := range 2 {
			b.Write(d.s.Space.UnitAt(y.mem.Tables.UnitOf(memory.Place{Block: blk, Index: i}), r), buf)
		}
	}
	must(t, d.s.Do("test", b))
	must(t, f.Revoke(d.s.ID))
	dep.Close()
	recoverNow(t, f)
	y.s.Sleep(time.Second)
	before := y.mem.Holdings.Slabs[blk.Class].Idle()
	must(t, y.mem.ReclaimAll(blk.Class))
	if y.mem.Holdings.Slabs[blk.Class].Idle() == before {
		t.Error("20 free objects are not found by their owner")
	}
}
