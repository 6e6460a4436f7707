package ibverbs

import (
	"errors"
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/farkv/farkv/node/rdma"
)

// A batch goes to the device in three steps. Post cuts its ops into work requests, which wait in
// their peer. pump makes groups of what may go now, in the order in which it waits, and moves it
// from waiting into the ring. One call hands all groups to the device. Whatever has no room, or
// waits for something, goes with a later pump: progress calls it when completions have made room.
//
// Order is kept for each peer, and between peers only where it says so: a message or an entry waits
// for verbs to its node (flight.after), a fence for entries (flight.entry).

// Post hands the batch to the device: in one call, with one doorbell a node. What a queue pair has
// no room for follows when it has.
//
// It may wait, for a node that is to connect, transport.DeadAfter for each. The error wraps
// rdma.ErrClosed; then nothing was posted. What fails later is in the ops.
func (e *Endpoint) Post(b *rdma.Batch) error {
	if err := e.Usable(); err != nil {
		return fmt.Errorf("post %d verbs: %w", b.Len(), err)
	}
	if e.dropped {
		e.dropped = false
		e.progress(0) // the queue has room for what is in flight, and as much again
	}
	// From here on the batch is in flight: each op completes once, be it here.
	e.Posted(b)
	b.Track()
	var seen [4]uint64 // nodes, of which a pool has 256 at most
	for i := range b.Len() {
		op := b.Op(i)
		node := op.Addr.Node()
		if node >= len(e.peers) {
			op.Fail(fmt.Errorf("pool has %d nodes: %w", len(e.peers), rdma.ErrAccess))
			b.Complete(i)
			continue
		}
		if op.Verb == rdma.Send {
			e.send(b, i, op)
			continue
		}
		if op.Verb == rdma.Append {
			e.append(b, i, op)
			continue
		}
		p := &e.peers[node]
		if bit := uint64(1) << (node & 63); seen[node>>6]&bit == 0 {
			seen[node>>6] |= bit
			e.check(p) // what waits or flies there is not this batch's yet
		}
		e.enqueue(p, b, i, op)
	}
	e.pump()
	return nil
}

// enqueue has an op wait, in as many parts as it takes. Parts are of mostPart bytes, the last one
// shorter. An op without bytes has one part, of none. The result counts when the last part is over,
// which is over last.
func (e *Endpoint) enqueue(p *peer, b *rdma.Batch, i int, op *rdma.Op) {
	n := op.Len()
	f := flight{batch: b, op: int32(i), n: n, last: n <= mostPart, guess: op.Expect & op.CompareMask,
		entry: e.peers[p.node].entries}
	for f.off = 0; !f.last; f.off += mostPart {
		f.n = mostPart
		p.push(f)
		f.last = n-f.off <= 2*mostPart
	}
	f.n = n - f.off
	p.push(f)
}

// push has a work request wait.
//
// What is in front of next is empty; it is cut off when it is half of all, so that a flight is
// moved once, amortized.
func (p *peer) push(f flight) {
	if p.next >= len(p.waiting)-p.next { // so that a queue that is never empty does not grow without end
		p.waiting, p.next = p.waiting[:copy(p.waiting, p.waiting[p.next:])], 0
	}
	p.waiting = append(p.waiting, f)
	p.pushed++
}

// pump posts what waits, as far as there is room. Requests are in the rings before the device has
// them, and each group ends with one that has a completion. So a completion always finds its
// flight, and none is left without one.
//
// It connects what is to be connected first. An error there fails what waits for that node, and
// leaves the others alone.
func (e *Endpoint) pump() {
	e.bell.groups, e.bell.requests = e.bell.groups[:0], e.bell.requests[:0]
	for i := range e.peers {
		p := &e.peers[i]
		if p.next == len(p.waiting) {
			continue
		}
		if err := e.attach(p); err != nil {
			e.failWaiting(p, err)
			continue
		}
		e.fill(p)
	}
	// Behind the nodes: what a message gathers is in the same doorbell, and the message follows
	// when it has come.
	e.pumpWays()
	if len(e.bell.groups) == 0 {
		return
	}
	e.did.Posts++
	e.did.Requests += uint64(len(e.bell.requests))
	e.cq.post(e.bell.groups, e.bell.requests)
	// The device has what it took. Of a group that it took in part the rest never started.
	for i := range e.bell.groups {
		if g := &e.bell.groups[i]; g.taken < g.n {
			e.refused(g)
		}
	}
}

