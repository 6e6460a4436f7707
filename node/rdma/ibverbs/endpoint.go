package ibverbs

import (
	"errors"
	"fmt"
	"time"
	"unsafe"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/realtime"
)

// Endpoint is one worker's way to the pool: a queue pair a node, and one completion queue. Its
// identity, views, calls and time are package tcp's. One goroutine at a time uses it; of its parts
// only the mailbox is used by others, too.
type Endpoint struct {
	*control.Worker
	fabric *Fabric
	// Verbs beyond it are refused before they are posted: see within.
	bytes uint64 // that each node has, behind the store's memory, too
	// cq has the completions of all queue pairs of the worker. Only the worker polls it. It has
	// room for twice what may be in flight: completions of queue pairs that were dropped may be
	// left in it, and a full queue is the end of all of them.
	cq completions
	// mem has the bytes of batches, and those that are staged. It closes behind all queue pairs.
	mem arena
	paths
	// rings is by the shorter MTU of the pool's and this device's: what an entry is cut into.
	rings rdma.RingPromises
	// box is set by Listen and unset by its Close. Without it nothing is sent.
	box *mailbox // nil: it has none
	// did is what the fabric has not been told yet: telling it costs atomics, which a verb need not
	// pay.
	did Stats

	// bell and found are used again by each post and poll, so that these allocate nothing.
	bell  doorbell
	found [32]completion
	// held makes Wait look again soon: see heldSlice.
	held bool // something is complete, but its node is not known to serve
	// dropped has the next Post empty the queue first: what dropped queue pairs leave does not add
	// up.
	dropped bool // completions of queue pairs that were dropped may fill the queue
	// closed is set when Close has begun to take the ways down. Behind it nothing is polled.
	closed bool
}

// paths are a worker's ways to the nodes' memory, and to mailboxes and rings.
type paths struct {
	// peers does not grow: pointers into it last. A queue pair is made when it is first needed.
	peers []peer // by node
	// ways are mostWays at most. One is kept, with its registered words, when it gives way to
	// another target.
	ways []*peer // to mailboxes and rings: their completions count on behind those of the nodes
	// to finds the way to a target; a way that gave way is not in it.
	to map[target]*peer
	// busy is in the order in which they became busy: pumpWays gives them room in this order.
	busy []*peer // the ways on which something flies or waits
	turn int     // of the ways, the one that gave way last
}

// doorbell is the post that is being made.
type doorbell struct {
	// groups are the queue pairs' parts of requests. No queue pair has two in one post.
	groups   []group
	requests []request
}

// target is where a way goes that is not one to a node's memory. The zero target is that. A mailbox
// that is reached by way of two nodes is two targets: whether its messages are taken depends on the
// node.
type target struct {
	addr   rdma.Addr // a rdma.BoxAddr or a rdma.RingAddr
	ring   bool
	stream int // of a ring
}

func (t target) box() rdma.BoxAddr { return rdma.BoxAddr(t.addr) }

// full is why a SEND to t found no buffer.
func (t target) full() error {
	if t.ring {
		return rdma.ErrRingDry
	}
	return rdma.ErrBoxFull
}

func (t target) String() string {
	if t.ring {
		return rdma.RingAddr(t.addr).String()
	}
	return t.box().String()
}

