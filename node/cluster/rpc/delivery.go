package rpc

import (
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// How long a peer waits before it repeats a message that a full mailbox refused: twice as long each
// time. The first pause is the time that a few requests take.
const (
	firstPause = 10 * time.Microsecond
	mostPause  = time.Millisecond
)

// delivery is a message on its way to a mailbox.
type delivery struct {
	// The batch with the message, which the delivery owns, and its SEND. nil: nothing was sent. A
	// repetition has a batch of its own, so there is one in flight at most.
	batch *rdma.Batch
	op    *rdma.Op
	// When it is given up, on the worker's clock.
	until time.Duration
	// When it is repeated, since it was refused; 0: it is in flight. While a request has such a
	// time it is certain that the handler does not have it.
	again time.Duration
	// The last pause before a repetition.
	pause time.Duration

	// The message is an answer: it may be sent twice.
	answer bool
}

// send posts a message with a header, a body and spans. On an error nothing was sent. The batch has
// a copy of the body: the caller may use its memory again at once.
func (d *delivery) send(ep rdma.Endpoint, step rdma.Step, to rdma.BoxAddr, h header, body []byte,
	spans []rdma.Span) error {
	b := ep.Batch()
	head := b.Alloc(headerBytes + len(body))
	h.put(head)
	copy(head[headerBytes:], body)
	op := b.Send(to, head, spans...)
	if err := ep.Post(b.As(step)); err != nil {
		b.Release()
		return err
	}
	d.batch, d.op = b, op
	return nil
}

// step advances the delivery, and reports whether it is over. err says why the message was not
// delivered, or may not have been.
//
// No refused message is repeated behind until, so a caller that has given a call up knows that no
// new SEND of it begins.
func (d *delivery) step(ep rdma.Endpoint, now time.Duration) (over bool, err error) {
	if d.again == 0 {
		if !d.batch.Finished() {
			return false, nil
		}
		// A full mailbox delivered nothing, so the message may be repeated. A new view may end a
		// message that was delivered. Only answers are repeated then: an answer that arrives twice
		// is dropped.
		if !errors.Is(d.op.Err, rdma.ErrBoxFull) && !(d.answer && errors.Is(d.op.Err, rdma.ErrStale)) {
			return true, d.op.Err
		}
		d.pause = min(max(2*d.pause, firstPause), mostPause)
		d.again = now + d.pause
	}
	switch {
	case now >= d.until:
		return true, fmt.Errorf("given up: %w: %w", rdma.ErrTimeout, d.op.Err)
	case now >= d.again:
		return d.resend(ep)
	}
	return false, nil
}

// resend posts a copy of a message that was refused. The copy gets a batch of its own: the old one
// still belongs to the completed verb. Its spans are gathered anew.
func (d *delivery) resend(ep rdma.Endpoint) (over bool, err error) {
	b := ep.Batch()
	head := b.Alloc(len(d.op.Buf))
	copy(head, d.op.Buf)
	op := b.Send(rdma.BoxAddr(d.op.Addr), head, d.op.Spans...)
	if err := ep.Post(b.As(d.batch.Step())); err != nil {
		b.Release()
		return true, err
	}
	d.batch.Release()
	d.batch, d.op, d.again = b, op, 0
	return false, nil
}

// undelivered reports whether a delivery that failed with err is certain to have delivered nothing.
// It is also certain if a refused message could not be posted again.
func (d *delivery) undelivered(err error) bool {
	return d.again > 0 || errors.Is(err, rdma.ErrNoBox) || errors.Is(err, rdma.ErrMessageSize) ||
		errors.Is(err, rdma.ErrNoEffect)
}

// wake returns the earlier of a time and the one at which the delivery has to be advanced.
func (d *delivery) wake(until time.Duration) time.Duration {
	if d.again > 0 {
		until = min(until, d.again)
	}
	return min(until, d.until)
}

// release frees the message's memory. A message in flight may still arrive.
func (d *delivery) release() {
	if d.batch != nil {
		d.batch.Release()
	}
	*d = delivery{}
}
