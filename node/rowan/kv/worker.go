package kv

import (
	"bytes"
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/farkv/farkv/node/cluster/rpc"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
)

// worker is a task that serves requests (section 5.1), those for the keys that are its own: so it alone decides whether
// a key is there, by what is in flight, too. It waits for nothing but the next thing to do: an operation whose verbs
// are in flight is kept, and gone on with when they are complete.
type worker struct {
	s       *Server
	ep      rdma.Endpoint
	number  int
	peer    *rpc.Peer
	log     *rowan.Log
	backups replication
	filling []filling // segments of the log with writes in flight
	buf     []byte    // of a record

	ops   []*op  // in progress, in the order in which they began
	began uint64 // of them, ever
	keys  []*key // of writes in progress
	wake  time.Duration

	question uint64 // of cleaners, that is not passed; 0: none
	opsAt    uint64 // what had begun when it was seen
	looked   bool   // nothing that was looked up before is read any more
	answers  uint64 // that had begun by then

	spareOps  []*op
	spareKeys []*key
}

// filling is a segment of a worker's log with writes that are not in the index yet.
type filling struct {
	rowan.Segment
	writes int
	full   bool
}

// Pauses of a worker that has nothing to do, and of one that tries again what had no room.
const (
	idle  = time.Millisecond
	pause = 20 * time.Microsecond
)