// peer is the way to one node's memory, to a mailbox by way of a node, or to a stream of a ring.
//
// What was posted is in the ring, in order: the work requests numbered from head up to tail. Those
// below ripe are over, and succeeded; they are taken once the node is known to have served. What
// waits comes behind them. All numbers wrap, and only their differences count: head, ripe and tail
// are in this order, and no more than the ring's length apart.
type peer struct {
	node  int
	index int  // of all ways
	qp    pair // nil: there is none
	// times is in the id of each work request. A completion with another one is of a queue pair
	// that was dropped, and means nothing.
	times uint16
	base  uint64 // of the node's memory, at its device
	key   uint32
	// It is read before the node is asked for its end. So a connection that breaks meanwhile is
	// noticed: the node has ended what was made over it.
	connection uint64 // of the process, that the queue pair belongs to, or the last one did; 0: there was none
	// epoch is the one that the worker had joined when the queue pair was made. The node ends the
	// other end once a later one is fenced.
	epoch uint64
	// lost is kept over new connections and epochs. It is only forgotten when a way gives way to
	// another target.
	lost error // the worker strayed there: the connection is down for good

	// ring has a power of two of places: Options.Depth for a node, sendDepth for a way.
	ring             []flight
	head, ripe, tail uint32
	// Places of waiting in front of next are empty: what was in them is in the ring.
	waiting []flight
	next    int // of waiting, the first that does wait
	// pushed counts pieces and parts, and no second tries: past goes by it.
	pushed uint32 // work requests that were ever to be posted
	// While it is not 0 no fence is passed: the device's own fence covers one plain compare and
	// swap, and not the ones that may have to follow.
	masked int // masked compare and swaps that are being made of plain ones
	// A place of words is the request's from its post until its result is taken.
	words    []byte  // the word before an atomic, by its place in the ring
	wordsMem memory  // words' registration; nil: not yet
	slow     slowing // since when nothing has come

	// entries is of a node's own peer, and counts those of all its rings and streams.
	entries uint32 // APPENDs that were ever posted to the node's rings

	// Of a way to a mailbox or a ring.
	to   target
	busy bool
	// sent begins anew with each queue pair, as the node's count of blocks does.
	sent uint64 // SENDs to a ring over this queue pair
	// known is for drop alone, and true only from the other end's word until then.
	known bool // what was in flight, and is not over, has not arrived for sure
	// meeting lasts as long as the connection: it hears of its end as well.
	meeting *control.Meeting // nil: it has not been asked for a connection
	// offered is this end of a connection that the mailbox's process has not answered yet. Nothing
	// is posted to it.
	offered pair // that is to be connected
	// begin is the first request's number in the ring: what the mailbox counts begins there.
	begin uint32 // of the ring, over this queue pair
	// most is told by the mailbox's answer.
	most int // bytes of a message
}

// flight is one work request. From push until over it holds its op's bytes: neither the batch nor
// the stage is used for anything else before. over is called once.
type flight struct {
	// batch is not recycled before its last op is over: it and the op stay where they are.
	batch *rdma.Batch
	op    int32
	last  bool  // of its op
	piece int32 // of what a SEND gathers, from 1: this READs it; 0: it does not; behind: see there
	// after makes messages and entries stay behind verbs that the worker posted before them, though
	// those go over another queue pair.
	after uint32 // of a SEND: as many of what was pushed for the node come first
	entry uint32 // of an APPEND: its number, of those for the node; of a fence: as many entries come first
	// off is where the part begins in the op's bytes, or a piece's in its stage.
	off int // the part of the op's bytes, of one that is longer than what one request moves
	n   int
	// where the bytes are at this end, when they are in no registered memory; of a piece: those of
	// its SEND
	stage stage
	// guess begins as what is expected, with 0 in the bits that are not compared.
	guess uint64 // of a masked compare and swap: what the word is taken to be
	wrong int    // how often it was wrong before
}

// newEndpoint makes the endpoint of a worker, which stays the caller's to close if there is an
// error. It connects to nothing: connections are made when something is posted.
func newEndpoint(f *Fabric, ep *control.Worker) (*Endpoint, error) {
	g := f.Geometry()
	e := &Endpoint{Worker: ep, fabric: f, bytes: g.Memory + g.Telemetry, mem: arena{a: f.a},
		paths: paths{peers: make([]peer, f.Nodes()), to: map[target]*peer{}}}
	own, err := ep.Rings()
	if err != nil {
		return nil, err
	}
	e.rings = promises(own.MTU, f.lim.mtu)
	// Those that fail have completions of their own, all that there are; some may be left of queue
	// pairs that were dropped.
	if e.cq, err = f.a.completions(2 * f.o.Depth * (f.Nodes() + 1)); err != nil {
		return nil, err
	}
	for i := range e.peers {
		e.peers[i] = peer{node: i, index: i, ring: make([]flight, f.o.Depth)}
	}
	// From here on batches have registered memory, and Batch.Append is allowed.
	ep.Init(e.mem.grow)
	ep.Appending()
	return e, nil
}

