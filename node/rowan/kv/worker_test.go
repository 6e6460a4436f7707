package kv

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/node/cluster/rpc"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/shm"
	"github.com/farkv/farkv/node/rowan"
	"github.com/farkv/farkv/node/rowan/shards"
)

// bench is a worker that does what it is told, one thing at a time, and a client.
type bench struct {
	t      *testing.T
	f      *shm.Fabric
	s      *Server
	reads  *slowReads
	ep     rdma.Endpoint
	w      *worker
	other  rdma.Endpoint // the client's
	client *rpc.Peer
}

// slowReads is the endpoint of a worker. While it holds READs they do not complete before they are
// let go.
type slowReads struct {
	*shm.Endpoint
	hold bool
	held []*rdma.Batch
}

func (r *slowReads) Post(b *rdma.Batch) error {
	if !r.hold || b.Step() != "look up" {
		return r.Endpoint.Post(b)
	}
	r.Posted(b)
	r.held = append(r.held, b)
	return nil
}

// let lets all READs that are held be complete, and holds no more.
func (r *slowReads) let(t *testing.T) {
	for _, b := range r.held {
		c := r.Batch()
		for i := range b.Len() {
			c.Read(b.Op(i).Addr, len(b.Op(i).Buf))
		}
		if err := r.Endpoint.Post(c); err != nil {
			t.Fatal(err)
		}
		for i := range b.Len() {
			copy(b.Op(i).Buf, c.Op(i).Buf)
		}
		b.CompleteAll()
	}
	r.hold, r.held = false, nil
}

