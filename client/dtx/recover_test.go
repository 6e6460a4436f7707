package dtx

import (
	"bytes"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/fault"
)

// TestRecovered: until a client is recovered others wait for what it has locked, and no longer;
// then it is all there, or nothing, and the next holder of its identity begins above all that it
// used.
func TestRecovered(t *testing.T) {
	for _, step := range []rdma.Step{stepLock, stepValidate, stepLog, stepCommit} {
		for _, early := range []bool{false, true} {
			if early && step == stepValidate { // there is nothing to validate
				continue
			}
			f, l := pool(t, Shape{Roots: 3})
			a, b, c := l.Root(0), l.Root(1), l.Root(2)
			w := worker(t, f, l, Options{})
			must(t, set(w, "old", a, b, c))
			dead := doomed(t, f, l, step)
			err := dead.Run(func(tx *Tx) error {
				if early {
					if err := tx.Lock(c); err != nil {
						return err
					}
				}
				_, err := tx.Read(c)
				return errors.Join(err, tx.Write(a, []byte("new")), tx.Write(b, []byte("new")))
			})
			wantError(t, err, rdma.ErrClosed)
			if step != stepLock {
				wantError(t, set(worker(t, f, l, Options{Timeout: brief}), "never", a), rdma.ErrTimeout)
			}
			must(t, f.Revoke(dead.id))
			must(t, w.Recover(dead.id))
			want := "[old old old]"
			if step == stepCommit {
				want = "[new new old]"
			}
			wantData(t, w, want, a, b, c)
			must(t, set(w, "all", a, b, c))
			r := newRaw(t, f, l)
			if ended := r.word(l.log(dead.id).Add(endedAt)); ended < dead.numbers.Used() {
				t.Errorf("all is over up to %d, and %d was used", ended, dead.numbers.Used())
			}
			must(t, w.Recover(dead.id)) // once more
			wantData(t, w, "[all all all]", a, b, c)
		}
	}
}

// TestReplayOnce: a recovery stands still, and goes on when another one and a
// later transaction have ended. It does not write over the later transaction: no
// two recoveries have the claim.
func TestReplayOnce(t *testing.T) {
	f, l := pool(t, Shape{Roots: 2})
	a, b := l.Root(0), l.Root(1)
	w := worker(t, f, l, Options{})
	must(t, set(w, "old", a, b))
	dead := doomed(t, f, l, stepCommit)
	wantError(t, set(dead, "dead's", a, b), rdma.ErrClosed)
	must(t, f.Revoke(dead.id))
	slow, before := hookedWorker(t, f, l, Options{})
	other := worker(t, f, l, Options{Timeout: brief})
	before[stepReplay] = func() {
		wantError(t, other.Recover(dead.id), rdma.ErrTimeout)
		wantError(t, set(other, "later", a), rdma.ErrTimeout)
	}
	must(t, slow.Recover(dead.id))
	wantData(t, w, "[dead's dead's]", a, b)
	if slow.stats.Replayed != 1 || other.stats.Replayed != 0 {
		t.Errorf("the slow one replayed %d, the other %d", slow.stats.Replayed, other.stats.Replayed)
	}
}

// lateReplay is the endpoint of a worker that does not reach a node when it replays. What it posts
// there is held up, and may land later.
type lateReplay struct {
	rdma.Endpoint
	step rdma.Step
	node int // -1: it reaches all
	held []rdma.Op
	// silent: the batch is not answered at all during so many waits. All of it is held up.
	silent int
	// posted puts a batch in flight.
	posted func(b *rdma.Batch)
	// batch is the one that is in flight; nil: none is.
	batch *rdma.Batch
}

func (e *lateReplay) Post(b *rdma.Batch) error {
	if b.Step() != e.step || e.node < 0 {
		return e.Endpoint.Post(b)
	}
	if e.silent > 0 {
		for i := range b.Len() {
			late := *b.Op(i)
			late.Buf = bytes.Clone(late.Buf)
			e.held = append(e.held, late)
		}
		e.batch = b
		e.posted(b)
		return nil
	}
	for i := range b.Len() {
		op := b.Op(i)
		switch late := *op; {
		case op.Addr.Node() != e.node:
		case op.Verb == rdma.Write:
			late.Buf = bytes.Clone(op.Buf)
			e.held = append(e.held, late)
			op.Verb = rdma.Read
		default:
			e.held = append(e.held, late)
			op.Expect = ^op.Expect // no word has that
		}
	}
	err := e.Endpoint.Post(b)
	for i := range b.Len() {
		if op := b.Op(i); op.Addr.Node() == e.node {
			op.Fail(rdma.ErrNodeDown)
		}
	}
	return err
}

func (e *lateReplay) Wait(b *rdma.Batch, n int, within time.Duration) error {
	if b == e.batch {
		if e.silent--; e.silent >= 0 {
			return rdma.ErrTimeout
		}
		for i := range b.Len() {
			b.Op(i).Fail(rdma.ErrNodeDown)
		}
		b.CompleteAll()
		e.batch = nil
	}
	return e.Endpoint.Wait(b, n, within)
}

