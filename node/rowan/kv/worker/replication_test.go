package worker

import (
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"github.com/farkv/farkv/node/cluster/rpc"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/node/rowan/kv/state"
	"github.com/farkv/farkv/node/rowan/shards"
)

// otherServer is the server to which the bench's worker writes.
type otherServer struct {
	*workerBench
	table  *rowan.Table
	lender *rowan.Lender
}

func (b *workerBench) backup() *otherServer {
	b.T.Helper()
	ep, err := b.Fabric.Open("backup")
	if err != nil {
		b.T.Fatal(err)
	}
	b.T.Cleanup(func() { ep.Close() })
	table, err := rowan.OpenTable(ep, b.Server.Opt.LogOf(1))
	if err != nil {
		b.T.Fatal(err)
	}
	return &otherServer{b, table, b.lender(ep, table)}
}

// lender returns the lender of a table. Its logs have begun with the term.
func (b *workerBench) lender(ep rdma.Endpoint, table *rowan.Table) *rowan.Lender {
	b.T.Helper()
	l, err := table.Lender(ep)
	if err != nil {
		b.T.Fatal(err)
	}
	for log := range b.Server.Opt.LogOf(0).Remotes {
		if _, err := l.Begin(log, b.Server.Known.Last().Term); err != nil {
			b.T.Fatal(err)
		}
	}
	return l
}

// turn has the worker and what lends segments go on.
func (b *workerBench) turn(l *rowan.Lender) {
	b.T.Helper()
	b.w.peer.Next(0)
	if err := b.w.GoOn(); err != nil {
		b.T.Fatal(err)
	}
	if err := l.Step(); err != nil {
		b.T.Fatal(err)
	}
	b.Client.Next(0)
}

// until has them go on until something is so.
func (b *workerBench) until(l *rowan.Lender, what string, so func() bool) {
	b.T.Helper()
	for range 1_000_000 {
		if so() {
			return
		}
		b.turn(l)
	}
	b.T.Fatalf("never: %s", what)
}

// entries counts those in a table's segments.
func entries(t *testing.T, ep rdma.Endpoint, table *rowan.Table) (n int) {
	t.Helper()
	scratch := make([]byte, table.SegmentBytes())
	for _, s := range table.Held() {
		if table.Owner(s).Received() {
			if err := table.Scan(ep, s, scratch, func(*rowan.Entry) error { n++; return nil }); err != nil {
				t.Fatal(err)
			}
		}
	}
	return n
}

// TestRewritten: a WRITE to a backup that failed is repeated, at its place. The write is answered
// then, and not before.
func TestRewritten(t *testing.T) {
	b := newWorkerBench(t, 2, kv.RWrite)
	other := b.backup()
	c := b.Begin(kv.ProcInsert, "first")
	x := b.w.backups.(*writes)
	b.until(other.lender, "the entry is written", func() bool { return len(x.flying) > 0 })
	g := x.flying[0]
	for !g.batch.Finished() {
		b.w.peer.Next(0)
	}
	g.batch.Op(0).Fail(rdma.ErrUnreachable)
	if err := b.w.GoOn(); err != nil {
		t.Fatal(err)
	}
	if len(x.flying) != 1 || g.acked {
		t.Error("a write is answered that a backup may not have")
	}
	b.until(other.lender, "the write is answered", c.Over)
	if c.Err != nil || c.Status != kv.StatusOK {
		t.Errorf("answer %d, %v", c.Status, c.Err)
	}
	c.Release()
	if n := entries(t, b.Endpoint, other.table); n != 1 {
		t.Errorf("%d entries are there, want 1", n)
	}
	b.w.peer.Next(0)
}

