package tcp

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/farkv/farkv/node/membership"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/realtime"
)

// Endpoint is one worker's way to the pool.
//
// Answers are read by one of the workers that wait for some: see stream. It fills in the results
// and the buffers of ops, which their worker does not look at before they are complete, and leaves
// word in the inbox; only the worker itself completes them.
type Endpoint struct {
	rdma.Base
	fabric *Fabric
	client rdma.Client
	joined uint64
	saw    listing // with that view
	lost   []error // by node: it strayed there, and the connection is down
	rights rights

	sleeper realtime.Sleeper
	late    realtime.Sleeper // of waiting; it is left alone while it goes off too early
	lateAt  time.Duration    // when it goes off, on realtime.Now
	rand    *rand.Rand
	closed  bool
	box     *mailbox // nil: it has none
	rings   []*ring
	flying  []int     // frames of verbs in flight, by node
	touched []*link   // by the batch that is being posted
	spares  []*sent   // to be used again
	calls   []*called // the same

	mu     sync.Mutex
	inbox  []*sent
	taken  []*sent // what the worker took from the inbox last; used in turn with it
	told   bool    // a call was answered, or a message came
	parked bool
	ready  bool // roused, and counted by the fabric
	wake   chan struct{}
}

var (
	_ rdma.Endpoint     = (*Endpoint)(nil)
	_ rdma.Messenger    = (*Endpoint)(nil)
	_ rdma.Ringer       = (*Endpoint)(nil)
	_ rdma.ClientLister = (*Endpoint)(nil)
)

// sent is one frame of verbs in flight: ops of one batch, or a part of a long one.
type sent struct {
	ep    *Endpoint
	batch *rdma.Batch
	node  int
	ops   []int // of the batch
	part  bool  // of ops[0] alone: n bytes at off of it
	off   int
	n     int
	left  *int // parts of the op that are not answered, shared by them
	epoch uint64
	lost  error
}

// Client returns the worker's identity.
func (e *Endpoint) Client() rdma.ClientID { return e.client.ID }

// Life tells the worker from others that had its identity.
func (e *Endpoint) Life() uint64 { return e.client.Life }

// Post sends the batch to its nodes.
func (e *Endpoint) Post(b *rdma.Batch) error {
	if e.closed || e.fabric.closing.Load() {
		return fmt.Errorf("post %d verbs: endpoint of client %d: %w", b.Len(), e.client.ID, rdma.ErrClosed)
	}
	e.collect()
	e.Posted(b)
	b.Track()
	e.touched = e.touched[:0]
	var seen [4]uint64 // nodes, of which a pool has 256 at most
	for i := range b.Len() {
		node := b.Op(i).Addr.Node()
		if node >= len(e.lost) {
			b.Op(i).Fail(fmt.Errorf("pool has %d nodes: %w", len(e.lost), rdma.ErrAccess))
			b.Complete(i)
			continue
		}
		if bit := uint64(1) << (node & 63); seen[node>>6]&bit == 0 {
			seen[node>>6] |= bit
			e.send(b, node, i)
		}
	}
	if len(e.touched) > 0 {
		if e.fabric.ready.Load() > 0 {
			yieldToWorkers()
		}
		for _, l := range e.touched {
			l.flush()
			if l.beside != nil {
				e.collect() // the node has executed it
			}
		}
	}
	return nil
}

// send sends the ops of b that go to one node, the first of which is number first.
func (e *Endpoint) send(b *rdma.Batch, node, first int) {
	l := e.fabric.links[node].verbs
	err := cmp.Or(e.lost[node], e.fabric.down(node))
	var s sending
	if err == nil {
		s, err = l.begin()
	}
	if err != nil {
		for i := first; i < b.Len(); i++ {
			if b.Op(i).Addr.Node() == node {
				b.Op(i).Fail(rdma.NoEffect(err))
				b.Complete(i)
			}
		}
		return
	}
	w := writer{e: e, s: s, b: b, node: node}
	for i := first; i < b.Len(); i++ {
		if b.Op(i).Addr.Node() == node {
			w.add(i)
		}
	}
	w.finish()
	if s.done() {
		e.touched = append(e.touched, l)
	}
}

func (e *Endpoint) spare() *sent {
	s := reuse(&e.spares)
	*s = sent{ep: e, ops: s.ops[:0]}
	return s
}

// reuse takes one of a list of spare objects, or a new one.
func reuse[T any](spares *[]*T) *T {
	n := len(*spares)
	if n == 0 {
		return new(T)
	}
	x := (*spares)[n-1]
	*spares = (*spares)[:n-1]
	return x
}