// attach connects the worker to a node, unless it is. What it returns is why the node's verbs fail.
// The node makes its end, and this end is connected to it, in that order: nothing can be posted
// before both are there. A crash in between leaves a queue pair at the node on which nothing comes.
// It goes with the process's connection, or is replaced when the worker asks again.
//
// It waits for the node's answer, for as long as transport.DeadAfter. The one that the worker had
// there before is destroyed by the node before it answers, so that what was posted to that cannot
// land behind what is posted to this one.
func (e *Endpoint) attach(p *peer) error {
	if p.lost != nil {
		return p.lost
	}
	if p.qp != nil {
		return nil
	}
	// It is read before the node is asked: see peer.connection.
	connection, err := e.fabric.Reach(p.node)
	if err != nil {
		return err
	}
	if err := p.makeWords(e.fabric.a); err != nil {
		return err
	}
	qp, err := e.cq.pair(len(p.ring), accessNone)
	if err != nil {
		return fmt.Errorf("connect to the memory of node %d: %w", p.node, err)
	}
	// It stands even if the rest fails: the node may have made its end. Close has it ended then.
	p.connection = connection
	remote, err := e.meet(p.node, qp)
	if err != nil {
		return errors.Join(err, qp.close())
	}
	e.did.Connects++
	p.qp, p.base, p.key, p.epoch = qp, remote.base, remote.key, e.Epoch()
	p.slow = slowing{}
	return nil
}

// makeWords makes room for the words that are read over a queue pair. They are made once, and used
// by each later queue pair of the peer. They are closed with the endpoint. The error wraps
// rdma.ErrFull.
func (p *peer) makeWords(a adapter) (err error) {
	if p.wordsMem != nil {
		return nil
	}
	p.words = make([]byte, wordBytes*len(p.ring))
	if p.wordsMem, err = a.register(unsafe.Pointer(unsafe.SliceData(p.words)),
		uint64(len(p.words)), false); err != nil {
		return fmt.Errorf("register %d bytes: %w", len(p.words), err)
	}
	return nil
}

// meet connects qp to a queue pair that the node makes. The caller closes qp if there is an error,
// and the node's end stays where it is: see attach.
func (e *Endpoint) meet(node int, qp pair) (card, error) {
	answer, err := e.Attach(node, qp.card().bytes())
	if err != nil {
		return card{}, err
	}
	remote, err := parseCard(answer)
	if err == nil {
		err = qp.connect(remote)
	}
	if err != nil {
		return card{}, fmt.Errorf("connect to the device of node %d: %w", node, err)
	}
	return remote, nil
}

// check drops the queue pair if it is known to be of no use any more. A node that lets another
// connection in has ended what was made over the last one, and one that names a fence has ended
// what was made in earlier epochs: what is in flight has landed, or never will. While there is no
// connection it may land yet.
//
// It asks no node: it compares what the link knows. Post calls it once a batch for each node, and
// look does while the worker waits.
func (e *Endpoint) check(p *peer) {
	if p.qp == nil && p.meeting == nil && p.head == p.tail {
		return
	}
	// First what the mailbox itself has said: it knows how many messages came, and the link does
	// not.
	if p.meeting != nil {
		if n, left, again := p.meeting.Left(); left {
			e.lastly(p, n, again)
			return
		}
	}
	connection, err := e.fabric.Reach(p.node)
	_, fence := e.fabric.Served(p.node)
	switch {
	case err != nil:
		e.drop(p, err)
	case connection != p.connection:
		e.drop(p, fmt.Errorf("connection to node %d broke: %w", p.node, rdma.ErrNodeDown))
	case fence > p.epoch || p.epoch != e.Epoch():
		e.drop(p, fmt.Errorf("client %d of epoch %d: %w", e.Client(), p.epoch, rdma.ErrStale))
	}
}

// Join makes the worker a member of the pool's current view. Its queue pairs are of the last one:
// verbs that are in flight there fail.
func (e *Endpoint) Join() (rdma.View, error) {
	v, err := e.Worker.Join()
	if err != nil {
		return v, err
	}
	for i := range len(e.peers) + len(e.busy) {
		p := e.active(i)
		if p.qp != nil && p.head != p.tail && p.epoch != e.Epoch() { // ErrStale means that they do not land later
			if err := e.detach(p); err != nil {
				e.drop(p, err)
			}
		}
		e.check(p)
	}
	return v, nil
}