// TestGathered: entries go to a backup when there are enough of them, or when their time has come.
func TestGathered(t *testing.T) {
	b := newWorkerBench(t, 2, kv.Batch)
	other := b.backup()
	x := b.w.backups.(*writes)
	x.patience = time.Hour
	first := b.Begin(kv.ProcInsert, "")
	b.until(other.lender, "an entry waits for others", func() bool { return x.open[1] != nil })
	g := x.open[1]
	one := len(g.bytes)
	for range 1000 {
		b.turn(other.lender)
	}
	if g.batch != nil || first.Over() || one != rowan.Size(kv.RecordBytes+len(b.Key())) {
		t.Errorf("an entry of %d bytes does not wait for others", one)
	}
	calls := []*rpc.Call{first}
	for n := one; x.open[1] == g; n = len(g.bytes) {
		calls = append(calls, b.Begin(kv.ProcUpdate, ""))
		b.until(other.lender, "another is gathered", func() bool { return len(g.bytes) > n || x.open[1] != g })
	}
	if len(calls) != 5 || x.open[1] != nil {
		t.Errorf("%d entries are gathered, want 5", len(calls))
	}
	for _, c := range calls {
		b.until(other.lender, "writes are answered", c.Over)
		if c.Err != nil || c.Status != kv.StatusOK {
			t.Errorf("answer %d, %v", c.Status, c.Err)
		}
		c.Release()
	}
	x.patience = 0
	last := b.Begin(kv.ProcDelete, "")
	b.until(other.lender, "a write is answered whose time has come", last.Over)
	last.Release()
	if n := entries(t, b.Endpoint, other.table); n != 6 {
		t.Errorf("%d entries are there, want 6", n)
	}
	b.w.peer.Next(0)
}

// TestLeave: half of a worker's leave at a backup is for DELs.
func TestLeave(t *testing.T) {
	b := newWorkerBench(t, 2, kv.RPC)
	c, a := b.w.backups.(*calls), &appending{node: 1}
	other := &c.backups[1]
	const length = 100
	reserve := func(granted uint64, del bool, want error) {
		t.Helper()
		other.granted = granted
		if err := c.reserve(a, length, del); !errors.Is(err, want) {
			t.Errorf("with leave for %d bytes, DEL %t: %v, want %v", granted, del, err, want)
		} else if err == nil {
			c.unreserve(a, length)
		}
	}
	half, need := b.Server.Opt.LeaveBytes()/2, leave(length)
	reserve(half+need-1, false, errAway) // it has not said that it is full
	other.full = true
	reserve(half+need-1, false, rdma.ErrFull)
	reserve(half+need, false, nil)
	reserve(need-1, true, rdma.ErrFull)
	reserve(need, true, nil)
	other.next, other.full = other.lowest+callWindow, false
	reserve(2*half, true, errAway)
}

// TestOnce: a worker that is asked twice to append an entry does so once, and says twice that it
// has; and never once it was told that its answer has come.
func TestOnce(t *testing.T) {
	b := newWorkerBench(t, 2, kv.RPC)
	lender := b.lender(b.Endpoint, b.Server.Table)
	ask := func(number, lowest uint64) *rpc.Call {
		t.Helper()
		p := binary.LittleEndian.AppendUint64(nil, number)
		p = binary.LittleEndian.AppendUint64(p, lowest)
		p = binary.LittleEndian.AppendUint64(p, 1|1<<32|uint64(kv.Put)<<48)
		if number > 0 {
			r := kv.Record{Order: kv.Order{Term: 1, Version: number}, Key: []byte("key"), Value: []byte("value")}
			p = append(p, make([]byte, kv.RecordSize(r.Key, r.Value))...)
			r.Put(p[kv.ReplicateBytes:])
		}
		return b.Start(rdma.BoxAt(0, b.Server.Opt.Boxes+1), kv.ProcReplicate, p)
	}
	answered := func(c *rpc.Call, want bool) {
		t.Helper()
		for range 1000 {
			b.turn(lender)
		}
		if c.Over() != want || want && (c.Err != nil || c.Status != kv.StatusOK) {
			t.Errorf("answered %t, %v, want %t", c.Over(), c.Err, want)
		}
		c.Release()
	}
	for range 100 {
		b.turn(lender)
	}
	leave := ask(0, 1)
	b.until(lender, "there is leave", leave.Over)
	if n := binary.LittleEndian.Uint64(leave.Body); n != b.Server.Opt.LeaveBytes() {
		t.Errorf("leave for %d bytes, want %d", n, b.Server.Opt.LeaveBytes())
	}
	leave.Release()
	first, second := ask(1, 1), ask(1, 1)
	answered(first, true)
	answered(second, false) // the first was not in the log when it came
	answered(ask(2, 1), true)
	answered(ask(1, 1), true)
	answered(ask(1, 2), false)
	answered(ask(2, 2), true)
	if n := entries(t, b.Endpoint, b.Server.Table); n != 2 {
		t.Errorf("%d entries are in the log, want 2", n)
	}
}

