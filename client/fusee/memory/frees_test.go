package memory

import (
	"errors"
	"testing"
	"time"

	"github.com/farkv/farkv/client/fusee/layout"
	"github.com/farkv/farkv/client/fusee/session"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/workloads/check/teeth"
)

// params are those of a small pool of two nodes, of poolBytes each, without replicas.
func params(timeout time.Duration) layout.Params {
	return layout.Params{IndexReplicas: 1, DataReplicas: 1, Subtables: 2, Groups: 128, Regions: 12,
		RegionBytes: 1 << 20, BlockBytes: 8 << 10, Clients: 64, TagBits: 13, Timeout: timeout}
}

const poolBytes = 32 << 20

// pool returns a small pool in virtual time.
func pool(t *testing.T) rdma.Fabric {
	t.Helper()
	p := params(3 * time.Second)
	f := sim.New(sim.Options{Nodes: 2, Memory: poolBytes, Clients: p.Clients, Handler: node.Serve})
	t.Cleanup(func() { f.Close() })
	if err := session.Make(f, p); err != nil {
		t.Fatal(err)
	}
	return f
}

// allocator returns the memory of a new client of the pool.
func allocator(t *testing.T, f rdma.Fabric) *Allocator {
	t.Helper()
	ep, err := f.Open("client")
	if err != nil {
		t.Fatal(err)
	}
	s, err := session.Open(ep, 0)
	if err != nil {
		t.Fatal(err)
	}
	return New(s)
}

// A client's own object is not used again before what it replaced is free: only its log tells
// recovery what that is.
func TestOwnObjectsWaitForFrees(t *testing.T) {
	f := pool(t)
	a, b := allocator(t, f), allocator(t, f)
	theirs, err := b.Take(0, 0, false)
	if err != nil {
		t.Fatal(err)
	}
	mine, err := a.Take(0, 0, false)
	if err != nil {
		t.Fatal(err)
	}
	a.Reclaim.Lay(theirs)
	a.Reclaim.Lay(mine)
	a.s.Sleep(2 * a.Reclaim.Rest)
	a.s.Clock = a.s.Now()
	a.Reclaim.since = a.s.Clock
	idle := a.Holdings.Slabs[0].Idle()
	a.Reclaim.mature()
	if n := a.Holdings.Slabs[0].Idle(); n != idle || len(a.Reclaim.out) != 1 {
		t.Errorf("got %d free objects and %d frees to send, want %d and 1", n, len(a.Reclaim.out), idle)
	}
	if err := a.Reclaim.landAll(); err != nil {
		t.Fatal(err)
	}
	if n := a.Holdings.Slabs[0].Idle(); n != idle+1 {
		t.Errorf("got %d free objects, want %d", n, idle+1)
	}
}

