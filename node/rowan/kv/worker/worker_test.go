package worker

import (
	"errors"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/node/rowan/kv/kvtest"
	"github.com/farkv/farkv/node/rowan/kv/state"
	"github.com/farkv/farkv/node/rowan/shards"
)

// workerBench is a bench with a worker's parts in reach.
type workerBench struct {
	*kvtest.Bench
	w *Worker
}

// newWorkerBench returns a bench with a worker that has taken over the first term.
func newWorkerBench(t *testing.T, nodes int, k kv.Kind) *workerBench {
	t.Helper()
	b, w := kvtest.New(t, nodes, k, New)
	if err := w.turn(); err != nil {
		t.Fatal(err)
	}
	return &workerBench{b, w}
}

// passed returns whether the worker passes a question.
func (b *workerBench) passed(question uint64) bool {
	b.w.pass()
	return b.Server.Quiet.Of(0) >= question
}

// TestQuiet: a worker passes no question of a cleaner while it reads what it looked up before; what
// a write knows of its key is looked up again. Neither an answer that is on its way nor a write
// that waits holds any up.
func TestQuiet(t *testing.T) {
	b := newWorkerBench(t, 1, kv.Rowan)
	b.End(b.Begin(kv.ProcInsert, "first"), kv.StatusOK)
	if q := b.Server.Quiet.Ask(); !b.passed(q) {
		t.Error("a worker that does nothing does not pass")
	}
	b.Reads.Hold = true
	get := b.Begin(kv.ProcGet, "")
	q := b.Server.Quiet.Ask()
	if b.passed(q) {
		t.Error("it passes while a GET reads")
	}
	b.Reads.Let(t)
	if err := b.w.GoOn(); err != nil {
		t.Fatal(err)
	}
	if !b.passed(q) {
		t.Error("it does not pass behind the READ")
	}
	b.End(get, kv.StatusOK)

	b.Reads.Hold = true
	update := b.Begin(kv.ProcUpdate, "second")
	if q = b.Server.Quiet.Ask(); b.passed(q) {
		t.Error("it passes while a write reads what its key has")
	}
	b.Reads.Let(t)
	b.End(update, kv.StatusOK)
	if !b.passed(q) {
		t.Error("it does not pass behind a write")
	}

	b = newWorkerBench(t, 2, kv.Rowan) // the backup gives no leave
	waits := b.Begin(kv.ProcInsert, "first")
	for range 3 {
		if err := b.w.GoOn(); err != nil {
			t.Fatal(err)
		}
	}
	if q = b.Server.Quiet.Ask(); !b.passed(q) || waits.Over() {
		t.Error("it does not pass while a write waits for room")
	}
	waits.Release()
}

// TestCounts: a request counts once for the load of its shard, and not when it is refused since it
// would have to wait: clients repeat that many times.
func TestCounts(t *testing.T) {
	b := newWorkerBench(t, 2, kv.Rowan) // the backup gives no leave
	shard := b.Server.Shards[b.Server.Known.Last().Find(kv.Hash(b.Key()))]
	want := func(requests, writes uint64) {
		t.Helper()
		if got := shard.Load(); got != (shards.Load{Requests: requests, Writes: writes}) {
			t.Errorf("%+v, want %d and %d", got, requests, writes)
		}
	}
	b.Server.Opt.FullAfter = 0
	b.End(b.Begin(kv.ProcInsert, "first"), kv.StatusWait)
	want(0, 0)

	b = newWorkerBench(t, 1, kv.Rowan)
	shard = b.Server.Shards[b.Server.Known.Last().Find(kv.Hash(b.Key()))]
	b.End(b.Begin(kv.ProcInsert, "first"), kv.StatusOK)
	want(1, 1)
	b.End(b.Begin(kv.ProcInsert, "second"), kv.StatusExists)
	b.End(b.Begin(kv.ProcGet, ""), kv.StatusOK)
	want(3, 1)
}

