package rdmatest_test

import (
	"errors"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/rdmatest"
	"github.com/farkv/farkv/node/rdma/sim"
)

// Listen opens a mailbox that breaks the worker's rule.
func (s *saboteur) Listen(o rdma.BoxOptions) (rdma.Mailbox, error) {
	if s.listen != nil {
		return s.listen(s.Endpoint, o)
	}
	return rdma.Listen(s.Endpoint, o)
}

// lameBox is a mailbox that breaks a rule. Its functions are nil where it behaves.
type lameBox struct {
	rdma.Mailbox
	next  func(m rdma.Mailbox) *rdma.Message
	await func(m rdma.Mailbox, within time.Duration) error
}

func (m *lameBox) Next() *rdma.Message {
	if m.next != nil {
		return m.next(m.Mailbox)
	}
	return m.Mailbox.Next()
}

func (m *lameBox) Await(within time.Duration) error {
	if m.await != nil {
		return m.await(m.Mailbox, within)
	}
	return m.Mailbox.Await(within)
}

// boxes opens mailboxes that break a rule.
func boxes(b lameBox) saboteur {
	return saboteur{listen: func(ep rdma.Endpoint, o rdma.BoxOptions) (rdma.Mailbox, error) {
		m, err := rdma.Listen(ep, o)
		b := b
		b.Mailbox = m
		return &b, err
	}}
}

// sends changes the SENDs that are posted.
func sends(f func(op *rdma.Op)) saboteur {
	return saboteur{before: func(_ *saboteur, b *rdma.Batch) { each(b, f, rdma.Send) }}
}

// hides has SENDs and APPENDs that ended in err say that they were delivered.
func hides(err error) saboteur {
	return saboteur{answer: func(_ *saboteur, b *rdma.Batch) {
		each(b, func(op *rdma.Op) {
			if errors.Is(op.Err, err) {
				op.Err = nil
			}
		}, rdma.Send, rdma.Append)
	}}
}

func messageRules() []rule {
	dropped := 0
	var early *rdma.Message
	return []rule{
		{broken: "what was acknowledged arrives", seen: []string{"Messages", "MessageSizes"},
			worker: sends(func(op *rdma.Op) {
				if dropped++; dropped%5 == 0 {
					op.Verb, op.Addr, op.Buf = rdma.FetchAdd, rdma.At(1, 512), nil
				}
			})},
		{broken: "messages arrive in order", seen: []string{"Messages"},
			worker: boxes(lameBox{next: func(m rdma.Mailbox) *rdma.Message {
				if early == nil {
					early = m.Next()
				}
				if late := m.Next(); late != nil {
					return late
				}
				msg := early
				early = nil
				return msg
			}})},
		{broken: "messages are whole", seen: []string{"Messages", "MessageSizes"}, worker: sends(func(op *rdma.Op) {
			if len(op.Buf) > 40 {
				op.Buf = op.Buf[:40]
			}
		})},
		{broken: "long messages are refused", seen: []string{"MessageSizes"}, worker: hides(rdma.ErrMessageSize)},
		{broken: "messages gather", seen: []string{"Gather"}, worker: sends(func(op *rdma.Op) { op.Spans = nil })},
		{broken: "a mailbox has as many buffers as it says", seen: []string{"FullMailbox"},
			worker: saboteur{listen: func(ep rdma.Endpoint, o rdma.BoxOptions) (rdma.Mailbox, error) {
				o.Slots *= 4
				return rdma.Listen(ep, o)
			}}},
		{broken: "a released buffer takes a message", seen: []string{"FullMailbox"},
			worker: saboteur{listen: func(ep rdma.Endpoint, o rdma.BoxOptions) (rdma.Mailbox, error) {
				m, err := rdma.Listen(ep, o)
				return &forgetfulBox{m}, err
			}}},
		{broken: "a message to an absent mailbox is refused", seen: []string{"NoMailbox"},
			worker: hides(rdma.ErrNoBox)},
		{broken: "Await has a limit", seen: []string{"Await"},
			worker: boxes(lameBox{await: func(m rdma.Mailbox, _ time.Duration) error {
				return m.Await(rdma.Forever)
			}})},
		{broken: "nodes die with what comes by way of them", seen: []string{"DeadReceiver"},
			harness: func(h *rdmatest.Harness) { h.KillNode = func(testing.TB, rdma.Fabric, int) {} }},
		{broken: "messages of an epoch that is over are refused", seen: []string{"FencedMessages"},
			worker: saboteur{before: func(s *saboteur, _ *rdma.Batch) { s.Endpoint.Join() }}},
		{broken: "Revoke fences senders off", seen: []string{"FencedMessages"}, fabric: func(s *sim.Sim) rdma.Fabric {
			a := unchanged(s)
			a.revoke = func(rdma.ClientID) error { return nil }
			return a
		}},
		{broken: "messages allocate nothing", seen: []string{"MessageAllocations"},
			worker: boxes(lameBox{next: func(m rdma.Mailbox) *rdma.Message {
				sink = make([]byte, 64)
				return m.Next()
			}})},
	}
}

// forgetfulBox forgets what was released.
type forgetfulBox struct{ rdma.Mailbox }

func (m *forgetfulBox) Release(*rdma.Message) {}