// TestLateReplay: a node does not answer the WRITE of a recovery, which lands later. No other
// client has replayed the log by then, so it is not written over what a third one has committed.
func TestLateReplay(t *testing.T) {
	for _, c := range []struct {
		name   string
		silent int
		err    error // of the recovery
		again  bool  // it is tried again, and the answer of its claim is lost
	}{
		{"down", 0, rdma.ErrNodeDown, false},
		{"down, and claimed again", 0, rdma.ErrNodeDown, true},
		{"down behind the time", 1, rdma.ErrTimeout, false},
		{"silent", 2, rdma.ErrTimeout, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			f, l := pool(t, Shape{Roots: 3})
			a, b, free := l.Root(0), l.Root(1), l.Root(2)
			w := worker(t, f, l, Options{})
			must(t, set(w, "old", a, b, free))
			ep, err := f.Open("dead")
			must(t, err)
			dead := open(t, fault.New(ep, fault.Fault{Step: stepCommit, Crash: fault.Stop}), l, Options{})
			wantError(t, set(dead, "dead's", a, b), rdma.ErrClosed)
			must(t, f.Revoke(dead.id))
			must(t, ep.Close())
			meant := f.Clients()[slices.IndexFunc(f.Clients(), func(c rdma.Client) bool { return c.ID == dead.id })]
			ep, err = f.Open("cut off")
			must(t, err)
			answers := &deaf{Endpoint: ep}
			e := &lateReplay{Endpoint: answers, step: stepReplay, node: 1 - l.log(dead.id).Node(), silent: c.silent,
				posted: ep.(interface{ Posted(*rdma.Batch) }).Posted}
			slow := open(t, e, l, Options{})
			wantError(t, slow.Adopt(f, meant), c.err)
			if c.again {
				answers.step = stepClaim
				wantError(t, slow.Adopt(f, meant), rdma.ErrTimeout)
				must(t, set(slow, "slow's", free))
			}
			wantError(t, slow.Close(), client.ErrUncertain)
			other := worker(t, f, l, Options{Timeout: brief})
			wantError(t, other.Recover(dead.id), rdma.ErrTimeout)
			wantError(t, set(other, "later", a, b), rdma.ErrTimeout)
			raw := newRaw(t, f, l).ep
			late := raw.Batch()
			for _, op := range e.held {
				if op.Verb == rdma.Write {
					late.Write(op.Addr, op.Buf)
				} else {
					late.CompareSwap(op.Addr, op.Expect, op.Value)
				}
			}
			must(t, rdma.Do(raw, late, time.Second))
			e.node = -1
			must(t, slow.Adopt(f, meant))
			must(t, slow.Close())
			must(t, w.Recover(dead.id))
			wantData(t, w, "[dead's dead's]", a, b)
		})
	}
}

// TestSlowRecovery: the node of a log does not answer in time when a recovery is about to say that
// all is over. Behind that the worker leaves, and its claim is in the way of no other one.
func TestSlowRecovery(t *testing.T) {
	f, l := pool(t, Shape{Roots: 2})
	a, b := l.Root(0), l.Root(1)
	dead := doomed(t, f, l, stepCommit)
	wantError(t, set(dead, "dead's", a, b), rdma.ErrClosed)
	must(t, f.Revoke(dead.id))
	ep, err := f.Open("cut off")
	must(t, err)
	e := &lateReplay{Endpoint: ep, silent: 2, posted: ep.(interface{ Posted(*rdma.Batch) }).Posted}
	slow := open(t, e, l, Options{})
	e.step = stepEnd
	wantError(t, slow.Recover(dead.id), rdma.ErrTimeout)
	must(t, slow.Close())
	other := worker(t, f, l, Options{})
	must(t, other.Recover(dead.id))
	wantData(t, other, "[dead's dead's]", a, b)
}

// TestDeadMaster: when a client dies in a recovery, another one takes the
// recovery over after it has recovered that client.
func TestDeadMaster(t *testing.T) {
	for _, step := range []rdma.Step{stepReadLog, stepReadLocks, stepReplay, stepEnd, stepYieldLog} {
		f, l := pool(t, Shape{Roots: 2})
		a, b := l.Root(0), l.Root(1)
		w := worker(t, f, l, Options{Timeout: brief})
		must(t, set(w, "old", a, b))
		dead := doomed(t, f, l, stepCommit)
		wantError(t, set(dead, "new", a, b), rdma.ErrClosed)
		must(t, f.Revoke(dead.id))
		ep, err := f.Open("master")
		must(t, err)
		dying := &replaceable{ep}
		master := open(t, dying, l, Options{})
		dying.Endpoint = fault.New(ep, fault.Fault{Step: step, Crash: fault.Stop})
		wantError(t, master.Recover(dead.id), rdma.ErrClosed)
		wantError(t, w.Recover(dead.id), rdma.ErrTimeout)
		must(t, f.Revoke(master.id))
		w = worker(t, f, l, Options{})
		must(t, w.Recover(master.id))
		must(t, w.Recover(dead.id))
		wantData(t, w, "[new new]", a, b)
	}
}