// An object's earlier use is freed a second time while the next use is under way: that use is not
// over.
func TestEarlierUseIsFreedAgain(t *testing.T) {
	f := pool(t)
	a := allocator(t, f)
	take := func() layout.Object {
		o, err := a.Take(0, 0, false)
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	first := take()
	a.Reclaim.Lay(first)
	a.s.Sleep(2 * a.Reclaim.Rest)
	now := take()
	for now.Unit != first.Unit {
		now = take()
	}
	a.Reclaim.Lay(first)
	if a.Reclaim.Over(now) || !a.Reclaim.Over(first) {
		t.Errorf("use %d is over: %v, use %d: %v; want the first alone", first.Incarnation, a.Reclaim.Over(first),
			now.Incarnation, a.Reclaim.Over(now))
	}
	a.Reclaim.Lay(now)
	if !a.Reclaim.Over(now) {
		t.Errorf("use %d was freed, and is not over", now.Incarnation)
	}
}

// TestKeptBlockHasItsObjects: an object of a block that its client was leaving is freed as one of
// another client's. When the client keeps the block it takes the object back.
func TestKeptBlockHasItsObjects(t *testing.T) {
	f := pool(t)
	a, b := allocator(t, f), allocator(t, f)
	theirs, err := b.Take(0, 0, false)
	if err != nil {
		t.Fatal(err)
	}
	mine, err := a.Take(0, 0, false)
	if err != nil {
		t.Fatal(err)
	}
	for _, o := range []layout.Object{theirs, mine} {
		head := a.s.Batch()
		buf := head.Alloc(4)
		layout.LE.PutUint32(buf, o.Incarnation)
		head.Write(a.s.Space.UnitAt(o.Unit, 0).Add(layout.IncarnationAt), buf)
		if err := a.s.Do("test", head); err != nil {
			t.Fatal(err)
		}
		head.Release()
		a.Reclaim.Lay(o)
	}
	a.s.Sleep(2 * a.Reclaim.Rest)
	a.s.Clock = a.s.Now()
	a.Reclaim.since = a.s.Clock
	s := &a.Holdings.Slabs[0]
	had := s.Idle()
	a.Reclaim.mature() // it is ripe, and waits for the other client's
	a.Part(s.Split(s.Blocks[0]))
	if err := a.Reclaim.landAll(); err != nil {
		t.Fatal(err)
	}
	if err := a.tidy(); err != nil {
		t.Fatal(err)
	}
	if err := a.ReclaimAll(0); err != nil {
		t.Fatal(err)
	}
	if n := s.Idle(); n != had+1 || len(a.Parting) > 0 {
		t.Errorf("got %d free objects, want %d; %d slabs are left behind", n, had+1, len(a.Parting))
	}
}

// TestShedLeavesSome: a client with very many free objects in a tight pool leaves blocks of them by
// and by, and so many at a time that the operation that does it is not held up for all. The time
// that this takes is not the operation's.
func TestShedLeavesSome(t *testing.T) {
	f := pool(t).(*sim.Sim)
	f.Go("worker", func(ep rdma.Endpoint) {
		s, err := session.Open(ep, 0)
		if err != nil {
			t.Error(err)
			return
		}
		a := New(s)
		for range 10 {
			err = errors.Join(err, a.NewBlock(1))
		}
		for err == nil {
			err = a.NewBlock(0)
		}
		if n := a.Holdings.Slabs[0].Idle(); n < 100_000 || !errors.Is(err, rdma.ErrFull) {
			t.Errorf("got %d free objects, and then %v: this test shows nothing", n, err)
		}
		shedAll(t, a)
		lendAll(t, a)
	})
	if err := f.Run(); err != nil {
		t.Fatal(err)
	}
}

// shedAll takes objects until a client holds no more free ones than its share.
func shedAll(t *testing.T, a *Allocator) {
	s, sheds := &a.Holdings.Slabs[0], 0
	held := func() int { return len(s.Blocks) + len(a.Emptied) }
	for had := 0; s.Idle() > a.Holdings.share(0) && held() != had; sheds++ {
		had = held()
		began := a.s.Now()
		a.writes, a.s.Clock, a.s.Deadline = shedEvery-1, began, began+a.s.OpTimeout
		if _, err := a.Take(0, 0, false); err != nil {
			t.Error(err)
			return
		}
		if n := had - held(); n > syncBlocks {
			t.Errorf("an operation left %d blocks, want %d at most", n, syncBlocks)
		}
		now := a.s.Now()
		if left := a.s.Deadline - now; left != a.s.OpTimeout || a.s.Clock != now || now == began {
			t.Errorf("%v behind its beginning an operation has %v left, and its clock says %v, want %v and %v",
				now-began, left, a.s.Clock-began, a.s.OpTimeout, now-began)
		}
	}
	if s.Idle() > a.Holdings.share(0) || sheds < 3 {
		t.Errorf("%d operations left all but %d free objects, want %d and several",
			sheds, s.Idle(), a.Holdings.share(0))
	}
}

// lendAll lets a client lend its blocks of another class for an operation.
func lendAll(t *testing.T, a *Allocator) {
	s := &a.Holdings.Slabs[0]
	a.Part(s.Split(s.Blocks...))
	if err := a.LeaveParting(); err != nil {
		t.Error(err)
	}
	a.full, a.fair, a.s.Deadline = true, 0, a.s.Now()+a.s.OpTimeout
	was, lent := a.s.Deadline, a.s.Stats.Lent
	if _, err := a.Take(0, 0, false); err != nil || a.s.Stats.Lent-lent < 5 || a.s.Deadline <= was {
		t.Errorf("lent %d blocks, and moved the deadline by %v: %v", a.s.Stats.Lent-lent, a.s.Deadline-was, err)
	}
}

// mutants break the rules of this package that its own tests show. Package fusee has the others.
var mutants = []teeth.Mutant{
	{Rule: "an own object waits for the frees before it", In: "Reclaim.ripen",
		At: "$r.$landed == $r.$queued", Do: "$r.$landed <= $r.$queued", Test: "TestOwnObjectsWaitForFrees"},
	{Rule: "an earlier use that rests does not end a later one", In: "Reclaim.rests",
		At: "$x.$unit == $o.Unit && $r.isOf($x, $o.Incarnation)", Do: "$x.$unit == $o.Unit",
		Test: "TestEarlierUseIsFreedAgain"},
	{Rule: "what a client frees in a block that it is leaving is in none of its lists", In: "Reclaim.harvest",
		At: "$p.$block.setBusy($p.$index)", Do: "_ = $p", Test: "TestKeptBlockHasItsObjects"},
	{Rule: "a client with others beside it takes few empty blocks at a time", In: "Allocator.takeEmpty",
		At: "!$others", Do: "!$others || true",
		Test: "TestEmptyBlocksAreTaken"},
	{Rule: "an empty block that another client has won does not count", In: "Allocator.takeEmpty",
		At:   "if $mine { $most--; $err = $a.Vacate($all, $rest) }",
		Do:   "$most--; if $mine { $err = $a.Vacate($all, $rest) }",
		Test: "TestEmptyBlocksAreTaken"},
	{Rule: "an operation takes empty blocks for a part of its time", In: "Allocator.takeEmpty",
		At: "$a.$s.Now()-$began > $a.$s.OpTimeout/emptyShare", Do: "$began < 0",
		Test: "TestEmptyBlocksAreTaken"},
	{Rule: "nor does it empty its own for longer", In: "Allocator.Vacate",
		At: "$a.$s.Now()-$began > $a.$s.OpTimeout/emptyShare", Do: "$began < 0", Test: "TestVacateForAWhile"},
	{Rule: "empty blocks are carved anew before larger objects are used", In: "Allocator.refill",
		At: "$a.reshape($class, $reserve)", Do: "false, error(nil)", Test: "TestReshape"},
	{Rule: "a DELETE does not wait for that", In: "Allocator.reshape",
		At: "$reserve == 0", Do: "false", Test: "TestReshape"},
	{Rule: "nor does an operation that is late", In: "Allocator.reshape",
		At: "$age > $a.$s.OpTimeout/emptyShare", Do: "false", Test: "TestReshape"},
	{Rule: "nor one that was late in what it did for others", Pkg: "../session", In: "Session.Age",
		At: "$s.Until() - $s.OpTimeout - $s.$exempted", Do: "$s.Until() - $s.OpTimeout", Test: "TestReshapeEndsInTime"},
	{Rule: "an operation does not wait for blocks that rest too long", In: "Allocator.reshape",
		At: "min(last, latest)", Do: "last + 0*latest", Test: "TestReshapeEndsInTime"},
	{Rule: "objects that were not used since their block was carved get no marks", In: "Tables.writeHeads",
		At: "$p.$block.$incarnations[$p.$index] == 0", Do: "false", Test: "TestUnusedObjectsNeedNoMark"},
	{Rule: "an object that was not used begins above what its block had", In: "Block.use",
		At: "$b.$incarnations[$i] = $b.$floor", Do: "_ = i", Test: "TestUnusedObjectsNeedNoMark"},
	{Rule: "a node that does not answer takes the operation's time", Pkg: "../session", In: "Session.Exempt",
		At: "$err == nil", Do: "$err == $err", Test: "TestFailureTakesTime"},
	{Rule: "also one that does not answer while the client lends blocks", In: "Allocator.classFor",
		At: "$a.$s.Exempt($began, $err)", Nth: "1/2", Do: "a.s.Exempt(began, nil)", Test: "TestFailureTakesTime"},
	{Rule: "a client carves what it has emptied and waited for", In: "Allocator.watch",
		At: "$a.carveOwn($class)", Do: "false, error(nil)", Test: "TestWaiterCarvesItsOwn"},
	{Rule: "a client that waits takes as many empty blocks as are fair", In: "Allocator.awaitVacant",
		At: "max(1, $a.$fair)", Do: "mostTaken", Test: "TestWaitersLeaveSome"},
	{Rule: "clients in all regions count", In: "Allocator.lookAround",
		At: "false", Do: "true", Test: "TestWaitersLeaveSome"},
	{Rule: "regions without a block are not asked again", In: "Allocator.NewBlock",
		At: "$a.$s.Now() < $a.$spent", Do: "false", Test: "TestNodesAreAskedOnce"},
	{Rule: "for a timeout", In: "Allocator.NewBlock",
		At: "$a.$s.Now()+$a.$s.Timeout", Do: "$a.s.Now() + 2*$a.s.Timeout", Test: "TestNodesAreAskedOnce"},
	{Rule: "few of many blocks are carved anew where others have blocks", In: "Allocator.reshape",
		At: "$blocks/restShare", Do: "$blocks", Test: "TestReshape"},
	{Rule: "an operation leaves no more blocks than a trip takes", In: "Slab.surplus",
		At: "$n < syncBlocks", Do: "true", Test: "TestShedLeavesSome"},
	{Rule: "an operation's time goes on behind what it did for others", In: "Allocator.Take",
		At: "$a.$s.Exempt($began, nil)", Do: "_ = began", Test: "TestShedLeavesSome"},
	{Rule: "nor does what it lends count as its time", In: "Allocator.classFor",
		At: "$a.$s.Exempt($began, $err)", Nth: "1/2", Do: "_ = began", Test: "TestShedLeavesSome"},
}

func TestMutants(t *testing.T) { teeth.Suite{}.Run(t, mutants) }
