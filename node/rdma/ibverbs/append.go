package ibverbs

import (
	"errors"
	"fmt"
	"unsafe"

	"github.com/farkv/farkv/node/rdma"
)

// behind is the piece of an APPEND that READs a word behind its blocks.
const behind = -1

// Rings returns what the pool promises of rings, as this process's device has it: a ring of a node
// of which the device has a shorter MTU is not connected to.
func (e *Endpoint) Rings() (rdma.RingPromises, error) {
	return e.rings, nil
}

// append has an APPEND wait: a SEND for each block, and a READ.
func (e *Endpoint) append(b *rdma.Batch, i int, op *rdma.Op) {
	n := len(op.Buf)
	var p *peer
	err := rdma.ErrMessageSize
	if n > 0 && n <= rdma.MaxMessage {
		p, err = e.way(target{op.Addr, true, e.rings.Stream(n)})
	}
	if err == nil {
		e.check(p)
		err = p.lost
	}
	if err != nil {
		op.Fail(err)
		b.Complete(i)
		return
	}
	near := &e.peers[p.node]
	near.entries++
	f := flight{batch: b, op: int32(i), after: near.pushed, entry: near.entries}
	for ; f.off < n; f.off += f.n {
		f.n = min(n-f.off, e.rings.MTU)
		p.push(f)
	}
	f.piece, f.n, f.last = behind, wordBytes, true
	p.push(f)
	if !p.busy {
		p.busy = true
		e.busy = append(e.busy, p)
	}
}

// wordBytes are those of a word that is read, or that was before an atomic.
const wordBytes = 8

// entering reports whether one of the first so many entries for a node is not over.
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

// first returns the first work request that is not over; nil: all are.
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
// reports whether that is all.
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
func (e *Endpoint) join(p *peer) error {
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
	p.qp, p.base, p.key, p.connection, p.epoch = qp, remote.base, remote.key, connection, e.Epoch()
	p.sent, p.slow = 0, slowing{}
	return nil
}

// mayAppend asks the node why entries are not acknowledged. When their ring has ended, and the node
// has counted no block beyond those that were acknowledged, no other one has landed.
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
