package fusee

import (
	"cmp"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/fusee/layout"
	"github.com/farkv/farkv/client/fusee/session"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
)

// onStep runs a function before each batch of its worker. An error of it fails the batch, which is
// not posted.
type onStep struct {
	rdma.Endpoint
	then func(b *rdma.Batch) error
}

func (h *onStep) Post(b *rdma.Batch) error {
	if h.then != nil {
		if err := h.then(b); err != nil {
			return err
		}
	}
	return h.Endpoint.Post(b)
}

// once returns an onStep.then that fails the first batch of a step.
func once(step rdma.Step, cause error) func(b *rdma.Batch) error {
	done := false
	return func(b *rdma.Batch) error {
		if done || b.Step() != step {
			return nil
		}
		done = true
		return &rdma.OpError{Verb: b.Op(0).Verb, Addr: b.Op(0).Addr, Len: b.Op(0).Len(), Err: cause}
	}
}

// TestUncertainWriteMoves: a view in which the index grows cuts an UPDATE off, and its client
// cannot catch up with that view within the operation. The pair has moved by then. What the client
// frees later is not the pair that the key has, whether the master took the UPDATE back or
// completed it.
func TestUncertainWriteMoves(t *testing.T) {
	for _, lands := range []bool{false, true} {
		t.Run(fmt.Sprintf("lands: %v", lands), func(t *testing.T) { uncertainWriteMoves(t, lands) })
	}
}

// beforeGrowth returns a client of a pool in which the next master splits the index. The client has
// inserted 20 pairs, of which the given one moves then.
func beforeGrowth(t *testing.T) (c *Client, f *sim.Sim, h *onStep, moves int) {
	t.Helper()
	f = simPool(t, 3, growing(2, 2, 4))
	h = &onStep{Endpoint: open2(t, f)}
	c, err := Open(h, Options{})
	must(t, err)
	larger := c.s.Index
	larger.Resize(c.s.Subtables, make([][]node.Replica, 2))
	for larger.SubtableOf(race.Hash(key(moves))) == 0 {
		moves++
	}
	for i := range 20 {
		must(t, c.Insert(key(i), []byte("old")))
	}
	must(t, c.views.ask(2))
	return c, f, h, moves
}

func uncertainWriteMoves(t *testing.T, lands bool) {
	c, f, h, moves := beforeGrowth(t)
	h.then = func(b *rdma.Batch) error {
		if b.Step() != session.StepCASBackups {
			return nil
		}
		h.then = once(session.StepReadTables, rdma.ErrTimeout)
		if lands {
			must(t, rdma.Do(h.Endpoint, b, time.Second))
		}
		recoverNow(t, f)
		return fmt.Errorf("cut off: %w", rdma.ErrStale)
	}
	wantError(t, c.Update(key(moves), []byte("new")), client.ErrUncertain)
	want := "old"
	if lands {
		want = "new"
	}
	// The next write resolves it, and others use what is free then.
	must(t, c.Insert(key(20), []byte("old")))
	if n := len(c.s.Index.Place); n != 2 {
		t.Fatalf("the index has %d subtables: this test shows nothing", n)
	}
	wantKept(t, c, f, key(moves), want)
}

