package kv

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/farkv/farkv/node/cluster/rpc"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
	"github.com/farkv/farkv/node/rowan/index"
	"github.com/farkv/farkv/node/rowan/shards"
)

// worker is a task that serves requests (section 5.1): GETs of any key, and writes of those keys
// that are its own. So it alone decides whether such a key is there, by what is in flight, too.
// GETs go by the index, which names what is on all replicas. A worker waits for nothing but the
// next thing to do: an operation whose verbs are in flight is kept, and gone on with when they are
// complete.
type worker struct {
	s       *Server
	ep      rdma.Endpoint
	number  int
	peer    *rpc.Peer
	log     *rowan.Log
	term    *term  // nil: there is none yet
	saw     uint64 // the term before which nothing is under way any more
	backups replication
	filling []filling   // segments of the log with writes in flight
	buf     []byte      // of a record
	entry   rowan.Entry // of several blocks
	reach   int         // how much of an entry is READ at first: about as much as the last ones had

	ops   []*op  // in progress, in the order in which they began
	began uint64 // of them, ever
	keys  []*key // of writes in progress
	wake  time.Duration
	lull  lull

	question uint64 // of cleaners, that is not passed; 0: none
	opsAt    uint64 // what had begun when it was seen

	spareOps  []*op
	spareKeys []*key
}

// filling is a segment of a worker's log with writes that are not in the index yet.
type filling struct {
	rowan.Segment
	writes int
	full   bool
}

// Pauses of a worker that has nothing to do, at least, and of one that tries again what had no
// room.
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
		s: s, ep: ep, number: number, log: s.log(ep, rowan.Owner(1+number)),
		wake: rdma.Forever, lull: s.newLull(ep, idle), reach: firstReach,
	}
	o := rpc.Options{Box: rdma.BoxOptions{
		Node: s.node, Number: s.o.Boxes + 1 + number, Slots: s.o.Slots, Bytes: s.o.message(),
	}}
	var err error
	if w.peer, err = rpc.Open(ep, o); err != nil {
		return nil, err
	}
	w.backups = w.newReplication()
	return w, nil
}

// within is for how long the worker may wait.
func (w *worker) within() time.Duration {
	pause := w.lull.next(len(w.ops) > 0)
	if w.wake == rdma.Forever {
		return pause
	}
	return max(0, min(pause, w.wake-w.ep.Now()))
}

// again has the worker look at all that is in progress at a time.
func (w *worker) again(at time.Duration) { w.wake = min(w.wake, at) }

// op is a request in progress.
type op struct {
	r      *rpc.Request
	proc   uint16
	term   uint64
	number uint64 // of those that the worker began
	since  time.Duration
	hash   uint64
	shard  *shard
	index  *index.Index
	key    []byte // in the request
	value  []byte
	on     *key // of a write
	status uint16
	source int // of its shard's migration to the server, or None

	look  *rdma.Batch // READs of what the index names; nil: none is in flight
	seen  []uint64    // which
	parts []rdma.Addr // of the key's entry, if that has several blocks and they are READ

	routes  bool // the source is asked
	routing routing

	write
}

