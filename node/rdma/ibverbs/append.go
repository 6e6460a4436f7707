package ibverbs

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/farkv/farkv/node/rdma"
)

// An APPEND of a long entry looks like this on the one queue pair to its stream, in the order in
// which the device executes it:
//
//	SEND block 0, SEND block 1, ... SEND block n-1, READ of a word
//
// An APPEND completes with its READ, and only then. A flight's piece tells the two apart.

// behind is the piece of an APPEND that READs a word behind its blocks. It is less than 0, which a
// SEND's flights have, and pieces that are gathered are counted from 1.
const behind = -1

// Rings returns what the pool promises of rings, as this process's device has it: a ring is not
// connected to if its node's device has it promise something else.
func (e *Endpoint) Rings() (rdma.RingPromises, error) {
	return e.rings, nil
}

// append has an APPEND wait: a SEND for each block, and a READ. It does not wait, unless its
// stream's way has to be made room for: see way.
//
// The way depends on the length of the entry: all blocks of one entry are in one stream, whose
// places fit them. Flights of one entry are pushed together, so that nothing comes between them;
// when there is room for some of them only, the rest follows with a later doorbell.
func (e *Endpoint) append(b *rdma.Batch, i int, op *rdma.Op) {
	n := len(op.Buf)
	var p *peer
	err := rdma.ErrMessageSize
	if n > 0 && n <= rdma.MaxMessage {
		p, err = e.way(target{op.Addr, true, e.rings.Stream(n)})
	}
	if err == nil {
		// What waits or flies there fails before this entry is behind it: a connection that broke
		// takes no entry with it that was not posted yet.
		e.check(p)
		err = p.lost
	}
	if err != nil {
		op.Fail(err)
		b.Complete(i)
		return
	}
	near := &e.peers[p.node]
	// The number is drawn though the entry may fail later: all that waits for entries by number
	// looks at those that are not over.
	near.entries++
	f := flight{batch: b, op: int32(i), after: near.pushed, entry: near.entries}
	for ; f.off < n; f.off += f.n {
		f.n = min(n-f.off, e.rings.MTU)
		p.push(f)
	}
	// Only now is there a flight that is the op's last: the op is not complete while its blocks
	// fly.
	f.piece, f.n, f.last = behind, wordBytes, true
	p.push(f)
	if !p.busy {
		p.busy = true
		e.busy = append(e.busy, p)
	}
}

// wordBytes are those of a word that is read, or that was before an atomic.
const wordBytes = 8

// entering reports whether one of the first so many entries for a node is not over. Entries go over
// other queue pairs than verbs to the node's memory, and than entries of other streams. The device
// keeps no order between queue pairs, so that an op with a fence waits here. Entries of one way are
// in the order of their numbers, so that the first one that is not over is the least. Numbers wrap,
// as those of flights do.
func (w *paths) entering(near *peer, entries uint32) bool {
	for _, p := range w.busy {
		if p.node != near.node || !p.to.ring {
			continue
		}
		f := p.first()
		if f != nil && int32(entries-f.entry) >= 0 {
			return true
		}
	}
	return false
}

// first returns the first work request that is not over; nil: all are. Flights that are ripe are
// not over: they were executed, and may yet turn out to be of a time at which the node no longer
// served.
func (p *peer) first() *flight {
	switch {
	case p.head != p.tail:
		return p.at(p.head)
	case p.next < len(p.waiting):
		return &p.waiting[p.next]
	}
	return nil
}

// appendRequest makes of q the READ behind an APPEND's blocks, or has it be the SEND of one, and
// reports whether that is all. What the READ brings is not looked at. Any word of the node's memory
// will do; the first one always exists. It lands in the place that the ring's tail has among the
// peer's words, which no other request in flight has.
func (p *peer) appendRequest(f *flight, q *request) bool {
	if f.piece != behind {
		q.op = uint8(rdma.Send)
		return false
	}
	word := p.words[p.tail%uint32(len(p.ring))*wordBytes:]
	q.op, q.remote = uint8(rdma.Read), p.base
	q.local = uint64(uintptr(unsafe.Pointer(unsafe.SliceData(word))))
	q.key, _ = p.wordsMem.keys()
	return true
}

// join connects the worker to a stream of a ring. The queue pair is used for one stream. Its READ
// at the end of an entry goes the same way as the blocks, and is executed behind them: what it
// relies on is the order within one queue pair.
//
// It waits for the node's answer, for as long as transport.DeadAfter. The node makes its end and
// gives the stream buffers before it answers. A crash, or an answer that is lost, leaves an end
// there on which nothing comes: the next join of the same worker replaces it, and the end of the
// process's connection destroys it.
func (e *Endpoint) join(p *peer) error {
	// It is read before the node is asked: if the connection breaks in between, check finds another
	// number, and drops the queue pair, of which the other end is gone.
	connection, err := e.fabric.Reach(p.node)
	if err != nil {
		return err
	}
	if err := p.makeWords(e.fabric.a); err != nil {
		return err
	}
	qp, err := e.cq.pair(len(p.ring), accessNone)
	if err != nil {
		return fmt.Errorf("connect to %s: %w", p.to, err)
	}
	// It stands even if the rest fails: the node may have made its end. endWay has it ended then.
	p.connection = connection
	answer, err := e.AttachRing(rdma.RingAddr(p.to.addr), p.to.stream, qp.card().bytes())
	var remote card
	if err == nil {
		remote, err = parseCard(answer)
	}
	if err == nil {
		err = qp.connect(remote)
	}
	if err != nil {
		return errors.Join(err, qp.close())
	}
	e.did.Connects++
	p.qp, p.base, p.key, p.epoch = qp, remote.base, remote.key, e.Epoch()
	// The node counts blocks for each queue pair, from 0 as well: see mayAppend.
	p.sent, p.slow = 0, slowing{}
	return nil
}

// mayAppend asks the node why entries are not acknowledged. When their ring has ended, and the node
// has counted no block beyond those that were acknowledged, no other one has landed.
//
// The two counts are over the same queue pair, and the node's is final once its ring has ended.
// sent less those in flight is what was acknowledged. If the node counted more, a block has landed
// whose acknowledgment was lost. -1 means that the node has no such count, and equals none.
func (e *Endpoint) mayAppend(p *peer) error {
	landed, err := e.MayAppend(rdma.RingAddr(p.to.addr), p.to.stream)
	if errors.Is(err, rdma.ErrNoRing) {
		flying := int64(0)
		for seq := p.ripe; seq != p.tail; seq++ {
			if p.at(seq).piece != behind {
				flying++
			}
		}
		p.known = landed == int64(p.sent)-flying
	}
	return err
}