// TestCutOffTwice: a node does not answer a client for a moment, just when the client catches up
// with the view that cut its UPDATE off. The UPDATE ends by what is known of that view all the
// same: its pair has moved, or a round that it would have lost is its own.
func TestCutOffTwice(t *testing.T) {
	for _, lands := range []bool{false, true} {
		t.Run(fmt.Sprintf("the pair moves, lands: %v", lands), func(t *testing.T) {
			c, f, h, moves := beforeGrowth(t)
			h.then = func(b *rdma.Batch) error {
				if b.Step() != session.StepCASBackups {
					return nil
				}
				failed := 0
				h.then = func(b *rdma.Batch) error {
					if failed == len(c.s.Holders) {
						return nil
					}
					err := once(session.StepReadSize, rdma.ErrNodeDown)(b)
					if err != nil {
						failed++
					}
					return err
				}
				if lands {
					must(t, rdma.Do(h.Endpoint, b, time.Second))
				}
				recoverNow(t, f)
				return fmt.Errorf("cut off: %w", rdma.ErrStale)
			}
			must(t, c.Update(key(moves), []byte("new")))
			wantKept(t, c, f, key(moves), "new")
		})
	}
	t.Run("the rival's word is gone", func(t *testing.T) {
		f := simPool(t, 4, small(4, 3, 2))
		h := &onStep{Endpoint: open2(t, f)}
		c, err := Open(h, Options{})
		must(t, err)
		must(t, c.Insert(k, []byte("old")))
		m, err := openMaster(open2(t, f))
		must(t, err)
		s, word := slotOf(t, c, m, k)
		cas(t, m, s, 1, word, race.Tombstone(word.Print(), 60, 1)) // below any pair's word: it wins by rule 3
		primary := c.s.Index.PlaceOf(s)[0].Node
		h.then = func(b *rdma.Batch) error {
			if b.Step() != session.StepAwaitWinner {
				return nil
			}
			h.then = once(session.StepReadTables, rdma.ErrNodeDown)
			nextView(t, f, func() {
				must(t, f.KillNode(primary))
				if ok, err := f.SetMember(1, primary, rdma.Member{}, rdma.Member{Gone: true}); !ok || err != nil {
					t.Fatal(ok, err)
				}
			})
			return &rdma.OpError{Verb: rdma.Read, Addr: b.Op(0).Addr, Len: 8, Err: rdma.ErrNodeDown}
		}
		must(t, c.Update(k, []byte("new")))
		wantKept(t, c, f, k, "new")
	})
}

// wantKept expects a pair's value after many writes of its client, which closes then. None of them
// takes the pair's object.
func wantKept(t *testing.T, c *Client, f rdma.Fabric, key []byte, want string) {
	t.Helper()
	for i := range 40 {
		c.s.Sleep(2 * c.mem.Reclaim.Rest)
		must(t, c.Insert(fmt.Appendf(nil, "another %d", i), []byte("old")))
	}
	c.cache.reset(c.s.Index.Slots())
	wantValue(t, c, string(key), want)
	must(t, c.Close())
	checkClean(t, f)
}

// TestFullPoolBlip: a node does not answer a client for a moment, in the first trip of a DELETE.
// The object that the client has kept for its DELETEs in a full pool comes back.
func TestFullPoolBlip(t *testing.T) {
	for _, test := range []struct {
		step  rdma.Step
		cause error
	}{
		{session.StepWriteReadSlot, rdma.ErrNodeDown}, {session.StepWriteReadBuckets, rdma.ErrNodeDown},
		{session.StepReadPairs, errSilent},
	} {
		t.Run(string(test.step), func(t *testing.T) {
			p := cramped(5)
			p.DataReplicas = 2
			f := simPool(t, 2, p)
			h := &onStep{Endpoint: open2(t, f)}
			c, err := Open(h, Options{})
			must(t, err)
			n := 0
			for ; err == nil; n++ {
				err = c.Insert(key(n), make([]byte, 300))
			}
			wantError(t, err, client.ErrFull)
			if test.step != session.StepWriteReadSlot {
				c.cache.reset(c.s.Index.Slots())
			}
			blip := once(test.step, test.cause)
			h.then = func(b *rdma.Batch) error {
				if s := b.Step(); test.cause == errSilent && (s == session.StepProbe || s == session.StepMarkFree) {
					return fmt.Errorf("it is silent still: %w", rdma.ErrNodeDown)
				}
				return blip(b)
			}
			must(t, c.Delete(key(0)))
			if len(c.unresolved.list) > 0 {
				t.Error("an object is still kept")
			}
			h.then = nil
			must(t, c.Delete(key(1)))
			must(t, c.Close())
			checkClean(t, f)
		})
	}
}