// land takes the answer to a frame.
func (s *sent) land(h header, p []byte) error {
	if h.kind != kindVerbs {
		return fmt.Errorf("frame of kind %d answers verbs: %w", h.kind, ErrProtocol)
	}
	if h.status != statusOK {
		s.lose(s.refused(h.status))
		return nil
	}
	if h.items != len(s.ops) {
		return fmt.Errorf("%d answers to %d verbs: %w", h.items, len(s.ops), ErrProtocol)
	}
	for _, i := range s.ops {
		rest, err := s.result(s.batch.Op(i), p)
		if err != nil {
			return err
		}
		p = rest
	}
	if len(p) > 0 {
		return fmt.Errorf("%d bytes behind the last answer: %w", len(p), ErrProtocol)
	}
	s.ep.arrived(s)
	return nil
}

// result takes the answer to one op.
func (s *sent) result(op *rdma.Op, p []byte) (rest []byte, err error) {
	if len(p) < resultBytes {
		return nil, fmt.Errorf("answer to %s is cut off: %w", op.Verb, ErrProtocol)
	}
	st, n := status(p[0]), int(binary.LittleEndian.Uint32(p[4:]))
	p = p[resultBytes:]
	if st != statusOK {
		op.Fail(s.refused(st))
		return p, nil
	}
	buf := op.Buf
	if s.part {
		buf = buf[s.off : s.off+s.n]
	}
	if n != resultLen(op.Verb, len(buf)) || pad(n) > len(p) {
		return nil, fmt.Errorf("answer of %d bytes to %s of %d: %w", n, op.Verb, len(buf), ErrProtocol)
	}
	switch {
	case op.Verb == rdma.Read:
		copy(buf, p[:n])
	case op.Verb.Atomic():
		op.Result = binary.LittleEndian.Uint64(p)
	}
	return p[pad(n):], nil
}

// refused is why the node did not execute something. Other parts of a verb may have been executed.
func (s *sent) refused(st status) error {
	err := refusal(st, s.node, s.ep.client.ID, s.epoch)
	if s.part {
		return err
	}
	return rdma.NoEffect(err)
}

func refusal(st status, node int, c rdma.ClientID, epoch uint64) error {
	switch st {
	case statusRevoked:
		return fmt.Errorf("client %d: %w", c, rdma.ErrRevoked)
	case statusStale:
		return fmt.Errorf("client %d of epoch %d: %w", c, epoch, rdma.ErrStale)
	case statusAccess:
		return fmt.Errorf("refused by node %d: %w", node, rdma.ErrAccess)
	}
	return fmt.Errorf("node %d: %w", node, st.err())
}

func (s *sent) lose(err error) {
	s.lost = err
	s.ep.arrived(s)
}

// arrived leaves word that a frame was answered, or will never be.
func (e *Endpoint) arrived(s *sent) {
	e.mu.Lock()
	e.inbox = append(e.inbox, s)
	e.called()
}

// notify leaves word that something else came.
func (e *Endpoint) notify() {
	e.mu.Lock()
	e.told = true
	e.called()
}

// called rouses the worker if it is parked. The caller holds mu, which called unlocks.
func (e *Endpoint) called() {
	rouse := e.parked && !e.ready
	if rouse {
		e.ready = true
		e.fabric.ready.Add(1)
	}
	e.mu.Unlock()
	if rouse {
		e.rouse()
	}
}

func (e *Endpoint) rouse() { wake(e.wake) }

// word reports whether there is something in the inbox, or something else came.
func (e *Endpoint) word() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.inbox) > 0 || e.told
}

// park pauses the worker until there is word for it, or it is roused, or until that time; 0: there
// is none.
func (e *Endpoint) park(until time.Duration) {
	e.mu.Lock()
	if len(e.inbox) > 0 || e.told {
		e.mu.Unlock()
		return
	}
	e.parked = true
	e.mu.Unlock()
	var late <-chan time.Time
	if until > 0 {
		late = e.alarm(until)
	}
	select {
	case <-e.wake:
	case <-late:
		e.lateAt = 0
	}
	e.mu.Lock()
	e.parked = false
	if e.ready {
		e.ready = false
		e.fabric.ready.Add(-1)
	}
	e.mu.Unlock()
}

// alarm returns a channel that tells when it is that late, or earlier.
func (e *Endpoint) alarm(until time.Duration) <-chan time.Time {
	if now := realtime.Now(); e.lateAt == 0 || e.lateAt > until {
		e.lateAt = until
		return e.late.Set(until - now)
	}
	return e.late.C()
}

// collect completes what was answered.
func (e *Endpoint) collect() {
	e.mu.Lock()
	e.inbox, e.taken = e.taken[:0], e.inbox
	e.told = false
	e.mu.Unlock()
	for i, s := range e.taken {
		e.complete(s)
		e.taken[i] = nil
	}
}

func (e *Endpoint) complete(s *sent) {
	b := s.batch
	for _, i := range s.ops {
		op := b.Op(i)
		if s.lost != nil {
			op.Fail(s.lost)
		}
		if op.Err != nil && e.lost[s.node] == nil && errors.Is(op.Err, rdma.ErrAccess) &&
			!errors.Is(op.Err, rdma.ErrRevoked) {
			e.lost[s.node] = fmt.Errorf("connection to node %d is down since %w", s.node, op.Err)
		}
		if s.part {
			if *s.left--; *s.left > 0 {
				continue
			}
		}
		b.Complete(i)
	}
	s.batch = nil
	e.flying[s.node]--
	e.spares = append(e.spares, s)
}