// work is the task.
func (s *Server) work(ep rdma.Endpoint, number int) error {
	w, err := s.newWorker(ep, number)
	if err != nil {
		return err
	}
	defer w.peer.Close()
	for !s.stopping() {
		r, err := w.peer.Next(w.within())
		if err != nil && !errors.Is(err, rdma.ErrTimeout) {
			return err
		}
		if r != nil {
			err = w.begin(r)
		} else {
			err = nil
		}
		if err == nil {
			err = w.goOn()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (s *Server) newWorker(ep rdma.Endpoint, number int) (*worker, error) {
	w := &worker{
		s: s, ep: ep, number: number, log: s.table.Log(ep, rowan.Owner(1+number)), wake: rdma.Forever,
	}
	o := rpc.Options{Box: rdma.BoxOptions{
		Node: s.node, Number: s.o.Boxes + number, Slots: s.o.Slots, Bytes: s.o.message(),
	}}
	var err error
	if w.peer, err = rpc.Open(ep, o); err != nil {
		return nil, err
	}
	if w.backups, err = w.newReplication(); err != nil {
		w.peer.Close()
		return nil, err
	}
	return w, nil
}

// within is for how long the worker may wait.
func (w *worker) within() time.Duration {
	if w.wake == rdma.Forever {
		return idle
	}
	return max(0, min(idle, w.wake-w.ep.Now()))
}

// again has the worker look at all that is in progress at a time.
func (w *worker) again(at time.Duration) { w.wake = min(w.wake, at) }

// op is a request in progress.
type op struct {
	r      *rpc.Request
	proc   uint16
	number uint64 // of those that the worker began
	since  time.Duration
	hash   uint64
	shard  *shard
	key    []byte // in the request
	value  []byte
	on     *key // of a write
	status uint16

	look *rdma.Batch // READs of what the index names; nil: none is in flight
	seen []uint64    // which

	write
}

// begin begins with a request, or answers it at once.
func (w *worker) begin(r *rpc.Request) error {
	if c, ok := w.backups.(*calls); ok && r.Proc == ProcReplicate {
		return c.take(r)
	}
	q, err := parseRequest(r.Body)
	refuse := func(status uint16) error { return r.Answer(status, nil) }
	switch {
	case err != nil || r.Proc < ProcGet || r.Proc > ProcDelete:
		return refuse(StatusBad)
	case q.Term != w.s.config.Term:
		return refuse(StatusTerm)
	case w.s.o.Kind == RPC && len(w.ops) >= w.s.o.Slots/4:
		return refuse(StatusWait)
	case w.s.o.Check(q.Key, q.Value) != nil:
		return refuse(StatusTooLarge)
	}
	hash := Hash(q.Key)
	sh := w.s.shardOf(hash)
	if sh == nil || !sh.primary || WorkerOf(hash, w.s.o.Workers) != w.number {
		return refuse(StatusBad)
	}
	o := w.newOp()
	w.began++
	o.r, o.proc, o.number, o.since = r, r.Proc, w.began, w.ep.Now()
	o.hash, o.shard, o.key, o.value = hash, sh, q.Key, q.Value
	w.ops = append(w.ops, o)
	if o.proc == ProcGet {
		return w.lookUp(o)
	}
	return w.enqueue(o)
}

// newOp returns an op that keeps its room.
func (w *worker) newOp() *op {
	n := len(w.spareOps)
	if n == 0 {
		return new(op)
	}
	o := w.spareOps[n-1]
	w.spareOps = w.spareOps[:n-1]
	return o
}

// answer ends an op.
func (w *worker) answer(o *op, status uint16, value ...rdma.Span) error {
	err := o.r.Answer(status, nil, value...)
	w.ops = slices.DeleteFunc(w.ops, func(other *op) bool { return other == o })
	*o = op{seen: o.seen[:0], write: write{appends: o.appends[:0], followers: o.followers[:0]}}
	w.spareOps = append(w.spareOps, o)
	return err
}

// goOn goes on with all that is in progress and can.
func (w *worker) goOn() error {
	w.wake = rdma.Forever
	now := w.ep.Now()
	if err := w.backups.step(now); err != nil {
		return err
	}
	for i := 0; i < len(w.ops); {
		o := w.ops[i]
		number := o.number
		var err error
		switch {
		case o.look != nil && o.look.Finished():
			err = w.answerGet(o)
		case o.flies():
			err = w.replicate(o, now)
		}
		if err != nil {
			return err
		}
		i, _ = slices.BinarySearchFunc(w.ops, number+1, func(o *op, n uint64) int { return cmp.Compare(o.number, n) })
	}
	for i := 0; i < len(w.keys); {
		k := w.keys[i]
		if err := w.advance(k, now); err != nil {
			return err
		}
		if i < len(w.keys) && w.keys[i] == k {
			i++
		}
	}
	w.pass()
	return nil
}

// lookUp reads what the index names for a GET's key.
func (w *worker) lookUp(o *op) error {
	o.seen = o.shard.index.Lookup(o.hash, o.seen[:0])
	if len(o.seen) == 0 {
		return w.answer(o, StatusNotFound)
	}
	o.look = w.ep.Batch()
	w.s.readHeads(o.look, o.seen, len(o.key))
	return w.ep.Post(o.look.As("look up"))
}

// answerGet answers a GET. The value is gathered from the log. It may be older than what another GET returned meanwhile,
// since both are in progress.
func (w *worker) answerGet(o *op) error {
	b := o.look
	o.look = nil
	defer b.Release()
	f, ok, err := match(b, o.seen, o.key)
	if err != nil {
		return err
	}
	if !ok || f.kind == kindDel {
		return w.answer(o, StatusNotFound)
	}
	head := headBytes + len(o.key)
	value := rdma.Span{Addr: w.s.at(f.at + uint64(head)), Len: rowan.HeaderBytes + f.length - head}
	if value.Len == 0 {
		return w.answer(o, StatusOK)
	}
	return w.answer(o, StatusOK, value)
}

// match returns which of the entries that were read is of a key.
func match(b *rdma.Batch, seen []uint64, key []byte) (f found, ok bool, err error) {
	if err := b.Err(); err != nil {
		return f, false, err
	}
	for i, at := range seen {
		if f, ok := parseFound(at, b.Op(i).Buf); ok && bytes.Equal(f.key, key) {
			return f, true, nil
		}
	}
	return found{}, false, nil
}

// pass lets cleaners know when the worker has nothing in hand any more that it looked up before they asked: no READ of
// an entry is in flight, no answer on its way, and what writes know of their keys is looked up again. It waits for no
// write, which may wait for the room that cleaners make.
func (w *worker) pass() {
	q := &w.s.quiet
	if last := q.last(); w.question == 0 && last > 0 && last != q.of(w.number) {
		w.question, w.opsAt, w.looked = last, w.began, false
		for _, k := range w.keys {
			k.fresh, k.late = false, k.look != nil
		}
	}
	if w.question == 0 {
		return
	}
	if !w.looked {
		if w.looks() {
			return
		}
		w.looked, w.answers = true, w.peer.Stats().Served
	}
	if w.peer.Answered() < w.answers {
		return
	}
	q.pass(w.number, w.question)
	w.question = 0
}

// looks reports whether what was looked up before the question is read yet.
func (w *worker) looks() bool {
	return slices.ContainsFunc(w.ops, func(o *op) bool { return o.look != nil && o.number <= w.opsAt }) ||
		slices.ContainsFunc(w.keys, func(k *key) bool { return k.late })
}