// TestFailedPieceIsSweptAgain: a sweep goes back to a piece that failed, be it the last one or not.
func TestFailedPieceIsSweptAgain(t *testing.T) {
	for _, blocks := range []int{1, 200} {
		t.Run(fmt.Sprintf("%d blocks", blocks), func(t *testing.T) {
			f := simPool(t, 1, small(1, 1, 1))
			c := worker2(t, f)
			value := make([]byte, 6000) // one object a block
			for i := range blocks {
				must(t, c.begin(layout.OpInsert, key(i), value))
				b := c.s.Batch()
				c.draft.write(c.s, b)
				must(t, c.s.Do(session.StepWriteReadBuckets, b))
				b.Release()
			}
			must(t, c.Close())
			h := &onStep{Endpoint: open2(t, f), then: once(session.StepMarkFree, rdma.ErrTimeout)}
			m, err := openMaster(h)
			must(t, err)
			wantError(t, m.Sweep(m.s.View.View), rdma.ErrTimeout)
			if more, err := m.Unswept(m.s.View.View); err != nil || !more {
				t.Errorf("got %v, %v, want more to sweep", more, err)
			}
			must(t, sweepAll(m))
			if r, err := Check(f); err != nil || len(r.Damage)+len(r.Waiting) > 0 {
				t.Errorf("objects are leaked: %q %q %v", r.Damage, r.Waiting, err)
			}
		})
	}
}

// TestIndexShrinks: a client learns under a busy view that the index has grown, from a node that
// dies with the master, and no other node has the larger size. The client goes on with the smaller
// index, and reads no pair where a part of the index would have been.
func TestIndexShrinks(t *testing.T) {
	for _, cached := range []bool{false, true} {
		t.Run(fmt.Sprintf("cached: %v", cached), func(t *testing.T) { indexShrinks(t, cached) })
	}
}

func indexShrinks(t *testing.T, cached bool) {
	f := simPool(t, 3, growing(2, 2, 4))
	c := worker2(t, f)
	larger := c.s.Index
	larger.Resize(c.s.Subtables, make([][]node.Replica, 2))
	var moves []int
	for i := range 20 {
		must(t, c.Insert(key(i), []byte("old")))
		if larger.SubtableOf(race.Hash(key(i))) == 1 {
			moves = append(moves, i)
		}
	}
	must(t, c.views.ask(2))
	if ok, err := f.Advance(rdma.State{}, rdma.State{Epoch: 1, Busy: true}); !ok || err != nil {
		t.Fatal(ok, err)
	}
	must(t, f.Fence(1))
	h := &onStep{Endpoint: open2(t, f)}
	m, err := openMaster(h)
	must(t, err)
	write := func(a rdma.Addr, word uint64) {
		b := m.s.Batch()
		defer b.Release()
		b.WriteWord(a, word)
		must(t, rdma.Do(h.Endpoint, b, time.Second))
	}
	dies := c.s.Holders[int(c.s.ID)%len(c.s.Holders)] // the client reads the size there
	h.then = func(b *rdma.Batch) error {
		if b.Step() != session.StepWriteSize {
			return nil
		}
		write(m.s.SizeAt(dies), m.s.SizeWord(2, true))
		return fmt.Errorf("the master is dead: %w", rdma.ErrClosed)
	}
	wantError(t, m.Mend(m.s.View.View), rdma.ErrClosed)
	for _, i := range moves {
		wantValue(t, c, string(key(i)), "old")
	}
	if n := len(c.s.Index.Place); n != 2 {
		t.Fatalf("the client knows of %d subtables: this test shows nothing", n)
	}
	// The node's word is lost with it, and the next master splits nothing.
	h.then = nil
	write(m.s.SizeAt(dies), 0)
	write(m.s.Wanted(m.s.Holders[0]), 0)
	must(t, m.Mend(m.s.View.View))
	if ok, err := f.Advance(rdma.State{Epoch: 1, Busy: true}, rdma.State{Epoch: 1}); !ok || err != nil {
		t.Fatal(ok, err)
	}
	must(t, worker2(t, f).Update(key(moves[0]), []byte("new")))
	if !cached {
		c.cache.Drop(race.Hash(key(moves[0])))
	}
	wantValue(t, c, string(key(moves[0])), "new")
	for _, i := range moves {
		must(t, c.Update(key(i), []byte("newer")))
		wantValue(t, c, string(key(i)), "newer")
	}
	must(t, c.Close())
}