// TestRepeated: an append that a backup did not take is repeated until it does, though it gives no
// leave for PUTs. The write is answered then, and not before. DELs have leave, too.
func TestRepeated(t *testing.T) {
	b := newWorkerBench(t, 2, kv.Rowan)
	ep, err := b.Fabric.Open("backup")
	if err != nil {
		t.Fatal(err)
	}
	defer ep.Close()
	open := func(found func(*rowan.Entry)) *rowan.Receiver {
		t.Helper()
		r, err := rowan.Open(ep, b.Server.Opt.LogOf(1))
		if err == nil {
			_, err = r.Recover(func(_ rowan.Segment, e *rowan.Entry) error { found(e); return nil })
		}
		if err == nil {
			err = r.Step()
		}
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	for range 3 { // the worker is both sources before there is leave, which would be an earlier worker's
		if err := b.w.backups.reserve(&appending{node: 1}, 0, true); !errors.Is(err, errAway) {
			t.Fatal(err)
		}
	}
	r := open(func(*rowan.Entry) { t.Error("there is an entry in a new log") })
	first := b.Begin(kv.ProcInsert, "first")
	b.End(first, kv.StatusOK) // the worker has leave by now
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	update := b.Begin(kv.ProcUpdate, "second")
	// Three more attempts and no others: each one spends leave, which the rest of the test needs.
	s, until := b.w.backups.(*rings).senders[1][0], time.Now().Add(time.Minute)
	for last := s.Stamp() + 3; s.Stamp() < last && !update.Over(); b.Client.Next(0) {
		b.w.peer.Next(0)
		if err := b.w.GoOn(); err != nil {
			t.Fatal(err)
		}
		if time.Now().After(until) {
			t.Fatal("an append that failed is not repeated")
		}
	}
	if update.Over() {
		t.Error("a write is answered that a backup does not have")
	}
	takeLeave := func() {
		for s.Reserve(1) == nil {
		}
	}
	takeLeave()
	n := 0
	r = open(func(*rowan.Entry) { n++ })
	b.End(update, kv.StatusOK)
	if err := r.Close(); err != nil || n != 1 {
		t.Errorf("%d entries came before, %v, want 1", n, err)
	}
	n = 0
	r = open(func(*rowan.Entry) { n++ })
	if n != 2 {
		t.Errorf("%d entries are there, want 2", n)
	}
	takeLeave()
	b.Server.Opt.FullAfter = 0
	b.End(b.Begin(kv.ProcUpdate, "third"), kv.StatusWait) // the log has not said that it is full
	b.End(b.Begin(kv.ProcDelete, ""), kv.StatusOK)
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// TestRefused: an append that its backup's node will never take ends the worker, with the reason.
func TestRefused(t *testing.T) {
	b := newWorkerBench(t, 2, kv.Rowan)
	backups, a := b.w.backups.(*rings), &appending{node: 1}
	if err := backups.reserve(a, 0, false); !errors.Is(err, errAway) { // it makes a sender
		t.Fatal(err)
	}
	for _, c := range []struct{ why, want error }{{rdma.ErrNoRing, nil}, {rdma.ErrNotSupported, rdma.ErrNotSupported}} {
		a.batch = b.w.ep.Batch()
		a.batch.Read(rdma.At(1, 0), 8)
		err := errors.Join(b.w.ep.Post(a.batch), b.w.ep.Wait(a.batch, rdma.All, rdma.Forever))
		if err != nil {
			t.Fatal(err)
		}
		a.batch.Op(0).Fail(c.why)
		if acked, err := backups.goOn(&op{}, a, 0); acked || !errors.Is(err, c.want) || c.want == nil && err != nil {
			t.Errorf("an append that ended in %v: %t, %v", c.why, acked, err)
		}
	}
}

// TestSee: a worker has seen a term when nothing that it began in an earlier one is under way.
func TestSee(t *testing.T) {
	b := newWorkerBench(t, 1, kv.Rowan)
	next := *b.w.term.Config
	b.w.ops = append(b.w.ops, &op{term: next.Term})
	next.Term++
	b.w.term = state.NewTerm(&next, 0)
	if b.w.see(); b.w.saw == next.Term {
		t.Error("seen with a write of the term before under way")
	}
	b.w.ops = b.w.ops[:0]
	if b.w.see(); b.w.saw != next.Term {
		t.Error("not seen with nothing under way")
	}
}

// TestJoins: answers of a worker that has not joined a new view do not arrive. It joins when the
// server knows of the view.
func TestJoins(t *testing.T) {
	b := newWorkerBench(t, 1, kv.Rowan)
	for from := uint64(0); from < 2; from++ {
		busy := rdma.State{Epoch: from + 1, Busy: true}
		if ok, err := b.Fabric.Advance(rdma.State{Epoch: from}, busy); !ok || err != nil {
			t.Fatal(ok, err)
		}
		if err := b.Fabric.Fence(from + 1); err != nil {
			t.Fatal(err)
		}
		if ok, err := b.Fabric.Advance(busy, rdma.State{Epoch: from + 1}); !ok || err != nil {
			t.Fatal(ok, err)
		}
		b.Server.Known.Join(from + 1) // as the manager has said
		if _, err := b.Other.Join(); err != nil {
			t.Fatal(err)
		}
		b.End(b.Begin(kv.ProcGet, ""), kv.StatusNotFound)
	}
}