func newBench(t *testing.T, nodes int, k Kind) *bench {
	o := Options{
		Kind: k, Nodes: nodes, Workers: 1, Cleaners: 2, PairBytes: 1000, FullAfter: time.Minute,
		Log: rowan.Options{Ring: 1, Segments: 40, SegmentBytes: 4096, Ahead: 14, Reserve: 5, Credit: 4 << 10,
			Secret: 1},
	}
	config, err := shards.New([]int{0, 1}[:nodes], 4, nodes)
	if err != nil {
		t.Fatal(err)
	}
	o.Shards = len(config.Shards)
	f, err := shm.NewMem(shm.Geometry{Nodes: nodes, Memory: o.Size(), Clients: 8}, nil)
	if err != nil {
		t.Fatal(err)
	}
	f.MTU = 256
	b := &bench{t: t, f: f}
	ep, err := f.Open("worker")
	if err == nil {
		b.s, err = Open(ep, f, o, 0)
	}
	if err == nil {
		b.reads = &slowReads{Endpoint: ep.(*shm.Endpoint)}
		b.ep = b.s.member(b.reads)
		b.adopt(config.Commit())
		b.w, err = b.s.newWorker(b.ep, 0)
	}
	if err == nil {
		err = b.w.turn()
	}
	if err != nil {
		t.Fatal(err)
	}
	other, err := f.Open("client")
	b.other = other
	if err == nil {
		b.client, err = rpc.Open(other, rpc.Options{})
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		b.client.Close()
		b.w.peer.Close()
		other.Close()
		ep.Close()
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return b
}

// adopt has the server be in a term that was committed, without others.
func (b *bench) adopt(c *shards.Config) {
	t := newTerm(c, b.s.node)
	for i, sh := range b.s.shards {
		if t.leads(i) {
			sh.gain(t.Term, 10)
			sh.lead()
		}
	}
	b.s.known.settle(t.Term)
	b.s.known.adopt(t)
}

// key returns one that the server is the primary of.
func (b *bench) key() (key []byte) {
	t := b.s.known.last()
	for i := 0; key == nil || !t.leads(t.Find(Hash(key))); i++ {
		key = fmt.Appendf(nil, "key-%d", i)
	}
	return key
}

// begin has the worker begin with a request, and no more.
func (b *bench) begin(proc uint16, value string) *rpc.Call {
	b.t.Helper()
	return b.beginWith(b.key(), proc, value)
}

func (b *bench) beginWith(key []byte, proc uint16, value string) *rpc.Call {
	b.t.Helper()
	q := Request{Term: b.s.known.last().Term, Key: key, Value: []byte(value)}
	return b.start(b.s.o.BoxOf(0, proc, Hash(q.Key), 0), proc, q.Append(nil))
}

// start has the worker begin with a request that came into a mailbox of its.
func (b *bench) start(to rdma.BoxAddr, proc uint16, body []byte) *rpc.Call {
	b.t.Helper()
	c, err := b.client.Start(to, proc, time.Minute, body)
	if err != nil {
		b.t.Fatal(err)
	}
	for {
		r, err := b.w.peer.Next(time.Minute)
		if err != nil {
			b.t.Fatal(err)
		}
		if r != nil {
			if err := b.w.begin(r); err != nil {
				b.t.Fatal(err)
			}
			return c
		}
	}
}

// end has the worker go on until a call is answered.
func (b *bench) end(c *rpc.Call, status uint16) {
	b.t.Helper()
	for !c.Over() {
		b.w.peer.Next(0)
		if err := b.w.goOn(); err != nil {
			b.t.Fatal(err)
		}
		b.client.Next(0)
	}
	b.w.peer.Next(0) // it notes that the answer is delivered
	if c.Err != nil || c.Status != status {
		b.t.Errorf("answer %d, %v, want %d", c.Status, c.Err, status)
	}
	c.Release()
}

// passed returns whether the worker passes a question.
func (b *bench) passed(question uint64) bool {
	b.w.pass()
	return b.s.quiet.of(0) >= question
}

// TestQuiet: a worker passes no question of a cleaner while it reads what it looked up before; what
// a write knows of its key is looked up again. Neither an answer that is on its way nor a write
// that waits holds any up.
func TestQuiet(t *testing.T) {
	b := newBench(t, 1, Rowan)
	b.end(b.begin(ProcInsert, "first"), StatusOK)
	if q := b.s.quiet.ask(); !b.passed(q) {
		t.Error("a worker that does nothing does not pass")
	}
	b.reads.hold = true
	get := b.begin(ProcGet, "")
	q := b.s.quiet.ask()
	if b.passed(q) {
		t.Error("it passes while a GET reads")
	}
	b.reads.let(t)
	if err := b.w.goOn(); err != nil {
		t.Fatal(err)
	}
	if !b.passed(q) {
		t.Error("it does not pass behind the READ")
	}
	b.end(get, StatusOK)

	b.reads.hold = true
	update := b.begin(ProcUpdate, "second")
	if q = b.s.quiet.ask(); b.passed(q) {
		t.Error("it passes while a write reads what its key has")
	}
	b.reads.let(t)
	b.end(update, StatusOK)
	if !b.passed(q) {
		t.Error("it does not pass behind a write")
	}

	b = newBench(t, 2, Rowan) // the backup gives no leave
	waits := b.begin(ProcInsert, "first")
	for range 3 {
		if err := b.w.goOn(); err != nil {
			t.Fatal(err)
		}
	}
	if q = b.s.quiet.ask(); !b.passed(q) || waits.Over() {
		t.Error("it does not pass while a write waits for room")
	}
	waits.Release()
}

// TestFreed: a segment is freed when all readers have passed the question, and not before.
func TestFreed(t *testing.T) {
	b := newBench(t, 1, Rowan)
	log := b.s.table.Log(b.ep, 9)
	for range 2 {
		if err := log.Reserve(4000, 0); err != nil {
			t.Fatal(err)
		}
		batch := b.ep.Batch()
		log.Add(batch, kindPut, 1, make([]byte, 4000))
		if err := rdma.Do(b.ep, batch, time.Minute); err != nil {
			t.Fatal(err)
		}
		batch.Release()
	}
	seg, ok := log.Full()
	if !ok {
		t.Fatal("no segment is full")
	}
	c := &cleaner{s: b.s, ep: b.ep, waiting: []leaving{{seg, b.s.quiet.ask()}}}
	free := b.s.table.Free()
	for reader := range b.s.quiet.passed {
		if err := c.free(); err != nil || b.s.table.Free() != free {
			t.Errorf("a segment is freed before reader %d has passed, %v", reader, err)
		}
		b.s.quiet.pass(reader, b.s.quiet.last())
	}
	if err := c.free(); err != nil || b.s.table.Free() != free+1 {
		t.Errorf("a segment is not freed: %v", err)
	}
}

// TestRepeated: an append that a backup did not take is repeated until it does, though it gives no
// leave for PUTs. The write is answered then, and not before. DELs have leave, too.
func TestRepeated(t *testing.T) {
	b := newBench(t, 2, Rowan)
	ep, err := b.f.Open("backup")
	if err != nil {
		t.Fatal(err)
	}
	defer ep.Close()
	open := func(found func(*rowan.Entry)) *rowan.Receiver {
		t.Helper()
		r, err := rowan.Open(ep, b.s.o.log(1))
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
	first := b.begin(ProcInsert, "first")
	b.end(first, StatusOK) // the worker has leave by now
	if err := r.Close(); err != nil {
		t.Fatal(err)
	}
	update := b.begin(ProcUpdate, "second")
	for range 1000 {
		b.w.peer.Next(0)
		if err := b.w.goOn(); err != nil {
			t.Fatal(err)
		}
		b.client.Next(0)
	}
	if update.Over() {
		t.Error("a write is answered that a backup does not have")
	}
	takeLeave := func() {
		for b.w.backups.(*rings).senders[1][0].Reserve(1) == nil {
		}
	}
	takeLeave()
	n := 0
	r = open(func(*rowan.Entry) { n++ })
	b.end(update, StatusOK)
	if err := r.Close(); err != nil || n != 1 {
		t.Errorf("%d entries came before, %v, want 1", n, err)
	}
	n = 0
	r = open(func(*rowan.Entry) { n++ })
	if n != 2 {
		t.Errorf("%d entries are there, want 2", n)
	}
	takeLeave()
	b.s.o.FullAfter = 0
	b.end(b.begin(ProcUpdate, "third"), StatusWait) // the log has not said that it is full
	b.end(b.begin(ProcDelete, ""), StatusOK)
	if err := r.Close(); err != nil {
		t.Error(err)
	}
}

// TestSee: a worker has seen a term when nothing that it began in an earlier one is under way.
func TestSee(t *testing.T) {
	b := newBench(t, 1, Rowan)
	next := *b.w.term.Config
	b.w.ops = append(b.w.ops, &op{term: next.Term})
	next.Term++
	b.w.term = newTerm(&next, 0)
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
	b := newBench(t, 1, Rowan)
	for from := uint64(0); from < 2; from++ {
		busy := rdma.State{Epoch: from + 1, Busy: true}
		if ok, err := b.f.Advance(rdma.State{Epoch: from}, busy); !ok || err != nil {
			t.Fatal(ok, err)
		}
		if err := b.f.Fence(from + 1); err != nil {
			t.Fatal(err)
		}
		if ok, err := b.f.Advance(busy, rdma.State{Epoch: from + 1}); !ok || err != nil {
			t.Fatal(ok, err)
		}
		b.s.known.join(from + 1) // as the manager has said
		if _, err := b.other.Join(); err != nil {
			t.Fatal(err)
		}
		b.end(b.begin(ProcGet, ""), StatusNotFound)
	}
}