// begin begins with a request, or answers it at once.
func (w *worker) begin(r *rpc.Request) error {
	if err := w.turn(); err != nil {
		return err
	}
	if c, ok := w.backups.(*calls); ok && r.Proc == ProcReplicate {
		return c.take(r)
	}
	q, err := parseRequest(r.Body)
	refuse := func(status uint16) error { return r.Answer(status, nil) }
	switch {
	case err != nil || (r.Proc < ProcGet || r.Proc > ProcDelete) && r.Proc != ProcRoute:
		return refuse(StatusBad)
	case !w.term.takesPart() || q.Term != w.term.Term:
		w.s.known.tell(q.Term)
		return refuse(StatusTerm)
	case w.s.o.Kind == RPC && len(w.ops) >= w.s.o.Slots/4:
		return refuse(StatusWait)
	case w.s.o.Check(q.Key, q.Value) != nil:
		return refuse(StatusTooLarge)
	}
	hash := Hash(q.Key)
	sh := w.s.shards[w.term.Find(hash)]
	placed, source := w.term.leads(sh.number), w.term.Shards[sh.number].Source
	ready := sh.serving() && !w.term.Compare
	if r.Proc == ProcRoute {
		placed, ready, source = source == w.s.node, w.s.known.isSettled(w.term.Term), shards.None
	}
	switch {
	case !placed || changes(r.Proc) && WorkerOf(hash, w.s.o.Workers) != w.number:
		return refuse(StatusBad)
	case !ready:
		return refuse(StatusWait)
	}
	x := sh.has()
	if x == nil { // another term begins
		return refuse(StatusTerm)
	}
	o := w.newOp()
	w.began++
	o.r, o.proc, o.term, o.number, o.since = r, r.Proc, w.term.Term, w.began, w.ep.Now()
	o.hash, o.shard, o.index, o.key, o.value = hash, sh, x, q.Key, q.Value
	o.source = source
	w.ops = append(w.ops, o)
	if o.proc == ProcRoute {
		return w.lookUp(o)
	}
	sh.count()
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

// answer answers an op.
func (w *worker) answer(o *op, status uint16) error { return w.end(o, o.r.Answer(status, nil)) }

// end ends an op that was answered, with err.
func (w *worker) end(o *op, err error) error {
	w.ops = slices.DeleteFunc(w.ops, func(other *op) bool { return other == o })
	*o = op{seen: o.seen[:0], write: write{appends: o.appends[:0], followers: o.followers[:0]}}
	w.spareOps = append(w.spareOps, o)
	return err
}

// goOn goes on with all that is in progress and can.
func (w *worker) goOn() error {
	w.wake = rdma.Forever
	if err := w.turn(); err != nil {
		return err
	}
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
		case o.routes:
			err = w.goOnRouting(o, now)
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
	w.see()
	return nil
}

// see notes that nothing is under way any more in earlier terms.
func (w *worker) see() {
	t := w.term
	if t == nil || t.Term == w.saw || slices.ContainsFunc(w.ops, func(o *op) bool { return o.term < t.Term }) {
		return
	}
	w.saw = t.Term
	w.s.seen(w.number, t.Term)
}

// turn goes on to the server's term. Writes that have no version yet are refused, as they are of an
// earlier one; those that have one go on at all replicas that are left. These, and GETs, end before
// the term is committed.
func (w *worker) turn() error {
	t := w.s.known.last()
	if t == w.term {
		return nil
	}
	w.term = t
	if t.Committed { // nothing of earlier terms is repeated any more
		w.backups.turn(t)
	}
	for _, k := range w.keys {
		for len(k.queue) > 0 && k.queue[0].term < t.Term {
			o := k.queue[0]
			k.queue = slices.Delete(k.queue, 0, 1)
			if err := w.answer(o, StatusTerm); err != nil {
				return err
			}
		}
		if k.look != nil {
			k.look.Release()
			k.look, k.fresh, k.late = nil, false, false
		}
		k.routing.drop()
	}
	return nil
}

// ended reports whether a new view has ended a verb, and has the worker join that.
func (w *worker) ended(err error) (bool, error) {
	if !errors.Is(err, rdma.ErrStale) {
		return false, nil
	}
	_, err = w.ep.Join()
	return true, err
}

// pass lets cleaners know when the worker has nothing in hand any more that it looked up before
// they asked: no READ of an entry is in flight, and what writes know of their keys is looked up
// again. Answers have copies. It waits for no write, which may wait for the room that cleaners
// make.
func (w *worker) pass() {
	q := &w.s.quiet
	if last := q.last(); w.question == 0 && last > 0 && last != q.of(w.number) {
		w.question, w.opsAt = last, w.began
		for _, k := range w.keys {
			k.fresh, k.late = false, k.look != nil
		}
	}
	if w.question == 0 || w.looks() {
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