// TestRecoverer: the pool's master recovers a client that was fenced off.
func TestRecoverer(t *testing.T) {
	f, l := pool(t, Shape{Roots: 2})
	a, b := l.Root(0), l.Root(1)
	dead := doomed(t, f, l, stepCommit)
	wantError(t, set(dead, "new", a, b), rdma.ErrClosed)
	w := worker(t, f, l, Options{})
	must(t, f.Revoke(dead.id))
	ep, err := f.Open("master")
	must(t, err)
	recoverer := func(ep rdma.Endpoint) (cluster.Recoverer, error) { return NewRecoverer(ep, l, Options{}) }
	_, err = cluster.Once(ep, f, recoverer, cluster.Options{Tick: Detection})
	must(t, err)
	wantData(t, w, "[new new]", a, b)
}

// TestFenced: a client that is taken for dead, and goes on, changes nothing behind its recovery.
func TestFenced(t *testing.T) {
	f, l := pool(t, Shape{Roots: 2})
	a, b := l.Root(0), l.Root(1)
	slow, before := hookedWorker(t, f, l, Options{})
	w := worker(t, f, l, Options{})
	must(t, set(w, "old", a, b))
	for _, step := range []rdma.Step{stepLog, stepCommit} {
		before[step] = func() {
			for _, c := range f.Clients() {
				if c.ID == slow.id {
					wantError(t, w.Adopt(f, c), rdma.ErrHeld)
				}
			}
			must(t, set(w, "later", a, b))
		}
		if err := set(slow, "slow", a, b); !errors.Is(err, rdma.ErrRevoked) {
			t.Errorf("a fenced client ends with %v", err)
		}
		wantData(t, w, "[later later]", a, b)
		slow, before = hookedWorker(t, f, l, Options{})
	}
}

// TestTwoRecoveries: a client that recovers another one does no harm to the next
// holder of its identity, which is there because a third client was faster.
func TestTwoRecoveries(t *testing.T) {
	for _, step := range []rdma.Step{stepAwait, stepClaim} {
		f, l := pool(t, Shape{Nodes: 1, Clients: 4, Roots: 2})
		a, b := l.Root(0), l.Root(1)
		w := worker(t, f, l, Options{})
		slow, before := hookedWorker(t, f, l, Options{})
		ep, err := f.Open("dead")
		must(t, err)
		dead := open(t, ep, l, Options{})
		must(t, set(dead, "old", a, b))
		var meant rdma.Client
		for _, c := range f.Clients() {
			if c.ID == dead.id {
				meant = c
			}
		}
		must(t, f.Revoke(dead.id))
		must(t, ep.Close())
		var next *Worker
		before[step] = func() {
			must(t, w.Adopt(f, meant))
			next = worker(t, f, l, Options{})
			_, err := create(next, "next's")
			must(t, errors.Join(err, set(next, "next's", a, b)))
		}
		must(t, slow.Adopt(f, meant))
		if next == nil || next.id != dead.id {
			t.Fatalf("before %q: no other client has the identity", step)
		}
		r := newRaw(t, f, l)
		if ended := r.word(l.log(next.id).Add(endedAt)); ended >= next.numbers.Used() {
			t.Errorf("before %q: all is over up to %d, and its client is at %d", step, ended, next.numbers.Used())
		}
		u, err := w.Check(func(c rdma.ClientID) bool { return c == next.id })
		if err != nil || u.Owned != 1 || u.Lost != 0 || u.Waiting != 0 {
			t.Errorf("before %q: %+v, %v", step, u, err)
		}
	}
}

// TestLateChunk: a worker that has given up a call for a chunk does not leave quietly: the chunk
// may be handed out to it yet, and then recovery has to give it back.
func TestLateChunk(t *testing.T) {
	f, l := pool(t, Shape{Nodes: 1})
	ep, err := f.Open("gives up")
	must(t, err)
	w := open(t, hasty{ep}, l, Options{})
	_, err = create(w, "new")
	wantError(t, err, rdma.ErrTimeout)
	wantError(t, w.Close(), client.ErrUncertain)
	other := worker(t, f, l, Options{})
	must(t, f.Revoke(w.id))
	must(t, other.Recover(w.id))
	u, err := other.Check(func(c rdma.ClientID) bool { return c == other.id })
	if err != nil || u.Handed != 1 || u.Owned != 0 {
		t.Errorf("got %+v, %v, want one chunk of no client", u, err)
	}
}

// hasty is an endpoint that gives up calls which are served.
type hasty struct{ rdma.Endpoint }

func (e hasty) Call(node int, r *rdma.Request, within time.Duration) error {
	if err := e.Endpoint.Call(node, r, within); err != nil {
		return err
	}
	return rdma.ErrTimeout
}
