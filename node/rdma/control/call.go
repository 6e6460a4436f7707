package control

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/realtime"
	"github.com/farkv/farkv/node/rdma/transport"
)

// Questions of a worker over the connection for verbs that are no verbs: calls, and frames about
// devices, mailboxes and rings. The worker appends the frame to the link, and waits in answered,
// where it reads the connection itself, unless another worker does. The goroutine that reads calls
// Land with the answer; the one that breaks the link calls Lose. Either ends the question, once.
// Nothing is asked twice.

// called is a two-sided call, or an attach, listen, ring or meet frame, in flight. One that is not
// answered in time is left to itself. Until over is set it belongs to the link, and then to its
// worker, which may use it again. One that the worker does not wait for any more stays the link's,
// and is not used again: its answer may still come.
type called struct {
	// the worker's, which is roused when over was set
	waits  *transport.Waiter
	r      rdma.Request
	answer []byte // of an attach frame
	count  rdma.RingCount
	err    error
	// over is set behind all that the worker reads once it finds it set.
	over atomic.Bool
}

// Land takes the answer, of whichever kind the question was. p is the link's, and is not kept. An
// answer with another status than OK may have a text, padded with blanks, which becomes a part of
// the error. Land returns an error only before c has ended: then the link breaks, and calls Lose.
func (c *called) Land(h transport.Header, p []byte) error {
	if h.Kind != transport.KindCall && h.Kind != transport.KindAttach && h.Kind != transport.KindListen &&
		h.Kind != transport.KindRing &&
		h.Kind != transport.KindMeet {
		return fmt.Errorf("frame of kind %d answers a call: %w", h.Kind, transport.ErrProtocol)
	}
	if h.Status != transport.StatusOK && len(p) == 0 {
		c.end(h.Status.Err())
		return nil
	}
	if h.Status != transport.StatusOK {
		c.end(fmt.Errorf("%s: %w", strings.TrimRight(string(p), " "), h.Status.Err()))
		return nil
	}
	switch h.Kind {
	case transport.KindListen, transport.KindMeet:
		c.end(nil)
		return nil
	case transport.KindRing:
		switch len(p) {
		case 0:
		case CountBytes:
			c.count.Begun, c.count.Settled = binary.LittleEndian.Uint64(p), binary.LittleEndian.Uint64(p[8:])
			for i := range c.count.Open {
				c.count.Open[i] = binary.LittleEndian.Uint64(p[16+8*i:])
			}
		default:
			return fmt.Errorf("%d bytes answer about a ring: %w", len(p), transport.ErrProtocol)
		}
		c.end(nil)
		return nil
	case transport.KindAttach:
		if h.Items > len(p) || len(p) > transport.Pad(MaxOffer) {
			return fmt.Errorf("%d bytes answer an attach: %w", len(p), transport.ErrProtocol)
		}
		c.answer = append([]byte(nil), p[:h.Items]...)
		c.end(nil)
		return nil
	}
	if len(p) != 6*8 {
		return fmt.Errorf("%d bytes answer a call: %w", len(p), transport.ErrProtocol)
	}
	for i := range c.r.Ret {
		c.r.Ret[i] = binary.LittleEndian.Uint64(p[8*i:])
	}
	c.end(nil)
	return nil
}

// Lose ends the question without an answer: the node may have executed it.
func (c *called) Lose(err error) { c.end(err) }

// end gives c to its worker. The link does not touch it behind that.
func (c *called) end(err error) {
	c.err = err
	w := c.waits // behind over the worker may use c for another call
	c.over.Store(true)
	w.Notify()
}

// newCall returns a call that is about to be sent. It is the worker's until it was handed to the
// link.
func (w *Worker) newCall() *called {
	c := Reuse(&w.calls)
	c.waits, c.answer, c.err, c.count = w.Waits, nil, nil, rdma.RingCount{}
	c.over.Store(false)
	return c
}

// Call runs one of the node's procedures. An error that wraps rdma.ErrTimeout or rdma.ErrNodeDown
// leaves open whether the procedure ran. It is not called again. within is measured by
// realtime.Patience: time for which this process stands still hardly counts, and the wait may last
// twice as long. r.Ret is written only when Call returns nil.
func (w *Worker) Call(node int, r *rdma.Request, within time.Duration) error {
	if err := w.call(node, r, within); err != nil {
		return &rdma.CallError{Node: node, Err: err}
	}
	return nil
}

// call refuses what is certain to fail before anything is sent: of a closed worker, to a node that
// the pool does not have, or at which the worker strayed, or that was expelled. The link gets a
// copy of r, since a call that is late outlives it.
func (w *Worker) call(node int, r *rdma.Request, within time.Duration) error {
	switch {
	case w.closed || w.pool.closing.Load():
		return fmt.Errorf("endpoint of client %d: %w", w.Identity.ID, rdma.ErrClosed)
	case uint(node) >= uint(len(w.Lost)):
		return fmt.Errorf("pool has %d nodes: %w", len(w.Lost), rdma.ErrAccess)
	case w.Lost[node] != nil:
		return w.Lost[node]
	}
	w.Called(node)
	if err := w.pool.Down(node); err != nil {
		return err
	}
	r.Client = w.Identity.ID
	c := w.newCall()
	c.r = *r
	l := w.pool.links[node].verbs
	err := l.Send(transport.KindCall, 1, c, func(out []byte) []byte {
		return transport.AppendCall(w.Claim(out,
			node), r)
	})
	if err == nil {
		err = w.answered(c, node, within)
	}
	if err == nil {
		r.Ret = c.r.Ret
	}
	return err
}

// answeredSoon is answered where a node that is up answers within that time: without an answer the
// error wraps rdma.ErrNodeDown, too.
func (w *Worker) answeredSoon(c *called, node int, within time.Duration) error {
	err := w.answered(c, node, within)
	if errors.Is(err, rdma.ErrTimeout) {
		return fmt.Errorf("node %d: %w: %w", node, rdma.ErrNodeDown, err)
	}
	return err
}

// answered waits until c has ended, and returns its error. After rdma.ErrTimeout c is the link's,
// and nothing of it may be read. Until then other workers' answers are read here, too. A refusal is
// worded with the epoch that the frame claimed: a worker that waits does not join another.
func (w *Worker) answered(c *called, node int, within time.Duration) error {
	patience := realtime.Within(within)
	for w.Waits.Collect(); !c.over.Load(); w.Waits.Collect() { // first: word that comes behind over is not overlooked
		if patience.Over() {
			w.LeaveToOthers()
			return fmt.Errorf("no answer for %v: %w", within, rdma.ErrTimeout)
		}
		w.pool.links[node].verbs.Await(w.Waits, patience.Until())
	}
	err := c.err
	w.calls = append(w.calls, c)
	if errors.Is(err, rdma.ErrStale) || errors.Is(err, rdma.ErrRevoked) {
		return Refusal(transport.StatusOf(err), node, w.Identity.ID, w.joined)
	}
	return err
}