// detach has the other end of the connection ended. It returns nil once nothing that was posted to
// it can land any more. It waits for the other end's answer; an error leaves open whether it can.
func (e *Endpoint) detach(p *peer) error {
	switch {
	case p.to.ring:
		return e.DetachRing(rdma.RingAddr(p.to.addr), p.to.stream)
	case p.isWay():
		return e.parted(p)
	}
	return e.Detach(p.node)
}

// drop gives the queue pair up and fails what is in flight or waits there, but for what is known to
// have been done. Behind it the device does not touch this end's memory any more; at the other end
// verbs may land yet, until the next attach. This end is closed before the ops fail: behind that
// their buffers are the worker's again.
//
// What is ripe and cannot be taken fails, too: whether the node served when it was executed will
// not be known. Errors that say that nothing lands later, rdma.ErrStale and rdma.ErrRevoked, are
// for callers that know the other end to be destroyed.
func (e *Endpoint) drop(p *peer, why error) {
	// What is ripe may be taken for the last time.
	e.settle(p, realtime.Boot())
	if p.isWay() {
		e.dropped = p.leave() || e.dropped
	} else if p.qp != nil {
		e.dropped = true
		if err := p.qp.close(); err != nil {
			panic(fmt.Sprintf("ibverbs: a queue pair may still write to memory that is about to be used again: %v",
				err))
		}
		p.qp = nil
		p.times++ // completions that come yet are of a past connection
	}
	for ; p.head != p.tail; p.head++ {
		// ErrNoBox and ErrNoRing promise that nothing arrived. That holds of what flew when the
		// other end said how much it got, and not of what is ripe: that has arrived, and is only
		// not known to count.
		if closed := errors.Is(why, rdma.ErrNoBox) ||
			errors.Is(why, rdma.ErrNoRing); closed && !(p.known && p.head-p.ripe < 1<<31) {
			e.fail(p.at(p.head), fmt.Errorf("%s is gone: %w", p.to, rdma.ErrNodeDown)) // it may have had it
			continue
		}
		e.fail(p.at(p.head), why)
	}
	p.ripe, p.known = p.tail, false
	p.masked = 0
	e.failWaiting(p, why)
}

// failWaiting fails what has not been posted. Of messages and entries the ops fail at once, but the
// flights stay until nothing of theirs is in flight: a READ of what a message gathers may still be
// writing to its stage.
func (e *Endpoint) failWaiting(p *peer, why error) {
	if p.isWay() {
		for _, f := range p.waiting[p.next:] {
			if op := f.batch.Op(int(f.op)); op.Err == nil {
				op.Fail(why)
			}
		}
		e.failed(p)
		return
	}
	for ; p.next < len(p.waiting); p.next++ {
		e.fail(&p.waiting[p.next], why)
	}
	p.waiting, p.next = p.waiting[:0], 0
}

// fail ends one work request, and its op if it is the last one of that. An op in several parts
// keeps the error that it met first.
func (e *Endpoint) fail(f *flight, why error) {
	op := f.batch.Op(int(f.op))
	if op.Err == nil {
		op.Fail(why)
	}
	e.over(f)
}

// over is behind the last look at a work request. The stage is its SEND's, and not that of the
// READs that gather into it. The flight is cleared before the op completes: with its last op a
// batch may be recycled, and a flight in a ring would keep it.
func (e *Endpoint) over(f *flight) {
	if f.piece == 0 {
		e.mem.give(f.stage)
	}
	b, op, last := f.batch, int(f.op), f.last
	*f = flight{}
	if last {
		b.Complete(op)
	}
}

// at is where a work request of the ring is. The ring's length is a power of two, so that places go
// on where numbers wrap.
func (p *peer) at(seq uint32) *flight { return &p.ring[seq%uint32(len(p.ring))] }

// Sleep pauses the worker. It ends early when the fabric closes. Completions that came meanwhile
// are taken, for batches that no task waits for.
func (e *Endpoint) Sleep(d time.Duration) {
	e.Worker.Sleep(d)
	e.progress(0)
}

// Go starts a task with an endpoint of its own: see control.Worker.Go.
func (e *Endpoint) Go(name string, f func(rdma.Endpoint)) error {
	return e.fabric.Task(e.fabric.Open, name, f)
}

