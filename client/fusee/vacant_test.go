package fusee

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/farkv/farkv/client/fusee/layout"
	"github.com/farkv/farkv/client/fusee/memory"
	"github.com/farkv/farkv/client/fusee/session"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/fault"
	"github.com/farkv/farkv/node/rdma/sim"
)

// TestBorrowedObjects: in a full pool small pairs take the objects of large ones that were deleted.
// They are read, replaced by others, deleted, and found when their client has died.
func TestBorrowedObjects(t *testing.T) {
	p := cramped(5)
	p.DataReplicas = 2
	f := simPool(t, 2, p)
	ep, err := f.Open("x")
	must(t, err)
	x, err := Open(ep, Options{})
	must(t, err)
	n := 0
	for ; x.Insert(key(n), make([]byte, 1000)) == nil; n++ {
	}
	for i := range n / 2 {
		must(t, x.Delete(key(i)))
	}
	x.s.Sleep(4 * x.mem.Reclaim.Rest)
	small := 0 // how many there are
	for ; small < n && x.Insert(fmt.Appendf(nil, "small %d", small), []byte("1")) == nil; small++ {
	}
	if small < n/4 {
		t.Fatalf("%d small pairs found room in %d objects that are free", small, n/2)
	}
	borrowed := 0
	for class := range x.mem.Holdings.Slabs {
		if len(x.mem.Holdings.Slabs[class].Blocks) > 0 && x.s.Classes.Units[class]*64 < 1000 {
			borrowed++
		}
	}
	if borrowed > 0 {
		t.Fatal("small pairs have blocks of their own: this test shows nothing")
	}
	report, err := Check(f)
	must(t, err)
	for _, d := range report.Damage {
		if strings.Contains(d, "points into") {
			t.Fatal("damage: ", d)
		}
	}
	y := worker2(t, f)
	for i := range small {
		wantValue(t, y, fmt.Sprintf("small %d", i), "1")
	}
	for i := range small / 2 { // in the room that the ones before leave
		must(t, x.Delete(fmt.Appendf(nil, "small %d", i)))
		x.s.Sleep(4 * x.mem.Reclaim.Rest)
		must(t, x.Insert(fmt.Appendf(nil, "small %d", i), []byte("2")))
	}
	must(t, f.Revoke(x.s.ID))
	must(t, ep.Close())
	recoverNow(t, f)
	more := 0 // pairs in all that recovery has freed
	for ; y.Insert(fmt.Appendf(nil, "more %d", more), make([]byte, 1000)) == nil; more++ {
	}
	for i := range small {
		want := "1"
		if i < small/2 {
			want = "2"
		}
		wantValue(t, y, fmt.Sprintf("small %d", i), want)
	}
	for i := range small {
		must(t, y.Delete(fmt.Appendf(nil, "small %d", i)))
	}
	for i := range more {
		must(t, y.Delete(fmt.Appendf(nil, "more %d", i)))
	}
	for i := n / 2; i < n; i++ {
		wantValue(t, y, string(key(i)), string(make([]byte, 1000)))
	}
	must(t, y.Close())
	checkClean(t, f)
}

func worker2(t *testing.T, f *sim.Sim) *Client {
	t.Helper()
	c, err := Open(open2(t, f), Options{})
	must(t, err)
	return c
}

// TestEmptiedBlocksMoveOn: clients with pairs of all sizes, one after the other, share a pool
// that has fewer blocks than they have classes. Blocks that are empty become vacant while
// operations go on, and other clients carve them.
func TestEmptiedBlocksMoveOn(t *testing.T) {
	p := cramped(40)
	p.BlockBytes, p.Timeout = 32<<10, 20*time.Millisecond
	p.RegionBytes = 40*p.BlockBytes + 4096
	f := simPool(t, 1, p)
	const live = 4
	var clients []*Client
	for range 4 {
		clients = append(clients, worker2(t, f))
	}
	rng := clients[0].s.Rand()
	converted := uint64(0)
	for i := range 4000 {
		c, number := clients[i%len(clients)], i%len(clients)
		name := func(i int) []byte { return fmt.Appendf(nil, "%d of %d", i, number) }
		if err := c.Insert(name(i), make([]byte, rng.IntN(15<<10))); err != nil {
			t.Fatalf("insert %d of client %d: %v", i, number, err)
		}
		if gone := i - live*len(clients); gone >= 0 {
			must(t, c.Delete(name(gone)))
		}
		c.s.Sleep(c.mem.Reclaim.Rest)
	}
	for _, c := range clients {
		converted += c.Stats().Converted
		must(t, c.Close())
	}
	if converted == 0 {
		t.Error("no block was carved anew: this test shows nothing")
	}
	checkClean(t, f)
}

