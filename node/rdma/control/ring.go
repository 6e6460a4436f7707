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

// Rings as their workers know them. All of a ring is at its node: the queue of buffers, where the
// next block lands, and the counts (memnode's nodeRing). The worker opens it, posts buffers, asks
// how far it is, and closes it, each by a ring frame over the connection for verbs, in the order of
// its verbs there. Senders APPEND by way of their own connections to that node. The worker hears
// nothing of an entry: it finds it in the node's memory, or counts. A node that has no buffer left
// refuses the sender with rdma.ErrRingDry.

// ring is a worker's, as the worker knows it: all of it is at the node. It ends with the connection
// that it was opened over, and is not opened anew: where entries landed is what the count of
// buffers says, and that is gone. Its options were checked: the node is one with memory, and
// Buffers lies between 1 and rdma.MaxRingBuffers.
type ring struct {
	w     *Worker
	o     rdma.RingOptions
	times uint64 // which connection of the link that is
}

// ringPatience bounds the wait for a node's answer about a ring. A node that is silent for so long
// has its connection broken by transport, which ends the ring.
const ringPatience = transport.DeadAfter

// Rings returns what the pool promises of rings where entries land by way of its connections: in
// one stream, counted by the node. A fabric with devices has promises of its own.
func (w *Worker) Rings() (rdma.RingPromises, error) {
	return rdma.RingPromises{MTU: w.pool.record.BlockBytes(), Counts: true}, nil
}

// OpenRing opens a ring. The error wraps rdma.ErrExists when the node has one of that number,
// rdma.ErrFull when it has as many as it takes. When the answer does not come the ring may be open:
// then it keeps its number from others until the connection ends.
func (w *Worker) OpenRing(o rdma.RingOptions) (rdma.Ring, error) {
	r, err := w.openRing(o)
	if err != nil {
		return nil, fmt.Errorf("client %d of %s: %w", w.Identity.ID, w.pool.name, err)
	}
	return r, nil
}

// openRing keeps the ring in w.rings, so that Worker.Close ends it.
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

// Post adds buffers, all or none. They are the ring's until they are settled. After an error that
// wraps rdma.ErrNodeDown the buffers may have been added. More than the ring has places for are
// refused here, with rdma.ErrFull, so that the frame is never longer than a node takes.
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

// Count returns how far the ring is, as the node had it when it executed the frame. It costs a
// round trip, in the order of the worker's verbs to the node.
func (r *ring) Count() (rdma.RingCount, error) {
	c, err := r.ask(RingCount, 0, nil)
	if err != nil {
		err = fmt.Errorf("count %s: %w", r.Addr(), err)
	}
	return c, err
}

// Close ends the ring. A node that does not answer ends it with the connection: Close waits until
// that is certain, for as long as ringPatience. After an error it may be called again: entries may
// still land until then, and the ring stays among the worker's.
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
// has ended the last one. A node of which the process is gone, or that was expelled, lands nothing
// any more, either.
func (r *ring) over() bool {
	l := r.w.pool.links[r.o.Node].verbs
	times, _ := l.Reach()
	return times != r.times || l.Gone() || r.w.pool.Down(r.o.Node) != nil
}

// ask asks the node about the ring, and waits for as long as ringPatience. The error wraps
// rdma.ErrClosed when the ring has ended, and rdma.ErrNodeDown when there is no answer: then the
// node may have done it. n is the number of places or of buffers. A worker that is closed may still
// end its rings.
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
	// Under the link's lock, so that the frame goes over the very connection that times names.
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
	err = w.answeredSoon(c, node, ringPatience)
	switch {
	case errors.Is(err, rdma.ErrNoRing):
		err = fmt.Errorf("it has ended: %w", rdma.ErrClosed)
	case err == nil:
		count = c.count
	}
	return count, err
}