// pumpWays makes requests of what waits for mailboxes. In flight to all of them are no more than to
// one node: there is so much room for their completions. Ways that became busy first have room
// first. One that cannot connect fails what waits for it.
func (e *Endpoint) pumpWays() {
	room := e.fabric.o.Depth
	for _, p := range e.busy {
		room -= int(p.tail - p.head)
	}
	for _, p := range e.busy {
		if !e.failed(p) {
			continue
		}
		ready, err := e.connected(p)
		if err != nil {
			e.failWaiting(p, err)
		}
		if ready {
			room -= e.fillWay(p, room)
		}
	}
}

// refused drops a queue pair that has not taken all that was posted: what it took has no completion
// to tell of it. One that is broken takes nothing, and the node knows whether it was fenced off.
// What was taken may have been executed, so that all of it ends in rdma.ErrNodeDown unless the node
// says why.
func (e *Endpoint) refused(g *group) {
	for i := range len(e.peers) + len(e.busy) {
		p := e.active(i)
		if p.qp == nil || p.qp.handle() != g.pair {
			continue
		}
		why := fmt.Errorf("the device took %d of %d work requests: %w", g.taken, g.n, unix.Errno(g.errno))
		why = fmt.Errorf("%w: %w", rdma.ErrNodeDown, why)
		if refused := e.mayPost(p); refused != nil {
			why = refused
		}
		e.drop(p, why)
	}
}

// fill makes requests of what waits for one node. It goes on in posting order, and stops at the
// first that may not go yet: nothing passes it here, though only what has a fence has to wait.
//
// It stops for want of room in the ring, at a fence that has to wait, and at an op that is refused
// here. What it moves counts as in flight from then on, though the doorbell rings later: nothing
// looks at it in between.
func (e *Endpoint) fill(p *peer) {
	first := len(e.bell.requests)
	for p.next < len(p.waiting) && p.tail-p.head < uint32(len(p.ring)) {
		f := &p.waiting[p.next]
		op := f.batch.Op(int(f.op))
		if op.Fence && f.begins() && (e.entering(p, f.entry) || p.masked > 0 || !e.fabric.lim.fences && p.unordered()) {
			break // a masked compare and swap takes any number of plain ones, which the device's fence does not know of
		}
		// Pieces were checked when the message was: see maySend.
		if err := within(op, e.bytes); err != nil && f.piece == 0 {
			e.stray(p, err)
			break
		}
		q, err := e.request(p, f, op)
		if err != nil {
			e.stray(p, err)
			break
		}
		// request has put the stage into f: the ring's copy has it, and with it the duty to give it
		// back.
		*p.at(p.tail) = *f
		if op.Verb == rdma.MaskedCompareSwap && f.wrong == 0 {
			p.masked++
		}
		p.tail++
		*f = flight{}
		p.next++
		e.bell.requests = append(e.bell.requests, q)
	}
	e.bell.ring(p, first)
}

// ring makes a group of the requests that were made for one queue pair, behind the first so many. A
// completion says that all in front of it on the queue pair are over, so that one for the last of a
// group is enough. It is called once for each queue pair and post.
func (d *doorbell) ring(p *peer, first int) {
	n := len(d.requests) - first
	if n == 0 {
		return
	}
	d.requests[len(d.requests)-1].flags |= flagSignal
	d.groups = append(d.groups, group{pair: p.qp.handle(), key: p.key, first: uint32(first), n: uint32(n)})
}

// begins reports whether f is the first of its op's work requests. Later parts, and later tries,
// are behind the op's own fence already.
func (f *flight) begins() bool { return (f.off == 0 || f.piece == 1) && f.wrong == 0 }

// unordered reports whether a READ or an atomic is in flight, as far as the device has told: what a
// fence waits for. It goes by ripe, and not by head: what is executed is in order, whether or not
// it counts.
func (p *peer) unordered() bool {
	for seq := p.ripe; seq != p.tail; seq++ {
		if f := p.at(seq); f.batch.Op(int(f.op)).Verb != rdma.Write {
			return true
		}
	}
	return false
}

// within refuses here what the other device would refuse, too: an op in parts would have landed in
// part, and some devices take no misaligned atomic. READs and WRITEs may be of no bytes, at the
// very end of the memory, too.
func within(op *rdma.Op, size uint64) error {
	off, n := op.Addr.Offset(), uint64(op.Len())
	switch {
	case op.Verb < rdma.Read || op.Verb > rdma.FetchAdd:
		return fmt.Errorf("verb %d: %w", op.Verb, rdma.ErrAccess)
	case op.Verb.Atomic() && off%8 != 0:
		return fmt.Errorf("misaligned atomic: %w", rdma.ErrAccess)
	case off > size || n > size-off:
		return fmt.Errorf("the node has %d bytes: %w", size, rdma.ErrAccess)
	}
	return nil
}