// TestClassesChangeTogether: where all blocks of a pool are empty and of another class, a client
// that needs them waits for their rest together, not for a few at a time.
func TestClassesChangeTogether(t *testing.T) {
	p := cramped(100)
	p.BlockBytes, p.Timeout = 8<<10, 20*time.Millisecond
	p.RegionBytes = 100*p.BlockBytes + 4096
	f := simPool(t, 1, p)
	x := worker2(t, f)
	small := 0
	for ; x.Insert(key(small), nil) == nil; small++ {
	}
	for i := range small {
		must(t, x.Delete(key(i)))
	}
	must(t, x.Close())
	y := worker2(t, f)
	began, large := y.s.Now(), 0
	for ; y.Insert(key(large), make([]byte, 900)) == nil; large++ {
	}
	if took := y.s.Now() - began; took > 7*p.Timeout {
		t.Errorf("got the pool filled in %v, want seven times the %v for which a block rests at most", took, p.Timeout)
	}
	class := y.s.Classes.Of[layout.UnitsFor(len(key(0)), 900)]
	if want := 100*y.s.Classes.Objects[class] - 1; large != want { // one is for DELETEs
		t.Errorf("%d pairs found room, want %d", large, want)
	}
	must(t, y.Close())
	checkClean(t, f)
}

// TestClassesChangeBack: small pairs in a pool of which the blocks are empty, and have large
// objects, find as much room as in a new pool.
func TestClassesChangeBack(t *testing.T) {
	p := cramped(100)
	p.BlockBytes, p.Timeout = 8<<10, 20*time.Millisecond
	p.RegionBytes = 100*p.BlockBytes + 4096
	f := simPool(t, 1, p)
	fill := func(f *sim.Sim, value int) (pairs int, took time.Duration) {
		x := worker2(t, f)
		began := x.s.Now()
		for ; x.Insert(key(pairs), make([]byte, value)) == nil; pairs++ {
		}
		took = x.s.Now() - began
		for i := range pairs {
			must(t, x.Delete(key(i)))
		}
		must(t, x.Close())
		return pairs, took
	}
	fill(f, 900)
	changed, took := fill(f, 300)
	if small, _ := fill(simPool(t, 1, p), 300); changed < small*9/10 {
		t.Errorf("got %d small pairs in where large ones had been, want nine tenths of %d", changed, small)
	}
	if took > 7*p.Timeout {
		t.Errorf("got the pool filled in %v, want seven times the %v for which a block rests at most", took, p.Timeout)
	}
	checkClean(t, f)
}

// emptyBlocks returns a client of which the blocks are empty, and rest.
func emptyBlocks(t *testing.T, f *sim.Sim) (*Client, rdma.Endpoint) {
	ep, err := f.Open("x")
	must(t, err)
	x, err := Open(ep, Options{})
	must(t, err)
	n := 0
	for ; x.Insert(key(n), make([]byte, 300)) == nil; n++ {
	}
	for i := range n {
		must(t, x.Delete(key(i)))
	}
	must(t, x.drain())
	must(t, x.mem.ReclaimAll(int(x.s.Classes.Of[layout.UnitsFor(len(key(0)), 300)])))
	must(t, x.mem.Vacate(true, 64))
	if len(x.mem.Emptied) < 2 {
		t.Fatalf("%d blocks are empty", len(x.mem.Emptied))
	}
	return x, ep
}

