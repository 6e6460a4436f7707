package tcp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/realtime"
)

// ring is a worker's, as the worker knows it: all of it is at the node. It ends with the connection
// that it was opened over.
type ring struct {
	e     *Endpoint
	o     rdma.RingOptions
	times uint64 // which connection of the link that is
}

// ringPatience bounds the wait for a node's answer about a ring.
const ringPatience = deadAfter

// Rings returns what the pool promises of rings.
func (e *Endpoint) Rings() (rdma.RingPromises, error) {
	return rdma.RingPromises{MTU: e.fabric.record.mtu(), Counts: true}, nil
}

// OpenRing opens a ring.
func (e *Endpoint) OpenRing(o rdma.RingOptions) (rdma.Ring, error) {
	r, err := e.openRing(o)
	if err != nil {
		return nil, fmt.Errorf("client %d of %s: %w", e.client.ID, e.fabric.name, err)
	}
	return r, nil
}

func (e *Endpoint) openRing(o rdma.RingOptions) (*ring, error) {
	o, err := rdma.CheckRing(o, len(e.lost))
	if err != nil {
		return nil, err
	}
	r := &ring{e: e, o: o}
	if _, err := r.ask(ringOpen, o.Buffers, nil); err != nil {
		return nil, fmt.Errorf("open %s: %w", r.Addr(), err)
	}
	e.rings = append(e.rings, r)
	return r, nil
}

// Addr returns where to append to the ring.
func (r *ring) Addr() rdma.RingAddr { return rdma.RingAt(r.o.Node, r.o.Number) }

// Post adds buffers.
func (r *ring) Post(buffers ...rdma.Span) error {
	err := rdma.ErrFull
	if len(buffers) <= r.o.Buffers {
		_, err = r.ask(ringPost, len(buffers), buffers)
	}
	if err != nil {
		return fmt.Errorf("post %d buffers to %s: %w", len(buffers), r.Addr(), err)
	}
	return nil
}

// Count returns how far the ring is.
func (r *ring) Count() (rdma.RingCount, error) {
	c, err := r.ask(ringCount, 0, nil)
	if err != nil {
		err = fmt.Errorf("count %s: %w", r.Addr(), err)
	}
	return c, err
}

// Close ends the ring. A node that does not answer ends it with the connection: Close waits until
// that is certain, for as long as ringPatience.
func (r *ring) Close() error {
	e := r.e
	if !slices.Contains(e.rings, r) {
		return nil
	}
	_, err := r.ask(ringClose, 0, nil)
	for patience := realtime.Within(ringPatience); err != nil && !errors.Is(err, rdma.ErrClosed) && !r.over(); {
		if e.fabric.closing.Load() || patience.Over() {
			return fmt.Errorf("close %s: %w", r.Addr(), err)
		}
		time.Sleep(redialMin)
	}
	e.rings = slices.DeleteFunc(e.rings, func(x *ring) bool { return x == r })
	return nil
}

// over reports whether the ring has certainly ended: the node lets another connection in when it
// has ended the last one.
func (r *ring) over() bool {
	l := r.e.fabric.links[r.o.Node].verbs
	times, _ := l.reach()
	return times != r.times || l.gone() || r.e.fabric.down(r.o.Node) != nil
}

// ask asks the node about the ring, and waits. The error wraps rdma.ErrClosed when the ring has
// ended.
func (r *ring) ask(what, n int, buffers []rdma.Span) (count rdma.RingCount, err error) {
	e, node := r.e, r.o.Node
	if what != ringClose && (e.closed || e.fabric.closing.Load()) {
		return count, rdma.ErrClosed
	}
	if err := e.fabric.down(node); err != nil {
		return count, err
	}
	l := e.fabric.links[node].verbs
	s, err := l.begin()
	if err != nil {
		return count, err
	}
	if what == ringOpen {
		r.times = l.times
	}
	if r.times != l.times {
		l.mu.Unlock()
		return count, fmt.Errorf("the connection broke with which it ended: %w", rdma.ErrClosed)
	}
	c := reuse(&e.calls)
	c.ep, c.err, c.over, c.count = e, nil, false, rdma.RingCount{}
	le, from := binary.LittleEndian, len(l.out)
	l.out = e.claim(append(l.out, make([]byte, headerBytes)...), node)
	l.out = le.AppendUint64(l.out, uint64(r.o.Number)|uint64(n)<<32)
	for _, b := range buffers {
		l.out = le.AppendUint64(l.out, uint64(b.Addr))
		l.out = le.AppendUint64(l.out, uint64(b.Len))
	}
	s.end(kindRing, what, from, c)
	if s.done() {
		l.flush()
	}
	err = e.answered(c, node, ringPatience)
	switch {
	case errors.Is(err, rdma.ErrNoRing):
		err = fmt.Errorf("it has ended: %w", rdma.ErrClosed)
	case errors.Is(err, rdma.ErrTimeout):
		err = fmt.Errorf("node %d: %w: %w", node, rdma.ErrNodeDown, err)
	case err == nil:
		count = c.count
	}
	return count, err
}

// entry sends an APPEND.
func (w *writer) entry(i int, op *rdma.Op) {
	n := len(op.Buf)
	switch {
	case w.e.client.ID == 0:
		w.open(0, 0)
		w.s.l.out = appendBreach(w.s.l.out)
	case n < 1 || n > rdma.MaxMessage:
		op.Fail(rdma.ErrMessageSize)
		w.b.Complete(i)
		return
	default:
		w.open(0, n)
		w.s.l.out = appendVerb(w.s.l.out, op, op.Addr.Offset(), 0, n)
	}
	w.frame.ops = append(w.frame.ops, i)
}
