package fusee

import (
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/fusee/memory"
	"github.com/farkv/farkv/client/fusee/session"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
)

// failed is what the first verb of a batch fails with.
func failed(b *rdma.Batch, cause error) error {
	op := b.Op(0)
	return &rdma.OpError{Verb: op.Verb, Addr: op.Addr, Len: op.Len(), Err: cause}
}

// noFence returns an onStep.then that fails fences: nothing is learned of verbs that are in flight.
func noFence(cause error) func(b *rdma.Batch) error {
	return func(b *rdma.Batch) error {
		if b.Step() == session.StepProbe && b.Op(0).Fence {
			return failed(b, cause)
		}
		return nil
	}
}

// withHook returns a client of a pool with three replicas of the index, and its hook. It has
// inserted k.
func withHook(t *testing.T) (*Client, *sim.Sim, *onStep) {
	t.Helper()
	p := small(4, 3, 2)
	p.Timeout = 20 * time.Millisecond
	f := simPool(t, 4, p)
	h := &onStep{Endpoint: open2(t, f)}
	c, err := Open(h, thrifty(Options{}))
	must(t, err)
	must(t, c.Insert(k, []byte("old")))
	return c, f, h
}

// wantLeft closes a client, which leaves nothing behind.
func wantLeft(t *testing.T, c *Client, f *sim.Sim) {
	t.Helper()
	if len(c.unresolved.list) == 0 {
		t.Fatal("nothing is unresolved: this test shows nothing")
	}
	must(t, c.Close())
	checkClean(t, f)
}

// TestCloseBesideCut: a client closes while its connections are down that cut a write off, in each
// of that write's steps. It waits for them, and leaves.
func TestCloseBesideCut(t *testing.T) {
	for _, step := range []rdma.Step{session.StepWriteReadSlot, session.StepCASBackups, session.StepCommitLog,
		session.StepCASPrimary} {
		t.Run(string(step), func(t *testing.T) {
			c, f, h := withHook(t)
			var until time.Duration
			h.then = func(b *rdma.Batch) error {
				now := c.s.Now()
				if until == 0 && b.Step() == step {
					until = now + c.s.OpTimeout + 5*time.Millisecond
				}
				if now < until {
					return failed(b, rdma.ErrNodeDown)
				}
				return nil
			}
			wantError(t, c.Update(k, []byte("new")), rdma.ErrNodeDown)
			wantLeft(t, c, f)
		})
	}
}

// TestCloseLandsWrites: a client closes behind a write of which the wait has timed out. It finds
// out that the verbs have landed, and leaves. As long as it does not, its Close says why.
func TestCloseLandsWrites(t *testing.T) {
	for _, step := range []rdma.Step{session.StepWriteReadSlot, session.StepCASBackups, session.StepCommitLog,
		session.StepCASPrimary} {
		t.Run(string(step), func(t *testing.T) {
			c, f, h := withHook(t)
			h.then = once(step, rdma.ErrTimeout)
			wantError(t, c.Update(k, []byte("new")), rdma.ErrTimeout)
			h.then = noFence(rdma.ErrTimeout)
			err := c.Close()
			wantError(t, err, client.ErrUncertain)
			wantError(t, err, rdma.ErrTimeout)
			h.then = nil
			wantLeft(t, c, f)
		})
	}
}

// TestCloseAwaitsWinner: a client closes behind a write that has lost its round, the winner of
// which is about to change the primary. The client waits for that, and leaves.
func TestCloseAwaitsWinner(t *testing.T) {
	c, f, h := withHook(t)
	m, err := openMaster(open2(t, f))
	must(t, err)
	s, old := slotOf(t, c, m, k)
	rival := race.Tombstone(old.Print(), 60, 1) // below any pair's word: it wins by rule 3
	cas(t, m, s, 1, old, rival)
	wantError(t, c.Update(k, []byte("new")), client.ErrUncertain)
	looks := 0
	h.then = func(b *rdma.Batch) error {
		if b.Step() == session.StepFinish {
			looks++
		}
		if looks == 10 {
			looks++
			cas(t, m, s, 2, c.unresolved.list[0].word, rival)
			cas(t, m, s, 0, old, rival)
		}
		return nil
	}
	wantLeft(t, c, f)
}