// Wait waits for n chains of b.
func (e *Endpoint) Wait(b *rdma.Batch, n int, within time.Duration) error {
	if n == rdma.All || n > b.Chains() {
		n = b.Chains()
	}
	e.collect()
	if b.Done() >= n {
		e.Waited(b)
		return nil
	}
	until := time.Duration(0)
	if within != rdma.Forever {
		until = realtime.Now() + max(within, 1)
	}
	for at := 0; ; {
		at = e.await(b, n, at, until)
		e.collect()
		if b.Done() >= n {
			e.Waited(b)
			return nil
		}
		if until > 0 && realtime.Now() >= until {
			e.leaveToOthers()
			return fmt.Errorf("wait for %d of %d chains: %w", n, b.Chains(), rdma.ErrTimeout)
		}
	}
}

// await waits until something has arrived. The ops of b up to number at are complete; it returns up
// to where they are now.
func (e *Endpoint) await(b *rdma.Batch, n, at int, until time.Duration) int {
	for b.Completed(at) {
		at++
	}
	node := b.Op(at).Addr.Node()
	if n == b.Chains() || !others(b, at, node) {
		e.fabric.links[node].verbs.await(e, until)
		return at
	}
	// Any of several nodes may be the first to answer.
	var asked [mostAside]*stream
	k := 0
	for i := at; i < b.Len() && k < len(asked); i++ {
		if s := e.fabric.links[b.Op(i).Addr.Node()].verbs.stream.Load(); !b.Completed(i) && s != nil &&
			!slices.Contains(asked[:k], s) {
			s.aside.Add(1)
			s.call()
			asked[k] = s
			k++
		}
	}
	e.park(until)
	for _, s := range asked[:k] {
		s.aside.Add(-1)
	}
	return at
}

// mostAside bounds the nodes of which one batch's first answers are waited for; those of others
// come a moment later.
const mostAside = 16

// others reports whether ops of b behind number at are in flight to other nodes.
func others(b *rdma.Batch, at, node int) bool {
	for i := at; i < b.Len(); i++ {
		if !b.Completed(i) && b.Op(i).Addr.Node() != node {
			return true
		}
	}
	return false
}

// leaveToOthers has what is in flight read while the worker does not wait.
func (e *Endpoint) leaveToOthers() {
	for node, l := range e.fabric.links[:len(e.lost)] {
		if s := l.verbs.stream.Load(); s != nil && (l.verbs.awaited() || e.box.isAt(node)) {
			s.call()
		}
	}
}

// Now is the time since the machine started, the same in all its processes.
func (e *Endpoint) Now() time.Duration { return realtime.Now() }

// Sleep pauses the worker. It ends early when the fabric closes, so that tasks see that they have
// to stop.
func (e *Endpoint) Sleep(d time.Duration) {
	e.leaveToOthers()
	e.sleeper.Sleep(d, e.fabric.stop)
	e.collect()
}

// Rand is the worker's own generator.
func (e *Endpoint) Rand() *rand.Rand { return e.rand }

// Go starts a task with an endpoint of its own. Once the fabric closes, that endpoint answers
// rdma.ErrClosed, which is how the task learns that it has to return. A panic in f ends the
// process.
func (e *Endpoint) Go(name string, f func(rdma.Endpoint)) error {
	return e.fabric.tasks.Go(e.fabric.Open, name, f)
}

// Join makes the worker a member of the pool's current view.
func (e *Endpoint) Join() (rdma.View, error) {
	if e.closed || e.fabric.closing.Load() {
		return rdma.View{}, fmt.Errorf("join the view as client %d: %w", e.client.ID, rdma.ErrClosed)
	}
	if e.client.ID == 0 { // it may only read, and is in no list
		v, err := e.fabric.view()
		if err != nil {
			return rdma.View{}, fmt.Errorf("join the view: %w", err)
		}
		e.joined = v.Epoch
		return v, nil
	}
	v, clients, err := e.fabric.look()
	if err != nil {
		return rdma.View{}, fmt.Errorf("join the view: %w", err)
	}
	// A client that was fenced off before an epoch began does not join it: see membership.Board.succeed.
	if membership.Fenced(e.client, clients.holders) {
		return rdma.View{}, fmt.Errorf("join the view: client %d: %w", e.client.ID, rdma.ErrRevoked)
	}
	e.joined, e.saw = v.Epoch, clients
	return v, nil
}

// Close gives the identity back, unless it was fenced off: then what it owned waits for recovery,
// and Forget. Verbs in flight may land later.
func (e *Endpoint) Close() error {
	if e.closed {
		return nil
	}
	if e.box != nil {
		_ = e.box.Close()
	}
	for _, r := range slices.Clone(e.rings) {
		_ = r.Close() // else it ends with the connection
	}
	e.closed = true
	return e.fabric.leave(e)
}
