package memory

import (
	"errors"
	"testing"
	"time"

	"github.com/farkv/farkv/client/fusee/layout"
	"github.com/farkv/farkv/client/fusee/session"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// rival takes departed clients' blocks over just before its worker does, as often as it has left.
// Or its node is dead at a step.
type rival struct {
	rdma.Endpoint
	t    *testing.T
	s    *session.Session
	left int
	each time.Duration // how long a trip takes
	slow rdma.Step     // the only one that does; "": all
	dead rdma.Step     // "": never
}

func (r *rival) Post(b *rdma.Batch) error {
	if r.slow == "" || r.slow == b.Step() {
		r.Sleep(r.each)
	}
	if b.Step() == r.dead {
		return rdma.ErrNodeDown
	}
	if op := b.Op(0); b.Step() == session.StepTakeOver && r.left > 0 {
		r.left--
		e := node.Entry(op.Expect)
		if _, err := r.s.Swap("test", op.Addr, uint64(e), uint64(e.Next(r.s.ID, e.Class()))); err != nil {
			r.t.Error(err)
		}
	}
	return r.Endpoint.Post(b)
}

// Call ends likewise, where the node is dead.
func (r *rival) Call(to int, q *rdma.Request, within time.Duration) error {
	if q.Step == r.dead {
		return rdma.ErrNodeDown
	}
	return r.Endpoint.Call(to, q, within)
}

// TestWaiterCarvesItsOwn: what a client has emptied, and waited for, is not vacant before it is its
// own again, of another class.
func TestWaiterCarvesItsOwn(t *testing.T) {
	f := pool(t)
	x, a := allocator(t, f), allocator(t, f)
	for range 2 { // one of them is kept for DELETEs
		if err := a.NewBlock(2); err != nil {
			t.Fatal(err)
		}
	}
	for x.NewBlock(1) == nil {
	}
	a.s.Endpoint = &rival{Endpoint: a.s.Endpoint, t: t, dead: session.StepPassOn}
	if o, err := a.Take(5, 1, false); err != nil || o.Class != 5 {
		t.Errorf("got an object of class %d, want 5: %v", o.Class, err)
	}
}

// TestWaitersLeaveSome: where many clients have blocks, in whatever regions, each that waits takes
// few of those that are empty.
func TestWaitersLeaveSome(t *testing.T) {
	f := pool(t)
	x, a := allocator(t, f), allocator(t, f)
	const empty, owners, fair = 20, 60, 1524/(fairShare*60) - 1
	for range empty {
		if err := x.NewBlock(2); err != nil {
			t.Fatal(err)
		}
	}
	if err := x.LeaveAll(); err != nil {
		t.Fatal(err)
	}
	var other *Allocator
	for range owners {
		other = allocator(t, f)
		if err := other.NewBlock(1); err != nil {
			t.Fatal(err)
		}
	}
	for other.NewBlock(1) == nil {
	}
	if o, err := a.Take(5, 1, false); err != nil || o.Class != 5 {
		t.Errorf("got an object of class %d, want 5: %v", o.Class, err)
	}
	list, err := a.Tables.entries(empty, func(e node.Entry) bool { return e.Owner() == node.Left })
	if n := empty - len(list); err != nil || n != fair {
		t.Errorf("one client took %d blocks of %d, want %d: %v", n, empty, fair, err)
	}
}

// TestNodesAreAskedOnce: regions that had no block are asked again when a timeout is over.
func TestNodesAreAskedOnce(t *testing.T) {
	f := pool(t)
	a := allocator(t, f)
	for a.NewBlock(1) == nil {
	}
	a.s.Endpoint = &rival{Endpoint: a.s.Endpoint, t: t, dead: session.StepAllocate}
	if err := a.NewBlock(1); !errors.Is(err, rdma.ErrFull) {
		t.Errorf("got %v, want that the pool is full", err)
	}
	a.s.Sleep(a.s.Timeout)
	if err := a.NewBlock(1); !errors.Is(err, rdma.ErrNodeDown) {
		t.Errorf("behind a timeout: got %v, want a call", err)
	}
}

// TestEmptyBlocksAreTaken: how many empty blocks of a departed client another one takes at a time,
// with others beside it or not. Those that others win do not count. Where verbs are slow it takes
// one.
func TestEmptyBlocksAreTaken(t *testing.T) {
	for _, test := range []struct {
		others   bool
		won      int // by a rival
		each     time.Duration
		expected int
	}{{false, 0, 0, 15}, {true, 0, 0, mostTaken}, {true, mostTaken, 0, mostTaken}, {false, 0, time.Second, 1}} {
		f := pool(t)
		x, other, a := allocator(t, f), allocator(t, f), allocator(t, f)
		for range 20 {
			if err := x.NewBlock(0); err != nil {
				t.Fatal(err)
			}
		}
		if err := x.LeaveAll(); err != nil {
			t.Fatal(err)
		}
		if test.others { // it has one block, in one of twelve regions
			if err := other.NewBlock(1); err != nil {
				t.Fatal(err)
			}
		}
		a.s.Endpoint = &rival{Endpoint: a.s.Endpoint, t: t, s: other.s, left: test.won, each: test.each}
		if err := a.takeEmpty(0, mostTaken, true); err != nil {
			t.Fatal(err)
		}
		if n := len(a.Emptied); n != test.expected {
			t.Errorf("%+v: got %d blocks that rest, want %d", test, n, test.expected)
		}
	}
}

// TestVacateForAWhile: where marks take long a client takes one of its empty blocks out of use at a
// time.
func TestVacateForAWhile(t *testing.T) {
	f := pool(t)
	a := allocator(t, f)
	for range 3 {
		if err := a.NewBlock(0); err != nil {
			t.Fatal(err)
		}
	}
	for _, b := range a.Holdings.Slabs[0].Blocks {
		b.Incarnations[0] = 1 // so that there is a mark to write
	}
	a.s.Endpoint = &rival{Endpoint: a.s.Endpoint, t: t, each: a.s.OpTimeout / 2}
	for n := 1; n <= 3; n++ {
		if err := a.Vacate(true, mostEmptied); err != nil || len(a.Emptied) != n {
			t.Errorf("got %d blocks that rest, want %d: %v", len(a.Emptied), n, err)
		}
	}
}

// TestReshape: in a pool of which all blocks are empty, and of a larger class, an object of a class
// of its own is waited for, once, whether or not others have blocks, of which it then takes few;
// but not for a DELETE, or by an operation that is late.
func TestReshape(t *testing.T) {
	for _, test := range []struct {
		deletes, others, late bool
		vacant                int // behind it, beside the one that was taken, and one for DELETEs
	}{{vacant: manyCandidates*3/4 - 2}, {others: true, vacant: 1524/restShare - 2}, {deletes: true}, {late: true}} {
		f := pool(t)
		x, other, a := allocator(t, f), allocator(t, f), allocator(t, f)
		if test.others {
			if err := other.NewBlock(1); err != nil {
				t.Fatal(err)
			}
		}
		for x.NewBlock(len(x.Holdings.Slabs)-1) == nil {
		}
		if err := x.LeaveAll(); err != nil {
			t.Fatal(err)
		}
		began, waits := a.s.Now(), !test.deletes && !test.late
		if a.s.Deadline = began + a.s.OpTimeout; test.late {
			a.s.Deadline -= a.s.OpTimeout / 2
		}
		o, err := a.Take(3, 1, test.deletes)
		took := a.s.Now() - began
		least, most := a.s.Timeout, 2*a.s.Timeout
		if !waits {
			least, most = 0, a.s.Timeout/10
		}
		if err != nil || (o.Class == 3) != waits || took < least || took > most {
			t.Errorf("%+v: got an object of class %d in %v, want class 3 only where it waits: %v",
				test, o.Class, took, err)
		}
		list, err := a.Tables.ListAll(0, manyCandidates, layout.IsVacant)
		if err != nil || len(list) != test.vacant {
			t.Errorf("%+v: got %d vacant blocks, want %d: %v", test, len(list), test.vacant, err)
		}
		began = a.s.Now()
		if _, err := a.Take(2, 1, test.deletes); err != nil || a.s.Now() != began {
			t.Errorf("%+v: got another object in %v, want it at once: %v", test, a.s.Now()-began, err)
		}
	}
}

// TestReshapeEndsInTime: where it takes long to take blocks out of use, an operation does not wait
// for the last one, and what it did for others before counts.
func TestReshapeEndsInTime(t *testing.T) {
	for _, before := range []time.Duration{0, 3, 6} { // eightieths of the timeout
		f := pool(t)
		x, a := allocator(t, f), allocator(t, f)
		for x.NewBlock(len(x.Holdings.Slabs)-1) == nil {
		}
		for _, b := range x.Holdings.Slabs[len(x.Holdings.Slabs)-1].Blocks {
			b.Incarnations[0] = 1 // so that there is a mark to write
		}
		if err := x.LeaveAll(); err != nil {
			t.Fatal(err)
		}
		part := a.s.OpTimeout / 80
		a.s.Endpoint = &rival{Endpoint: a.s.Endpoint, t: t, each: 13 * part, slow: session.StepMarkFree}
		a.s.Start()
		began := a.s.Until() - a.s.OpTimeout
		a.s.Sleep(before * part)
		a.s.Exempt(began, nil)
		o, err := a.Take(3, 1, false)
		if took := a.s.Now() - began; err != nil || o.Class != 3 || len(a.Emptied) != 1 || took > 101*part {
			t.Errorf("%v: got an object of class %d in %v, want class 3 in %v; %d blocks rest still, want 1: %v",
				before*part, o.Class, took, 101*part, len(a.Emptied), err)
		}
	}
}

// TestUnusedObjectsNeedNoMark: an object that was not used since its block was carved anew is free
// without a mark, as its memory is zero.
func TestUnusedObjectsNeedNoMark(t *testing.T) {
	f := pool(t)
	x, a := allocator(t, f), allocator(t, f)
	if err := x.NewBlock(2); err != nil {
		t.Fatal(err)
	}
	const used = 9
	x.Holdings.Slabs[2].Blocks[0].Incarnations[0] = used
	if err := x.Vacate(true, mostEmptied); err != nil {
		t.Fatal(err)
	}
	x.s.Sleep(x.s.Timeout)
	if err := x.Clear(); err != nil {
		t.Fatal(err)
	}
	if ok, err := a.carveVacant(0); !ok || err != nil {
		t.Fatalf("got no vacant block: %v", err)
	}
	for range 2 { // the first object, which has the floor, and one that was not used
		if o, err := a.Take(0, 0, false); err != nil || o.Incarnation != used+1 {
			t.Errorf("got incarnation %d, want %d: %v", o.Incarnation, used+1, err)
		}
	}
	a.s.Endpoint = &rival{Endpoint: a.s.Endpoint, t: t, each: time.Millisecond, slow: session.StepMarkFree}
	unused, began := a.Holdings.Slabs[0].Free.Items(), a.s.Now()
	if err := a.Tables.writeHeads(unused, true); err != nil || a.s.Now() != began {
		t.Errorf("%d objects got marks in %v, want none: %v", len(unused), a.s.Now()-began, err)
	}
}

// TestFailureTakesTime: a node that does not answer takes the operation's time, also where what the
// operation asked it for would not: to carve blocks anew, or to lend its own.
func TestFailureTakesTime(t *testing.T) {
	for _, lends := range []bool{false, true} {
		f := pool(t)
		x, a := allocator(t, f), allocator(t, f)
		step := session.StepTakeOver
		for i := 0; lends && i < 3; i++ {
			step = session.StepPassOn
			if err := a.NewBlock(5); err != nil {
				t.Fatal(err)
			}
		}
		for x.NewBlock(len(x.Holdings.Slabs)-1) == nil {
		}
		if err := x.LeaveAll(); err != nil {
			t.Fatal(err)
		}
		a.full = lends
		a.s.Endpoint = &rival{Endpoint: a.s.Endpoint, t: t, each: time.Millisecond, dead: step}
		a.s.Start()
		was := a.s.Until()
		if _, err := a.Take(3, 1, false); !errors.Is(err, rdma.ErrNodeDown) || a.s.Until() != was {
			t.Errorf("%v: the deadline moved by %v: %v", step, a.s.Until()-was, err)
		}
	}
}