// TestCallsOfTerms: a worker takes calls of a term until the next one is committed, from members of
// that alone. It has its log go on then, when nothing is in flight to it.
func TestCallsOfTerms(t *testing.T) {
	b := newWorkerBench(t, 2, kv.RPC)
	lender, c := b.lender(b.Endpoint, b.Server.Table), b.w.backups.(*calls)
	first := b.Server.Known.Last()
	next := func(committed bool, members ...shards.Member) *state.Term {
		config := *first.Config
		config.Term, config.Committed, config.Members = 2, committed, members
		return state.NewTerm(&config, 0)
	}
	call := func(number uint64, term uint32, want bool) {
		t.Helper()
		p := binary.LittleEndian.AppendUint64(nil, number)
		p = binary.LittleEndian.AppendUint64(p, 1)
		p = binary.LittleEndian.AppendUint64(p, uint64(term)|1<<32|uint64(kv.Put)<<48)
		if number > 0 {
			p = append(p, make([]byte, kv.RecordBytes)...)
		}
		asked := b.Start(rdma.BoxAt(0, b.Server.Opt.Boxes+1), kv.ProcReplicate, p)
		for range 1000 {
			b.turn(lender)
		}
		if asked.Over() != want || want && (asked.Err != nil || asked.Status != kv.StatusOK) {
			t.Errorf("call %d of term %d in term %d is answered %t, %v, want %t", number, term,
				b.Server.Known.Last().Term,
				asked.Over(), asked.Err, want)
		}
		asked.Release()
	}
	call(0, 1, true)
	call(1, 1, true)
	b.Server.Known.Adopt(next(false, first.Members...))
	call(2, 1, true)
	call(0, 2, true) // there is no leave yet
	call(1, 2, false)
	b.Server.Known.Adopt(next(false, first.Members[0]))
	call(3, 1, false)
	c.taken = append(c.taken, taking{})
	c.turning = next(true, first.Members...)
	c.turnLog()
	if c.term != first || b.Server.Known.TurnedTo(2) {
		t.Error("a log goes on with an entry in flight")
	}
	c.taken, c.turning = nil, nil
	b.Server.Known.Adopt(next(true, first.Members...))
	call(4, 1, false)
	if !b.Server.Known.TurnedTo(2) {
		t.Error("the worker has not gone on with the next term")
	}
	if n := entries(t, b.Endpoint, b.Server.Table); n != 2 {
		t.Errorf("%d entries are in the log, want 2", n)
	}
}

// TestBusy: while as many writes of a server wait as may have buffers, it refuses others, and no
// GET.
func TestBusy(t *testing.T) {
	b := newWorkerBench(t, 2, kv.RPC) // the backup does not answer
	most := b.Server.Opt.Slots / 4
	var waits []*rpc.Call
	for range most {
		waits = append(waits, b.Begin(kv.ProcInsert, "value"))
	}
	b.End(b.Begin(kv.ProcInsert, "value"), kv.StatusWait)
	b.End(b.Begin(kv.ProcGet, ""), kv.StatusNotFound)
	for _, c := range waits {
		if c.Over() {
			t.Error("a write is answered that a backup does not have")
		}
		c.Release()
	}
}
