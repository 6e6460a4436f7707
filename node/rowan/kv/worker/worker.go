package worker

import (
	"cmp"
	"errors"
	"slices"
	"time"

	"github.com/farkv/farkv/node/cluster/rpc"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
	"github.com/farkv/farkv/node/rowan/index"
	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/node/rowan/kv/state"
	"github.com/farkv/farkv/node/rowan/shards"
)

// Worker is a task that serves requests (section 5.1): GETs of any key, and writes of the keys that
// hash to it. It alone writes those keys. So it alone decides whether such a key exists, and takes
// into account what is in flight. GETs use the index, which names only what is on all replicas.
//
// A worker waits for nothing but the next event. An operation with verbs in flight stays in ops,
// and is continued when they are complete.
type Worker struct {
	s      *state.Server
	ep     rdma.Endpoint
	number int
	peer   *rpc.Peer
	// The worker's own log, where its writes go.
	log *rowan.Log
	// The server's last term that the worker has taken over; nil: there is none yet.
	term *state.Term
	// The term before which it has nothing under way, as it told the server.
	saw uint64
	// How its writes come to the backups.
	backups replication
	// Segments of its log with writes that are not in the index yet.
	filling []filling
	// Buffers that are used again: of a record, and of an entry of several blocks.
	buf   []byte
	entry rowan.Entry
	// How much of an entry is READ at first: about as much as the last ones had.
	reach int

	// Requests in progress, in the order in which they began: by ascending number.
	ops []*op
	// The number of requests that were begun.
	began uint64
	// Keys of writes in progress.
	keys []*key
	// When the worker looks at all of that again, unless a request comes first.
	wake time.Duration
	lull state.Lull

	// The question of cleaners that is not passed yet; 0: none.
	question uint64
	// The number of requests that had begun when the worker saw it.
	opsAt uint64

	// Freed ops and keys, which keep their buffers.
	spareOps  []*op
	spareKeys []*key
}

// filling is a segment of a worker's log with writes that are not in the index yet.
type filling struct {
	rowan.Segment
	writes int
	// The log has left the segment.
	full bool
}

// idle is the shortest pause of a worker that has nothing to do.
const idle = time.Millisecond