// Close gives the queue pairs and the identity back: see control.Worker.Close. Verbs in flight end
// in rdma.ErrClosed, and may land later. This end of each connection is closed first, so that no
// buffer is touched any more. The identity is given back last.
//
// A crash at any point leaves the node's ends, which go with the process's connection, and the
// identity, which is fenced off and recovered.
func (e *Endpoint) Close() error {
	if e.closed {
		return nil
	}
	var errs []error
	if e.box != nil {
		// First, while the worker may still tell the mailboxes that it sent to.
		errs = append(errs, e.box.Close())
	}
	e.closed = true
	gone := fmt.Errorf("endpoint of client %d: %w", e.Client(), rdma.ErrClosed)
	for i := range e.peers {
		p := &e.peers[i]
		e.drop(p, gone)
		// A node that has another connection of this process's has ended what was made over the
		// last one.
		if connection, err := e.fabric.Reach(p.node); err == nil && connection == p.connection {
			_ = e.Detach(p.node) // else the end of the connection takes it down
		}
		if p.wordsMem != nil {
			errs = append(errs, p.wordsMem.close())
		}
	}
	for _, p := range e.ways {
		if p.to.ring {
			e.drop(p, gone)
			e.endWay(p)
		}
		if p.wordsMem != nil {
			errs = append(errs, p.wordsMem.close())
		}
	}
	for _, p := range e.busy {
		// With the nodes' queue pairs gone no piece flies that these wait for.
		e.failed(p) // nothing lands any more
	}
	e.rest()
	// The queue closes behind all queue pairs, the memory behind the queue, and the identity comes
	// last: its next holder finds nothing of this life in flight.
	e.fabric.stats.add(&e.did)
	errs = append(errs, e.cq.close(), e.mem.close(), e.Worker.Close())
	return errors.Join(errs...)
}

// slowing is for how long a node has completed nothing. head is compared, and not ripe: what is
// ripe and held back for want of the node's word is slow, too.
type slowing struct {
	head  uint32        // of the ring then
	since time.Duration // on realtime.Now; 0: there is nothing in flight
	asked time.Duration // when it was asked why, last
}

// Bounds of the patience with a node that completes nothing. Verbs take microseconds: the node is
// asked after askSoon, and then less and less often, since its process may be busier than its
// device.
const (
	askSoon   = 2 * time.Millisecond
	askSeldom = 100 * time.Millisecond

	// giveUp is longer than any device repeats what is not answered before it says so: see
	// fk_connect.
	//
	// It bounds the wait for a node's word about what is ripe, too.
	giveUp = 2500 * time.Millisecond
)

// look finds out, when a node has completed nothing for some time, whether it ever will. It may
// wait for the node's answer, transport.DeadAfter at most; meanwhile the worker polls nothing.
func (e *Endpoint) look(p *peer, now time.Duration) {
	if p.head == p.tail && p.next == len(p.waiting) {
		p.slow = slowing{}
		return
	}
	e.check(p)
	switch {
	// Without a queue pair nothing flies. What is held back of an earlier one waits for the node's
	// word, and check sees it when the connection breaks. The second condition is that check has
	// ended it all.
	case p.qp == nil && (p.to.ring || !p.isWay()), p.head == p.tail && p.next == len(p.waiting):
	// Whether it was done is not known. The node may be well, and answer the question below: queue
	// pairs of soft-RoCE come to stand still, see softVendor.
	case p.slow.since > 0 && p.slow.head == p.head && now-p.slow.since > giveUp:
		e.drop(p, fmt.Errorf("the device has not told for %v what became of verbs to node %d: %w", now-p.slow.since,
			p.node, rdma.ErrNodeDown))
	case p.slow.since == 0 || p.slow.head != p.head:
		p.slow = slowing{head: p.head, since: now}
	// Half of the silence so far, up to askSeldom: a busy node is asked a few times, and not all
	// the time.
	case now-p.slow.since > askSoon && now-p.slow.asked > min(askSeldom, (now-p.slow.since)/2):
		// a mailbox that was closed says what it got
		if err := e.mayPost(p); err != nil && (p.qp == nil || !errors.Is(err, rdma.ErrNoBox)) {
			e.drop(p, err)
			return
		}
		p.slow.asked = realtime.Now()
	}
}
