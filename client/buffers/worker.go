package buffers

import (
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// Allocator hands out buffers: a Worker, or what a test has in its place. A pointer of 16 bits, 0
// for none, names a buffer in one segment of a node's memory. The number picks the segment. So both
// address any memory, and each client can resolve a pointer that another client wrote.
type Allocator interface {
	// Allocate hands a buffer on a node to the client, which owns it from then on, mostly without
	// a verb to the node. The error wraps client.ErrFull, or is the error of a node that does not
	// answer in time.
	Allocate(node int, number uint64) (pointer uint16, at rdma.Addr, err error)
	// Give takes a buffer back from the client; 0 is ignored. The caller guarantees that no word
	// points at it, and that no verb of this client to it is in flight.
	Give(node int, number uint64, pointer uint16)
	// Resolve returns the address of a buffer.
	Resolve(node int, number uint64, pointer uint16) rdma.Addr
}

// Worker hands out buffers to one client. It belongs to the client's worker, and is not safe for
// concurrent use.
type Worker struct {
	*Space
	ep rdma.Endpoint
	// Bound of each request to a node. It also bounds all of Close and Land.
	timeout time.Duration
	// The longest time that a node took for new buffers.
	longest time.Duration
	// By node: until when it is not asked for buffers; 0: it is. Times are those of ep's clock.
	silent []time.Duration
	// By node and segment; nil: not needed yet. The index is node * Segments + segment.
	lists  []*list
	stats  Stats
	member *kit.Member
	// The epoch in which the worker got what it has. Without a member it does not matter: the pool
	// is not swept.
	epoch uint64
	// Since when the step at work fails without the nodes that it asks; 0: it does not.
	neededSince time.Duration
	// See SetHedgeDelay. nil: READs wait for as long as Patience, too.
	slow func() time.Duration
}

// Stats are counts of a worker. They only grow. Lost counts what the worker had. It does not count
// what it may have got without an answer: by the CAS that takes a bundle, or by the call for new
// buffers.
type Stats struct {
	Fresh   uint64 // buffers that no client had used before
	Taken   uint64 // buffers out of bundles
	Given   uint64 // buffers given back in bundles
	Lost    uint64 // buffers that are left without an owner, because a node was silent or died
	Retries uint64 // CASes of a stack that another client had changed
}

// list is what a worker owns of a node's segment, the oldest first, so that a buffer is reused as
// late as possible: slow readers may still read it.
type list struct {
	node, segment int
	// The worker's buffers are those from head on.
	free []uint16
	head int
	// The stack's word as it was last read or written.
	top stack
	// The batch that gives out back, in the background; nil: none. While it is in flight its
	// buffers are in out only, so that they cannot be handed out.
	pushing *rdma.Batch
	out     []uint16
}

// mostKept bounds a list: what exceeds it is given back. So a client owns at most as many buffers
// of a node's segment, and one bundle that it is giving back. While a node does not answer a push,
// no second one starts, and the list may grow beyond that. The second term keeps some buffers in
// hand behind the push of a full bundle.
func (s *Space) mostKept() int { return max(4*s.chunk(), 2*(s.listed()+1)) }

// Open returns the worker of an endpoint. Each request to a node ends within the timeout.
func (s *Space) Open(ep rdma.Endpoint, nodes int, timeout time.Duration) *Worker {
	return &Worker{Space: s, ep: ep, timeout: timeout, lists: make([]*list, nodes*s.Segments),
		silent: make([]time.Duration, nodes)}
}

// Follow makes what the worker has its own until a member's next epoch that is swept: see package
// kit.
func (w *Worker) Follow(m *kit.Member) { w.member, w.epoch = m, m.Epoch }

// busy reports whether only buffers may be taken that were never handed out, and none be given
// back. When the member has joined another epoch, and one may have been swept since, the worker has
// nothing any more. Allocate, Give and Close ask first, since the member may have joined another
// view since the last call.
func (w *Worker) busy() bool {
	if w.member == nil {
		return false
	}
	if w.epoch != w.member.Epoch {
		if !w.member.Keeps(w.epoch) {
			w.abandon()
		}
		w.epoch = w.member.Epoch
	}
	return w.member.Busy
}

// Stats returns the worker's counters.
func (w *Worker) Stats() Stats { return w.stats }

// list returns the worker's list of a node's segment.
func (w *Worker) list(node, segment int) *list {
	l := &w.lists[node*w.Segments+segment]
	if *l == nil {
		*l = &list{node: node, segment: segment}
	}
	return *l
}

func (l *list) len() int { return len(l.free) - l.head }

// put appends. It moves the list to the front of its array only where the array would grow, so a
// list of steady length allocates nothing.
func (l *list) put(pointers ...uint16) {
	if l.head > 0 && len(l.free)+len(pointers) > cap(l.free) {
		l.free = l.free[:copy(l.free, l.free[l.head:])]
		l.head = 0
	}
	l.free = append(l.free, pointers...)
}

func (l *list) take() uint16 {
	p := l.free[l.head]
	l.head++
	return p
}

// Allocate returns a buffer on a node, of the segment that a number picks: the one that the worker
// has had for the longest time. If it has none it takes a bundle that others gave back, or new
// buffers, which costs trips. The error wraps client.ErrFull if there is none, or is one of the
// node's; then no buffer was handed out. The content of the buffer is undefined, and readers of its
// former use may still read it.
func (w *Worker) Allocate(node int, number uint64) (pointer uint16, at rdma.Addr, err error) {
	// Another epoch takes away what the worker has: see R1.
	busy := w.busy()
	l := w.list(node, w.Segment(number))
	if l.len() == 0 {
		if err := w.supply(l, busy); err != nil {
			return 0, 0, fmt.Errorf("allocate a buffer of segment %d of node %d: %w", l.segment, node, err)
		}
	}
	pointer = l.take()
	return pointer, w.at(node, l.segment, pointer), nil
}

// Give takes over a buffer that no word points to, with none of its verbs in flight. The pointer 0
// is ignored. It takes no trip: what exceeds the bound is given back in the background.
func (w *Worker) Give(node int, number uint64, pointer uint16) {
	if pointer == 0 {
		return
	}
	if w.busy() {
		w.stats.Lost++
		return
	}
	l := w.list(node, w.Segment(number))
	l.put(pointer)
	if l.len() > w.mostKept() {
		w.settle(l)
		if l.pushing == nil {
			_ = w.push(l) // a failed post is reported by the next one
		}
	}
}

// refill fills an empty list: from a push that failed, from the stack, or with new buffers. Buffers
// that others gave back come before new ones: they have memory already, and the count of new ones
// never falls.
func (w *Worker) refill(l *list, busy bool) error {
	w.settle(l)
	if l.len() > 0 {
		return nil
	}
	l.free, l.head = l.free[:0], 0
	if err := w.look(l, w.readTimeout(l.node)); err != nil {
		return err
	}
	// Under a busy view the stack belongs to the master's sweep (R2).
	if !busy {
		if ok, err := w.pop(l); ok || err != nil {
			return err
		}
	}
	err := w.growOrPop(l, busy)
	if errors.Is(err, rdma.ErrFull) && w.member != nil {
		// The sweep that is under way may free buffers.
		if busy {
			return w.outlast(err)
		}
		w.Ask(l.node, AskSweep)
	}
	return err
}

// outlast waits for the end of a sweep. The operation must then begin again: what it holds and has
// in flight may belong to no client any more (R1).
func (w *Worker) outlast(full error) error {
	idle, err := w.member.Await(w.epoch, w.timeout)
	switch {
	case err != nil:
		return err
	case !idle:
		return full
	}
	return fmt.Errorf("the sweep of epoch %d is over: %w", w.epoch, rdma.ErrStale)
}

// Ask tells the master what may help: AskSweep, AskFence. A sweep that is under way may forget the
// request, so it is made again by each allocation that fails. A node that cannot be told fails what
// the worker does next.
func (w *Worker) Ask(node int, what uint64) {
	if w.member == nil {
		return
	}
	_ = w.changeRequests(w.ep, node, w.Patience(), func(word uint64) uint64 { return word | what })
}

// Swept returns the latest epoch that a master has begun to sweep, as a node knows it.
func (w *Worker) Swept(node int) (uint64, error) {
	word, err := rdma.ReadWord(w.ep, stepAsk, w.Space.asked(node), w.readTimeout(node))
	return word >> askBits, err
}

// grow takes a chunk of new buffers, which the node backs with memory before it hands them out. A
// crash of either side after that leaves a chunk without an owner, for a sweep. If the answer is
// lost it is the same: the node may have handed the chunk out.
func (w *Worker) grow(l *list) error {
	r := rdma.Request{Step: stepGrow, Proc: node.ProcGrow,
		Arg: [6]uint64{w.counter(l.segment), w.array(l.segment), uint64(w.Bytes),
			uint64(w.Buffers), uint64(w.chunk())}}
	began := w.ep.Now()
	if err := w.ep.Call(l.node, &r, w.stepPatience()); err != nil {
		return err
	}
	w.learn(w.ep.Now() - began)
	first, n := r.Ret[0], r.Ret[1]
	if n == 0 || first+n > uint64(w.Buffers) {
		return fmt.Errorf("%d buffers from %d on were handed out: %w", n, first, client.ErrDamaged)
	}
	for i := range n {
		l.put(uint16(first + i + 1))
	}
	w.stats.Fresh += n
	return nil
}

// growOrPop takes new buffers. If there are none, and others were faster at a stack that was not
// empty, it goes on with the stack until the timeout: there may be free buffers, and each loss is
// the success of another client.
func (w *Worker) growOrPop(l *list, busy bool) error {
	began := w.ep.Now()
	err := w.grow(l)
	for errors.Is(err, rdma.ErrFull) && !busy && l.top.pointer() != 0 && w.ep.Now()-began < w.timeout {
		if ok, e := w.pop(l); ok || e != nil {
			return e
		}
	}
	return err
}

// popAttempts bounds how often a worker loses a CAS of the stack before it takes new buffers
// instead, if there are any.
const popAttempts = 16

// pop takes the bundle on top of the stack, of which the word was just read. It reports false if
// there is none. The CAS validates the READ of the bundle: if it succeeds the bundle was on top all
// the time.
//
// If the answer of the CAS is lost the bundle may be off the stack, and its buffers have no owner
// until a sweep. The same holds if the client crashes before it has used them.
func (w *Worker) pop(l *list) (ok bool, err error) {
	for range popAttempts {
		pointer := l.top.pointer()
		if pointer == 0 {
			return false, nil
		}
		b := w.ep.Batch()
		read := b.Read(w.at(l.node, l.segment, pointer), bundleBytes(w.listed()))
		if err := rdma.Do(w.ep, b.As(stepReadBundle), w.stepPatience()); err != nil {
			b.Release()
			return false, err
		}
		// If the CAS fails the content may be anything: the bundle was taken, and used again.
		next, list, whole := decodeBundle(read.Buf, l.free)
		b.Release()
		swapped, err := w.swap(l, next)
		switch {
		case err != nil:
			return false, err
		case swapped && !whole:
			return false, fmt.Errorf("the bundle in buffer %d: %w", pointer, client.ErrDamaged)
		case swapped:
			l.free = append(list, pointer)
			w.stats.Taken += uint64(len(l.free))
			return true, nil
		}
		w.stats.Retries++
	}
	return false, nil
}

// look reads the stack's word. A push that finds the word changed learns it from its CAS, and does
// not look.
func (w *Worker) look(l *list, within time.Duration) error {
	top, err := rdma.ReadWord(w.ep, stepReadStack, w.top(l.node, l.segment), within)
	if err == nil {
		l.top = stack(top)
	}
	return err
}

// swap replaces the top of the stack by next, unless the stack has changed. A CAS that fails
// returns the new top, which the next attempt expects.
func (w *Worker) swap(l *list, next uint16) (bool, error) {
	b := w.ep.Batch()
	defer b.Release()
	cas := b.CompareSwap(w.top(l.node, l.segment), uint64(l.top), uint64(l.top.then(next)))
	if err := rdma.Do(w.ep, b.As(stepPop), w.stepPatience()); err != nil {
		return false, err
	}
	l.top = stack(cas.After())
	return cas.Swapped(), nil
}

// push starts to give back a bundle of the oldest buffers, by a WRITE and a CAS in one chain: the
// bundle is there before the stack names it. The buffers belong to the worker until the CAS is
// known to have succeeded.
//
// The list has a buffer at least, and no push is in flight. What a crash leaves: all of the bundle
// in the stack, or all of it without an owner. If the CAS fails, only the content of a buffer of
// the worker's own has changed.
func (w *Worker) push(l *list) error {
	n := min(l.len()-1, w.listed())
	l.out = append(l.out[:0], l.free[l.head:l.head+n+1]...)
	l.head += n + 1
	bundle := l.out[n]
	b := w.ep.Batch()
	p := b.Alloc(bundleBytes(n))
	encodeBundle(p, l.top.pointer(), l.out[:n])
	b.Chain()
	b.Write(w.at(l.node, l.segment, bundle), p)
	b.CompareSwap(w.top(l.node, l.segment), uint64(l.top), uint64(l.top.then(bundle)))
	if err := w.ep.Post(b.As(stepPush)); err != nil { // nothing was sent
		b.Release()
		l.put(l.out...)
		return err
	}
	l.pushing = b
	return nil
}

// settle takes the result of a push, if it is known. A push that failed may have taken effect, so
// its buffers are left to a sweep. If the CAS found another top, or nothing was sent, the buffers
// are the worker's again, the newest in its list now. The word that the CAS found is what the next
// push expects. unsent: nothing was sent, since the node is out of reach.
func (w *Worker) settle(l *list) (unsent bool) {
	b := l.pushing
	if b == nil || !b.Finished() {
		return false
	}
	l.pushing = nil
	cas := b.Op(1)
	switch {
	case errors.Is(cas.Err, rdma.ErrNodeDown) && b.HadNoEffect(0, b.Len()):
		unsent = true
		l.put(l.out...)
	case b.Err() != nil:
		w.stats.Lost += uint64(len(l.out))
	case cas.Swapped():
		l.top = stack(cas.Value)
		w.stats.Given += uint64(len(l.out))
	default:
		w.stats.Retries++
		l.top = stack(cas.Result)
		l.put(l.out...)
	}
	b.Release()
	return unsent
}

// Close gives back all that the worker owns. What a node does not take within the timeout is lost
// until a sweep; that is no error, see Stats. Nor is it an error if a sweep has begun, since the
// worker owns nothing then.
func (w *Worker) Close() error {
	if w.busy() {
		w.abandon()
		return nil
	}
	if err := w.giveBack(); err != nil && !errors.Is(err, rdma.ErrStale) {
		return fmt.Errorf("give buffers back: %w", err)
	}
	w.abandon()
	return nil
}

// Land gives back all that the worker owns. It returns an error if something may still be in flight
// afterwards. What a dead node does not take is lost. The master calls it in a sweep: a push that
// landed after the stacks were walked would put buffers there that the sweep has found to be
// garbage.
func (w *Worker) Land() error {
	err := w.giveBack()
	for _, l := range w.lists {
		if err == nil && l != nil && l.pushing != nil {
			err = fmt.Errorf("node %d does not answer: %w", l.node, rdma.ErrTimeout)
		}
	}
	w.abandon()
	if err != nil {
		return fmt.Errorf("give buffers back: %w", err)
	}
	return nil
}

// giveBack pushes all lists until they are empty or the time is over. That takes a trip for each
// bundle of the longest list, and one more where others were faster. A node that is out of reach is
// asked again after a pause: it may be back in a moment. It gets a part of the timeout, and what it
// does not take in that time is lost.
func (w *Worker) giveBack() error {
	began, part := w.ep.Now(), w.timeout/turns
	for {
		busy, away := false, false
		for _, l := range w.lists {
			if l == nil {
				continue
			}
			// A push that another client's change defeated is repeated.
			if w.settle(l) {
				away = true
				if w.ep.Now()-began >= part {
					w.lose(l)
				}
			}
			if l.pushing == nil && l.len() > 0 {
				if err := w.push(l); err != nil {
					return err
				}
			}
			busy = busy || l.pushing != nil
		}
		now := w.ep.Now()
		if !busy || now-began >= w.timeout {
			return nil
		}
		if err := w.await(min(began+w.timeout, now+part)); err != nil {
			return err
		}
		if away {
			w.ep.Sleep(part / turns)
		}
	}
}

// turns is the number of parts of the timeout. A silent node holds up the other nodes for one part
// only: other clients may have changed their stacks, so that pushes there must be repeated. A node
// that is out of reach is asked as often in its part.
const turns = 16

// await waits for the pushes in flight. Errors of verbs are settle's to examine.
func (w *Worker) await(until time.Duration) error {
	for _, l := range w.lists {
		if l == nil || l.pushing == nil {
			continue
		}
		left := max(until-w.ep.Now(), 0)
		if err := w.ep.Wait(l.pushing, rdma.All, left); err != nil && !errors.Is(err, rdma.ErrTimeout) {
			return err
		}
	}
	return nil
}

// abandon counts as lost what could not be given back, and forgets it. A push in flight may still
// land: its batch owns its memory until then.
func (w *Worker) abandon() {
	for _, l := range w.lists {
		if l != nil {
			w.lose(l)
		}
	}
}

func (w *Worker) lose(l *list) {
	w.stats.Lost += uint64(l.len())
	l.free, l.head = l.free[:0], 0
	if l.pushing != nil {
		w.stats.Lost += uint64(len(l.out))
		l.pushing.Release()
		l.pushing = nil
	}
}