// TestLateWriteBlocksNone: the CASes of a write land when its client has ceased to wait for them.
// The client ends the round with its next operations, whether it writes or reads. So another writer
// of the key does not wait for it for ever.
func TestLateWriteBlocksNone(t *testing.T) {
	for _, reads := range []bool{false, true} {
		t.Run(fmt.Sprintf("it reads: %v", reads), func(t *testing.T) {
			c, f, h := withHook(t)
			other, err := Open(open2(t, f), thrifty(Options{}))
			must(t, err)
			must(t, c.Insert(key(0), nil))
			h.then = func(b *rdma.Batch) error {
				if b.Step() != session.StepCASBackups {
					return nil
				}
				h.then = nil
				must(t, rdma.Do(h.Endpoint, b, time.Second))
				return failed(b, rdma.ErrTimeout)
			}
			wantError(t, c.Update(k, []byte("new")), client.ErrUncertain)
			wantError(t, other.Update(k, []byte("other")), client.ErrUncertain)
			for range memory.TendEvery {
				if reads {
					_, err = c.Get(key(0))
				} else {
					err = c.Update(key(0), nil)
				}
				must(t, err)
			}
			if err := other.Update(k, []byte("other")); err != nil {
				t.Errorf("another writer of the key: got %v, want no error", err)
			}
			wantValue(t, c, string(k), "other")
			must(t, c.Close())
			must(t, other.Close())
			checkClean(t, f)
		})
	}
}

// refuser has nodes refuse the CASes of a proposal, but for those that landed has done.
type refuser struct {
	rdma.Endpoint
	cause  error
	landed int
	then   func()
	batch  *rdma.Batch
}

func (h *refuser) Post(b *rdma.Batch) error {
	if h.then == nil || b.Step() != session.StepCASBackups {
		return h.Endpoint.Post(b)
	}
	for i := range b.Len() {
		op := b.Op(i)
		if i >= b.Len()-h.landed { // it is not known to have landed
			land := h.Batch()
			land.CompareSwap(op.Addr, op.Expect, op.Value)
			_ = rdma.Do(h.Endpoint, land, time.Second)
			land.Release()
			op.Fail(h.cause)
		} else {
			op.Fail(rdma.NoEffect(h.cause))
		}
	}
	h.batch = b
	h.then()
	h.then = nil
	return nil
}

func (h *refuser) Wait(b *rdma.Batch, n int, within time.Duration) error {
	if b == h.batch {
		h.batch = nil
		return nil
	}
	return h.Endpoint.Wait(b, n, within)
}

// TestRefusedProposal: the nodes refuse a DELETE's CASes. The DELETE knows that it has changed
// nothing, whatever others have written to the slot since. It begins again. If a CAS may have
// landed, it ends its own round.
func TestRefusedProposal(t *testing.T) {
	for _, test := range []struct {
		cause  error
		landed int
	}{{rdma.ErrStale, 0}, {rdma.ErrNodeDown, 0}, {rdma.ErrNodeDown, 1}} {
		t.Run(fmt.Sprintf("%v, %d landed", test.cause, test.landed), func(t *testing.T) {
			p := small(4, 3, 2)
			p.Timeout = 20 * time.Millisecond
			f := simPool(t, 4, p)
			h := &refuser{Endpoint: open2(t, f), cause: test.cause, landed: test.landed}
			c, err := Open(h, thrifty(Options{}))
			must(t, err)
			other, err := Open(open2(t, f), thrifty(Options{}))
			must(t, err)
			must(t, c.Insert(k, []byte("old")))
			h.then = func() {
				if test.cause == rdma.ErrStale {
					nextView(t, f, nil)
				}
				for i := 0; test.landed == 0 && i < 3; i++ {
					must(t, other.Update(k, fmt.Append(nil, i)))
				}
			}
			if err := c.Delete(k); err != nil {
				t.Errorf("got %v, want the key deleted", err)
			}
			wantError(t, other.Update(k, nil), client.ErrNotFound)
			must(t, c.Close())
			must(t, other.Close())
			checkClean(t, f)
		})
	}
}