// TestUndoneUpdateLandsNothing: a client undoes its own UPDATE, in a view that stays. Nothing but a
// fence says that verbs of another write have landed, which timed out in that view.
func TestUndoneUpdateLandsNothing(t *testing.T) {
	f := simPool(t, 3, small(3, 2, 2))
	h := &onStep{Endpoint: open2(t, f)}
	c, err := Open(h, Options{})
	must(t, err)
	must(t, c.Insert(key(0), []byte("old")))
	h.then = once(session.StepWriteReadBuckets, rdma.ErrTimeout)
	wantError(t, c.Insert(key(1), nil), rdma.ErrTimeout)
	if len(c.unresolved.list) != 1 || !c.unresolved.list[0].flying {
		t.Fatalf("got %+v, want an object with verbs in flight", c.unresolved.list)
	}
	cut, unfenced := once(session.StepCASBackups, rdma.ErrNodeDown), noFence(rdma.ErrTimeout)
	h.then = func(b *rdma.Batch) error { return cmp.Or(cut(b), unfenced(b)) }
	must(t, c.Update(key(0), []byte("new")))
	if len(c.unresolved.list) != 1 || !c.unresolved.list[0].flying {
		t.Errorf("got %+v, want an object with verbs in flight still", c.unresolved.list)
	}
	wantValue(t, c, string(key(0)), "new")
	h.then = nil
	c.unresolved.settle(true)
	if len(c.unresolved.list) > 0 {
		t.Errorf("got %+v, want none behind a fence", c.unresolved.list)
	}
	must(t, c.Close())
	checkClean(t, f)
}

// deadReplacer returns a pool in which a node hands out objects, and a dead client of it. replaced
// is a word that the client has replaced, and of which it has not freed the object.
func deadReplacer(t *testing.T) (f *sim.Sim, dead rdma.ClientID, replaced race.Word) {
	t.Helper()
	p := cramped(5)
	p.NodeCentric = true
	f = simPool(t, 1, p)
	ep, err := f.Open("dead")
	must(t, err)
	c, err := Open(ep, Options{})
	must(t, err)
	must(t, c.Insert(k, []byte("1")))
	replaced = c.cache.Find(race.Hash(k)).word
	must(t, c.Update(k, []byte("2")))
	must(t, f.Revoke(c.s.ID))
	must(t, ep.Close())
	return f, c.s.ID, replaced
}

// TestHandedOutAgain: the recovery of a client fails while the hints are set of the objects that it
// frees, and is repeated. Their node hands them out again.
func TestHandedOutAgain(t *testing.T) {
	f, dead, replaced := deadReplacer(t)
	m, err := openMaster(&onStep{Endpoint: open2(t, f), then: once(session.StepSetBits, rdma.ErrTimeout)})
	must(t, err)
	if err := m.Recover(m.s.View.View, dead); !errors.Is(err, rdma.ErrTimeout) {
		must(t, err)
	}
	must(t, m.Recover(m.s.View.View, dead))
	c := worker2(t, f)
	for err == nil && c.draft.Unit != replaced.Unit() {
		err = c.begin(layout.OpInsert, k, nil)
	}
	if err != nil {
		t.Errorf("got %v, want the object at %d again", err, replaced.Unit())
	}
}

// TestHandedOutOnce: a client frees what a dead one has replaced, and the object's node hands it
// out before it is written again. Recovery, which knows of it from the dead client's log, does not
// offer the object once more.
func TestHandedOutOnce(t *testing.T) {
	f, _, replaced := deadReplacer(t)
	first, second := worker2(t, f), worker2(t, f)
	first.mem.Reclaim.Free(replaced, 1)
	must(t, first.drain())
	must(t, first.begin(layout.OpInsert, k, []byte("3")))
	if got := first.draft.Unit; got != replaced.Unit() {
		t.Fatalf("got the object at %d, not the one at %d: this test shows nothing", got, replaced.Unit())
	}
	recoverNow(t, f)
	must(t, second.s.View.Join())
	must(t, second.begin(layout.OpInsert, k, []byte("4")))
	if got := second.draft.Unit; got == replaced.Unit() {
		t.Errorf("got the object at %d twice, want another one", got)
	}
}