// Run is the worker's task. It ends when the server stops, or with the first error that cannot be
// repeated.
func Run(s *state.Server, ep rdma.Endpoint, number int) error {
	w, err := New(s, ep, number)
	if err != nil {
		return err
	}
	defer w.Close()
	// A round begins with at most one request, and goes on with all that can go on: completions
	// come without a request, too, since Next returns for either.
	for !s.Tasks.Stopping() {
		r, err := w.Next(w.within())
		if err != nil && !errors.Is(err, rdma.ErrTimeout) {
			return err
		}
		// A request that Begin does not answer at once stays in ops.
		if r != nil {
			err = w.Begin(r)
		} else {
			err = nil
		}
		if err == nil {
			err = w.GoOn()
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// New returns a worker of a server, with a mailbox of its own. It does nothing before Begin or
// GoOn.
func New(s *state.Server, ep rdma.Endpoint, number int) (*Worker, error) {
	w := &Worker{
		s: s, ep: ep, number: number, log: s.Log(ep, rowan.Owner(1+number)),
		wake: rdma.Forever, lull: s.NewLull(ep, idle), reach: state.FirstReach,
	}
	o := rpc.Options{Box: rdma.BoxOptions{
		Node: s.Node, Number: s.Opt.Boxes + 1 + number, Slots: s.Opt.Slots, Bytes: s.Opt.LongestMessage(),
	}}
	var err error
	// The mailbox is of this worker alone, so a client chooses the worker by the mailbox: see
	// kv.Options.BoxOf.
	if w.peer, err = rpc.Open(ep, o); err != nil {
		return nil, err
	}
	// It may need the peer: RPC sends with it.
	w.backups = w.newReplication()
	return w, nil
}

// Next returns the next request that arrives within a time, or nil if something else may have
// happened. The error wraps rdma.ErrTimeout if nothing does.
func (w *Worker) Next(within time.Duration) (*rpc.Request, error) { return w.peer.Next(within) }

// Close closes the worker's mailbox. Requests in progress get no answer.
func (w *Worker) Close() { w.peer.Close() }

// within returns how long the worker may wait for a request.
func (w *Worker) within() time.Duration {
	pause := w.lull.Next(len(w.ops) > 0)
	if w.wake == rdma.Forever {
		return pause
	}
	return max(0, min(pause, w.wake-w.ep.Now()))
}

// again makes the worker look at all that is in progress at the given time, or earlier.
func (w *Worker) again(at time.Duration) { w.wake = min(w.wake, at) }

// op is a request in progress. The worker owns it; it is used again after end.
type op struct {
	// The request, which owns the message's buffer until it is answered or dropped.
	r    *rpc.Request
	proc uint16
	// The term of the request, which is the worker's when it began.
	term uint64
	// Its place among those that the worker began.
	number uint64
	// When it began.
	since time.Duration
	hash  uint64
	shard *state.Shard
	// The shard's index when the request began.
	index *index.Index
	// These alias the request. A DELETE has no value.
	key   []byte
	value []byte
	// Of a write: the key's writes in progress.
	on *key
	// Of a write that is refused: how it is answered.
	status uint16
	// The source of the shard's migration to this server, or None.
	source int

	// READs of what the index names; nil: none is in flight.
	look *rdma.Batch
	// The offsets that are READ.
	seen []uint64
	// The blocks of the key's entry, if it has several and they are READ.
	parts []rdma.Addr

	// The source is asked.
	routes  bool
	routing routing

	write
}

// Begin starts a request, or answers it at once. A request is refused that is not of the worker's
// term, that is for another server or worker, or that this server cannot serve yet.
func (w *Worker) Begin(r *rpc.Request) error {
	// A request is judged by the last term that the server knows.
	if err := w.turn(); err != nil {
		return err
	}
	if c, ok := w.backups.(*calls); ok && r.Proc == kv.ProcReplicate {
		return c.take(r)
	}
	// The request aliases the message, which belongs to r until r is answered or dropped.
	q, err := kv.ParseRequest(r.Body)
	refuse := func(status uint16) error { return r.Answer(status, nil) }
	switch {
	case err != nil || (r.Proc < kv.ProcGet || r.Proc > kv.ProcDelete) && r.Proc != kv.ProcRoute:
		return refuse(kv.StatusBad)
	case !w.term.TakesPart() || q.Term != w.term.Term:
		// If the client knows a later term, the control task reads the registers because of this.
		w.s.Known.Tell(q.Term)
		return refuse(kv.StatusTerm)
	case w.s.Opt.Check(q.Key, q.Value) != nil:
		return refuse(kv.StatusTooLarge)
	}
	// From here on the term of the client is the one of this worker, so both agree on the shard,
	// its primary and its source.
	hash := kv.Hash(q.Key)
	sh := w.s.Shards[w.term.Find(hash)]
	placed, source := w.term.Leads(sh.Number), w.term.Shards[sh.Number].Source
	ready := sh.Serving() && !w.term.Compare
	// The target of a migration asks. This server is the source, and need not serve the shard.
	if r.Proc == kv.ProcRoute {
		placed, ready, source = source == w.s.Node, w.s.Known.IsSettled(w.term.Term), shards.None
	}
	switch {
	// The client's configuration has the same term, so it is a faulty request and not an outdated
	// one.
	case !placed || changes(r.Proc) && kv.WorkerOf(hash, w.s.Opt.Workers) != w.number:
		return refuse(kv.StatusBad)
	case !ready:
		return refuse(kv.StatusWait)
	// With RPC clients and servers share the mailboxes. A worker leaves most of its slots to
	// servers, so that two servers never wait for each other's slots. What asks no other server
	// holds up none.
	case w.s.Opt.Kind == kv.RPC && (changes(r.Proc) || source != shards.None) && len(w.ops) >= w.s.Opt.Slots/4:
		return refuse(kv.StatusWait)
	}
	// A GET may be of a shard that the next term takes away: the index that it uses stays until
	// workers are quiet.
	x := sh.Index()
	if x == nil { // another term begins
		return refuse(kv.StatusTerm)
	}
	// From here on the op owns the request and answers it exactly once: in end.
	o := w.newOp()
	w.began++
	o.r, o.proc, o.term, o.number, o.since = r, r.Proc, w.term.Term, w.began, w.ep.Now()
	o.hash, o.shard, o.index, o.key, o.value = hash, sh, x, q.Key, q.Value
	o.source = source
	w.ops = append(w.ops, o)
	if o.proc == kv.ProcRoute {
		return w.lookUp(o)
	}
	if o.proc == kv.ProcGet {
		sh.Count()
		return w.lookUp(o)
	}
	return w.enqueue(o)
}

// newOp returns an op, with the buffers of an earlier one if possible.
func (w *Worker) newOp() *op {
	n := len(w.spareOps)
	if n == 0 {
		return new(op)
	}
	o := w.spareOps[n-1]
	w.spareOps = w.spareOps[:n-1]
	return o
}

// answer answers an op without a body.
func (w *Worker) answer(o *op, status uint16) error { return w.end(o, o.r.Answer(status, nil)) }

// end removes an op that was answered, and returns err, the error of the answer.
func (w *Worker) end(o *op, err error) error {
	w.ops = slices.DeleteFunc(w.ops, func(other *op) bool { return other == o })
	// The buffers stay. Nothing refers to the op any more: it is in no queue, has no verb in
	// flight, and its followers were answered.
	*o = op{seen: o.seen[:0], write: write{appends: o.appends[:0], followers: o.followers[:0]}}
	w.spareOps = append(w.spareOps, o)
	return err
}

// GoOn continues all that is in progress and can go on. An op may end others, its followers, so the
// place in ops is found again by number.
func (w *Worker) GoOn() error {
	w.wake = rdma.Forever
	if err := w.turn(); err != nil {
		return err
	}
	now := w.ep.Now()
	// It comes first: acknowledgments that it finds let ops go on below.
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
		// The next op is the first one with a higher number, wherever it is by now.
		i, _ = slices.BinarySearchFunc(w.ops, number+1, func(o *op, n uint64) int { return cmp.Compare(o.number, n) })
	}
	// Keys come behind ops: their writes have been moved from flying to done by now. A key that has
	// no write left is removed by advance.
	for i := 0; i < len(w.keys); {
		k := w.keys[i]
		if err := w.advance(k, now); err != nil {
			return err
		}
		if i < len(w.keys) && w.keys[i] == k {
			i++
		}
	}
	// Both come last: READs that have ended above hold nothing up any more.
	w.pass()
	w.see()
	return nil
}

// see tells the server that nothing of earlier terms is under way. The control task waits for that
// before it says that the server is quiet.
func (w *Worker) see() {
	t := w.term
	if t == nil || t.Term == w.saw || slices.ContainsFunc(w.ops, func(o *op) bool { return o.term < t.Term }) {
		return
	}
	w.saw = t.Term
	// Nothing that is begun from now on is of an earlier term, since turn has taken over t.
	w.s.Known.Seen(w.number, t.Term)
}

// turn takes over the server's last term. Writes without a version are of an earlier term and are
// refused. Those with a version are continued at all replicas that are still members. These writes
// and GETs end before the new term is committed, because commit waits for see.
func (w *Worker) turn() error {
	t := w.s.Known.Last()
	if t == w.term {
		return nil
	}
	// Writes in flight keep the term in which they got their version: repeating them gives equal
	// records.
	w.term = t
	if t.Committed { // nothing of earlier terms is repeated any more
		w.backups.turn(t)
	}
	for _, k := range w.keys {
		for len(k.queue) > 0 && k.queue[0].term < t.Term {
			o := k.queue[0]
			k.queue = slices.Delete(k.queue, 0, 1)
			if err := w.answer(o, kv.StatusTerm); err != nil {
				return err
			}
		}
		// What is being READ is looked up again if it is still needed.
		// The term may have another source, or none, for the shard.
		if k.look != nil {
			k.look.Release()
			k.look, k.fresh, k.late = nil, false, false
		}
		k.routing.drop()
	}
	return nil
}

// ended reports whether err says that a new view ended a verb. It then joins the new view, so that
// the verb can be repeated.
func (w *Worker) ended(err error) (bool, error) {
	if !errors.Is(err, rdma.ErrStale) {
		return false, nil
	}
	_, err = w.ep.Join()
	return true, err
}

// pass passes a question of cleaners, once the worker holds no entry that it looked up before it
// saw the question: no READ of such an entry is in flight, and what writes know of their keys is
// looked up again before it is used. Answers are copies. No write is waited for: it may wait for
// the room that cleaners make.
func (w *Worker) pass() {
	q := &w.s.Quiet
	if last := q.Last(); w.question == 0 && last > 0 && last != q.Of(w.number) {
		w.question, w.opsAt = last, w.began
		// What is known of the keys was looked up before the question: it is looked up again before
		// it is used.
		for _, k := range w.keys {
			k.fresh, k.late = false, k.look != nil
		}
	}
	// It is passed in a later round.
	if w.question == 0 || w.looks() {
		return
	}
	q.Pass(w.number, w.question)
	w.question = 0
}

// looks reports whether READs are in flight of what was looked up before the question.
func (w *Worker) looks() bool {
	return slices.ContainsFunc(w.ops, func(o *op) bool { return o.look != nil && o.number <= w.opsAt }) ||
		slices.ContainsFunc(w.keys, func(k *key) bool { return k.late })
}