// TestEmptiedBlocksRest: a block is vacant when it has rested for as long as an operation may last,
// and not before.
func TestEmptiedBlocksRest(t *testing.T) {
	p := cramped(6)
	f := simPool(t, 1, p)
	x, ep := emptyBlocks(t, f)
	all := len(x.mem.Emptied)
	for _, want := range []int{0, all} {
		must(t, x.mem.Clear())
		list, err := x.mem.Tables.ListAll(0, 64, layout.IsVacant)
		must(t, err)
		if len(list) != want {
			t.Fatalf("got %d vacant blocks, want %d", len(list), want)
		}
		x.s.Sleep(p.Timeout)
	}
	must(t, x.Close())
	must(t, ep.Close())
}

// TestIncarnationsGoOn: in a block that is carved anew, and in one that is adopted behind that, no
// object has an incarnation that it had before: logs name those.
func TestIncarnationsGoOn(t *testing.T) {
	p := cramped(6)
	f := simPool(t, 1, p)
	x, ep := emptyBlocks(t, f)
	floor := map[node.Block]uint32{}
	for _, e := range x.mem.Emptied {
		e.Incarnations[1] = 100 + uint32(e.Index) // it was used often
		floor[e.Block.Block] = e.Incarnations[1]
	}
	x.s.Sleep(p.Timeout)
	must(t, x.mem.Clear())
	must(t, x.Close())
	must(t, ep.Close())
	for range 2 { // one carves it, and one adopts what that leaves
		y := worker2(t, f)
		for i := range 6 {
			must(t, y.Insert(key(i), make([]byte, 1000)))
		}
		if len(ownBlocks(y)) == 0 {
			t.Fatal("it has no block: this test shows nothing")
		}
		for _, b := range ownBlocks(y) {
			for _, inc := range b.Incarnations {
				if inc != 0 && inc < floor[b.Block] { // 0: it was not used
					t.Errorf("got incarnation %d in block %v, want %d at least", inc, b.Block, floor[b.Block])
				}
			}
		}
		for i := range 6 {
			must(t, y.Delete(key(i)))
		}
		must(t, y.Close())
	}
}

// TestClearIsCutOff: a client dies at any verb while it makes blocks vacant, or carves one for a
// pair of its own. What is left is sound, and another client has the room.
func TestClearIsCutOff(t *testing.T) {
	clearIsCutOff(t, func(x *Client) error { return x.mem.Clear() })
	clearIsCutOff(t, func(x *Client) error {
		err := x.Insert(key(6), make([]byte, 1000))
		if err == nil && x.s.Stats.Converted == 0 {
			t.Fatal("it has carved no block: this test shows nothing")
		}
		return err
	})
}

func clearIsCutOff(t *testing.T, work func(*Client) error) {
	p := cramped(6)
	p.DataReplicas, p.Timeout = 2, 10*time.Millisecond
	for at := uint64(1); ; at++ {
		f := simPool(t, 2, p)
		x, ep := emptyBlocks(t, f)
		x.s.Sleep(p.Timeout)
		cut := fault.New(ep, fault.Fault{At: at, Crash: fault.Stop})
		x.s.Endpoint = cut
		err := work(x)
		if !cut.Crashed() {
			must(t, err)
			break
		}
		must(t, f.Revoke(x.s.ID))
		must(t, ep.Close())
		recoverNow(t, f)
		checkClean(t, f)
		y := worker2(t, f)
		for i := range 6 {
			must(t, y.Insert(key(i), make([]byte, 1000)))
		}
		must(t, y.Close())
		checkClean(t, f)
	}
}

// TestClearFails: any verb of making blocks vacant fails. The client learns at its next resync,
// or when it closes, which client owns the block, and nothing is lost.
func TestClearFails(t *testing.T) {
	p := cramped(6)
	p.DataReplicas, p.Timeout = 2, 10*time.Millisecond
	for at := uint64(1); ; at++ {
		f := simPool(t, 2, p)
		x, ep := emptyBlocks(t, f)
		x.s.Sleep(p.Timeout)
		x.s.Endpoint = fault.New(ep, fault.Fault{At: at, Err: rdma.ErrTimeout})
		failed := false
		for len(x.mem.Emptied) > 0 {
			err := x.mem.Clear()
			failed = failed || err != nil
		}
		if !failed {
			break
		}
		must(t, x.Close())
		must(t, ep.Close())
		checkClean(t, f)
		y := worker2(t, f)
		for i := range 6 {
			must(t, y.Insert(key(i), make([]byte, 1000)))
		}
		must(t, y.Close())
		checkClean(t, f)
	}
}

