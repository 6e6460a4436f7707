package control

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/realtime"
	"github.com/farkv/farkv/node/rdma/transport"
)

// ring is a worker's, as the worker knows it: all of it is at the node. It ends with the connection
// that it was opened over.
type ring struct {
	w     *Worker
	o     rdma.RingOptions
	times uint64 // which connection of the link that is
}

// ringPatience bounds the wait for a node's answer about a ring.
const ringPatience = transport.DeadAfter

// Rings returns what the pool promises of rings.
func (w *Worker) Rings() (rdma.RingPromises, error) {
	return rdma.RingPromises{MTU: w.pool.record.BlockBytes(), Counts: true}, nil
}

// OpenRing opens a ring.
func (w *Worker) OpenRing(o rdma.RingOptions) (rdma.Ring, error) {
	r, err := w.openRing(o)
	if err != nil {
		return nil, fmt.Errorf("client %d of %s: %w", w.Identity.ID, w.pool.name, err)
	}
	return r, nil
}

func (w *Worker) openRing(o rdma.RingOptions) (*ring, error) {
	o, err := rdma.CheckRing(o, len(w.Lost))
	if err != nil {
		return nil, err
	}
	r := &ring{w: w, o: o}
	if _, err := r.ask(RingOpen, o.Buffers, nil); err != nil {
		return nil, fmt.Errorf("open %s: %w", r.Addr(), err)
	}
	w.rings = append(w.rings, r)
	return r, nil
}

// Addr returns where to append to the ring.
func (r *ring) Addr() rdma.RingAddr { return rdma.RingAt(r.o.Node, r.o.Number) }

// Post adds buffers. After an error that wraps rdma.ErrNodeDown the buffers may have been added.
func (r *ring) Post(buffers ...rdma.Span) error {
	err := rdma.ErrFull
	if len(buffers) <= r.o.Buffers {
		_, err = r.ask(RingPost, len(buffers), buffers)
	}
	if err != nil {
		return fmt.Errorf("post %d buffers to %s: %w", len(buffers), r.Addr(), err)
	}
	return nil
}

// Count returns how far the ring is.
func (r *ring) Count() (rdma.RingCount, error) {
	c, err := r.ask(RingCount, 0, nil)
	if err != nil {
		err = fmt.Errorf("count %s: %w", r.Addr(), err)
	}
	return c, err
}

// Close ends the ring. A node that does not answer ends it with the connection: Close waits until
// that is certain, for as long as ringPatience.
func (r *ring) Close() error {
	w := r.w
	if !slices.Contains(w.rings, r) {
		return nil
	}
	_, err := r.ask(RingClose, 0, nil)
	for patience := realtime.Within(ringPatience); err != nil && !errors.Is(err, rdma.ErrClosed) && !r.over(); {
		if w.pool.closing.Load() || patience.Over() {
			return fmt.Errorf("close %s: %w", r.Addr(), err)
		}
		time.Sleep(transport.RedialMin)
	}
	w.rings = slices.DeleteFunc(w.rings, func(x *ring) bool { return x == r })
	return nil
}

// over reports whether the ring has certainly ended: the node lets another connection in when it
// has ended the last one.
func (r *ring) over() bool {
	l := r.w.pool.links[r.o.Node].verbs
	times, _ := l.Reach()
	return times != r.times || l.Gone() || r.w.pool.Down(r.o.Node) != nil
}

// ask asks the node about the ring, and waits. The error wraps rdma.ErrClosed when the ring has
// ended.
func (r *ring) ask(what, n int, buffers []rdma.Span) (count rdma.RingCount, err error) {
	w, node := r.w, r.o.Node
	if what != RingClose && (w.closed || w.pool.closing.Load()) {
		return count, rdma.ErrClosed
	}
	if err := w.pool.Down(node); err != nil {
		return count, err
	}
	l := w.pool.links[node].verbs
	s, err := l.Begin()
	if err != nil {
		return count, err
	}
	if what == RingOpen {
		r.times = s.Times()
	}
	// A ring of an earlier connection has ended there, and a later one of the same number may be
	// another worker's.
	if r.times != s.Times() {
		s.Cancel()
		return count, fmt.Errorf("the connection broke with which it ended: %w", rdma.ErrClosed)
	}
	c := w.newCall()
	le, out := binary.LittleEndian, s.Out()
	from := len(*out)
	*out = w.Claim(append(*out, make([]byte, transport.HeaderBytes)...), node)
	*out = le.AppendUint64(*out, uint64(r.o.Number)|uint64(n)<<32)
	for _, b := range buffers {
		*out = le.AppendUint64(*out, uint64(b.Addr))
		*out = le.AppendUint64(*out, uint64(b.Len))
	}
	s.End(transport.KindRing, what, from, c)
	if s.Done() {
		l.Flush()
	}
	err = w.answered(c, node, ringPatience)
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