// stray takes the connection down for good at the op that waits first, as a device would: what is
// in front of it goes on, it and all behind it fail. An error for want of memory fails the same
// ops, but leaves the connection usable.
func (e *Endpoint) stray(p *peer, err error) {
	e.cutOff(p, err)
	p.lost = fmt.Errorf("connection to node %d is down since %w", p.node, err)
	if !errors.Is(err, rdma.ErrAccess) { // no memory to register: it may find some later
		p.lost = nil
	}
	e.failWaiting(p, fmt.Errorf("behind a verb that failed: %w", err))
}

// cutOff fails the op that waits first. Of one in parts some may be in flight: then the last of
// those ends it, since the batch and the bytes belong to them until then.
//
// The last part in flight is found from the tail; parts of other ops may be in between. Those that
// waited are dropped without a word: the op has its error.
func (e *Endpoint) cutOff(p *peer, err error) {
	f := &p.waiting[p.next]
	for seq := p.tail; f.off > 0 && seq != p.head; {
		seq--
		if g := p.at(seq); g.batch == f.batch && g.op == f.op {
			f.batch.Op(int(f.op)).Fail(err)
			g.last = true
			for over := false; !over; p.next++ {
				over, p.waiting[p.next] = p.waiting[p.next].last, flight{}
			}
			return
		}
	}
	e.fail(f, err)
	p.next++
}

// request makes the work request of f, which is about to have the ring's place at the tail. The
// bytes of a WRITE or SEND that are in no registered memory are copied now. Those of a READ are
// copied out when it is taken: see take.
//
// The id is what landed takes apart. The error wraps rdma.ErrFull: the device takes no memory for a
// stage. Then f is as it was.
func (e *Endpoint) request(p *peer, f *flight, op *rdma.Op) (q request, err error) {
	q = request{
		remote: p.base + op.Addr.Offset() + uint64(f.off), n: uint32(f.n), op: uint8(op.Verb),
		id: uint64(p.index)<<48 | uint64(p.times)<<32 | uint64(p.tail),
	}
	// A message or an entry keeps its fence by what it waits for: see fillWay.
	if op.Fence && !p.isWay() && f.begins() && e.fabric.lim.fences {
		q.flags = flagFence
	}
	if op.Verb == rdma.Append && p.appendRequest(f, &q) {
		return q, nil
	}
	// A READ of what a message gathers goes into the message's stage, behind what is there already.
	if f.piece > 0 {
		q.op, q.remote = uint8(rdma.Read), p.base+op.Spans[f.piece-1].Addr.Offset()
		q.local = uint64(uintptr(unsafe.Pointer(unsafe.SliceData(f.stage.p[f.off:]))))
		q.key, _ = f.stage.mem.keys()
		return q, nil
	}
	if op.Verb.Atomic() {
		// The place of the request in the ring: it is free, since the flight in it before is over.
		word := p.words[p.tail%uint32(len(p.ring))*8:]
		q.local = uint64(uintptr(unsafe.Pointer(unsafe.SliceData(word))))
		q.key, _ = p.wordsMem.keys()
		q.a, q.b = op.Expect, op.Value
		switch op.Verb {
		case rdma.FetchAdd:
			q.a = op.Value
		case rdma.MaskedCompareSwap:
			// The word is taken to be the guess. Swapped in are the bits of the mask, and the
			// guess's own in all others: these do not change.
			q.op, q.a, q.b = uint8(rdma.CompareSwap), f.guess, f.guess&^op.SwapMask|op.Value&op.SwapMask
		}
		return q, nil
	}
	var buf []byte
	var key uint32
	ok := f.stage.p != nil // it was gathered, or posted before
	if ok {
		buf = f.stage.p[:f.n]
		key, _ = f.stage.mem.keys()
	} else {
		buf = op.Buf[f.off : f.off+f.n]
		key, ok = e.mem.find(buf)
	}
	// A WRITE's bytes are its batch's until it completes, so that no copy is needed of those that
	// are registered.
	gives := op.Verb == rdma.Write || op.Verb == rdma.Send || op.Verb == rdma.Append
	switch {
	case gives && f.n <= e.fabric.lim.inline:
		q.flags |= flagInline
	case !ok && f.n > 0:
		if f.stage, err = e.mem.stage(f.n); err != nil {
			return q, err
		}
		if gives {
			copy(f.stage.p, buf)
		}
		buf = f.stage.p[:f.n]
		key, _ = f.stage.mem.keys()
	}
	q.local, q.key = uint64(uintptr(unsafe.Pointer(unsafe.SliceData(buf)))), key
	return q, nil
}
