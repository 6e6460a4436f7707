package rpc

import (
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// How long a peer waits before it sends again what a full mailbox refused: twice as long each time.
// The first pause is the time of a few requests.
const (
	firstPause = 10 * time.Microsecond
	mostPause  = time.Millisecond
)

// delivery is a message on its way to a mailbox.
type delivery struct {
	batch *rdma.Batch // nil: nothing was sent
	op    *rdma.Op
	until time.Duration // when it is given up, on the worker's clock
	again time.Duration // when it is sent again, since it was refused; 0: it was not
	pause time.Duration

	answer bool
}

// send posts the message of a header, a body and spans.
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

// step goes on with the delivery. It reports whether it is over: err says why the message was not,
// or may not have been, delivered.
func (d *delivery) step(ep rdma.Endpoint, now time.Duration) (over bool, err error) {
	if d.again == 0 {
		if !d.batch.Finished() {
			return false, nil
		}
		// A new view ends what is on its way. An answer that arrives twice does no harm.
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

// resend sends a copy of a message that was refused.
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

// undelivered reports whether a delivery that failed with err has delivered nothing for sure.
func (d *delivery) undelivered(err error) bool {
	return d.again > 0 || errors.Is(err, rdma.ErrNoBox) || errors.Is(err, rdma.ErrMessageSize) ||
		errors.Is(err, rdma.ErrNoEffect)
}

// wake returns the earlier of a time and the one at which the delivery wants to go on.
func (d *delivery) wake(until time.Duration) time.Duration {
	if d.again > 0 {
		until = min(until, d.again)
	}
	return min(until, d.until)
}

// release gives the message's memory back. What is in flight lands.
func (d *delivery) release() {
	if d.batch != nil {
		d.batch.Release()
	}
	*d = delivery{}
}