// TestIncarnationsGoOnWhenClearFails: as TestIncarnationsGoOn, but a verb fails while the block is
// wiped, its owner uses it again, and dies.
func TestIncarnationsGoOnWhenClearFails(t *testing.T) {
	p := cramped(6)
	p.DataReplicas, p.Timeout = 2, 10*time.Millisecond
	for at := uint64(1); ; at++ {
		f := simPool(t, 2, p)
		x, ep := emptyBlocks(t, f)
		had := map[node.Block][]uint32{}
		for _, e := range x.mem.Emptied {
			useOften(t, x, memory.Place{Block: e.Block, Index: 1})
			had[e.Block.Block] = slices.Clone(e.Incarnations)
		}
		x.s.Sleep(p.Timeout)
		x.s.Endpoint = fault.New(ep, fault.Fault{At: at, Err: rdma.ErrTimeout})
		if x.mem.Clear() == nil {
			break
		}
		x.s.Endpoint = ep
		must(t, x.Insert(key(0), make([]byte, 300)))
		must(t, f.Revoke(x.s.ID))
		must(t, ep.Close())
		recoverNow(t, f)
		y := worker2(t, f)
		for i := 1; y.Insert(key(i), make([]byte, 300)) == nil; i++ {
		}
		for _, b := range ownBlocks(y) {
			for i, inc := range had[b.Block] {
				if b.Incarnations[i] != 0 && b.Incarnations[i] < inc { // 0: it was not used
					t.Fatalf("verb %d failed: object %d of block %v has got incarnation %d, want %d at least",
						at, i, b.Block, b.Incarnations[i], inc)
				}
			}
		}
		must(t, y.Close())
		checkClean(t, f)
	}
}

// useOften makes a free object one that has been used often.
func useOften(t *testing.T, c *Client, p memory.Place) {
	t.Helper()
	p.Block.Incarnations[p.Index] += 100
	inc := p.Block.Incarnations[p.Index]
	b := c.s.Batch()
	defer b.Release()
	head := b.Alloc(layout.WriterAt)
	clear(head)
	layout.LE.PutUint64(head[layout.MarkAt:], uint64(inc))
	layout.LE.PutUint32(head[layout.IncarnationAt:], inc)
	for r := range c.s.Space.Copies(p.Block.Region) {
		b.Write(c.s.Space.UnitAt(c.mem.Tables.UnitOf(p), r), head)
	}
	must(t, c.s.Do("test", b))
}

// TestLateFreeOfVacantBlock: another client frees objects of an empty block for a second time, and
// has read their heads just before the block is wiped. Its marks do not land within the pairs that
// are there next.
func TestLateFreeOfVacantBlock(t *testing.T) {
	p := cramped(6)
	p.Timeout = 10 * time.Millisecond
	f := simPool(t, 1, p)
	x, ep := emptyBlocks(t, f)
	z := worker2(t, f)
	h := &onStep{Endpoint: open2(t, f)}
	y, err := Open(h, Options{})
	must(t, err)
	for _, e := range x.mem.Emptied {
		for i, inc := range e.Incarnations {
			unit := x.mem.Tables.UnitOf(memory.Place{Block: e.Block, Index: i})
			y.mem.Reclaim.Free(race.Pack(1, x.s.Classes.Units[e.Class], unit, x.s.Tag(inc)), inc)
		}
	}
	x.s.Sleep(p.Timeout)
	pairs, value := 0, strings.Repeat("v", 1000)
	h.then = func(b *rdma.Batch) error {
		if b.Step() == session.StepMarkFree && pairs == 0 {
			must(t, x.mem.Clear())
			for ; pairs < 12; pairs++ {
				must(t, z.Insert(key(pairs), []byte(value)))
			}
		}
		return nil
	}
	must(t, y.drain())
	if z.Stats().Converted == 0 {
		t.Fatal("no block was carved anew: this test shows nothing")
	}
	z.cache.reset(z.s.Index.Slots())
	for i := range pairs {
		wantValue(t, z, string(key(i)), value)
	}
	must(t, x.Close())
	must(t, ep.Close())
	must(t, y.Close())
	must(t, z.Close())
	checkClean(t, f)
}
