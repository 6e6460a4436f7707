package rpc

import (
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// Errors that callers branch on.
var (
	// ErrUncertain is wrapped when a request may have run, or may still run.
	ErrUncertain = errors.New("the request may have run")
	// ErrWindow is wrapped when a peer has as many calls as Options.Window.
	ErrWindow = errors.New("too many calls are not released")
)

// Options parameterize a peer. Zero values mean defaults.
type Options struct {
	// Box describes the peer's mailbox. The default is a client's, at all nodes. 16 bytes of each
	// message are the header.
	Box rdma.BoxOptions
	// Window bounds the calls that are not released, so that the mailbox has room for their
	// answers, beside late answers and requests. The default, and the maximum, is half of the
	// mailbox's buffers.
	Window int
}

// answerPatience bounds how long an answer is repeated: to a mailbox that is full, and until the
// worker has joined a new view. It is longer than a live program is stopped on a busy machine,
// since a peer that misses an answer waits until its call is given up.
const answerPatience = time.Second

// Stats are counts of a peer. They only grow.
type Stats struct {
	Asked, Served uint64 // requests that were sent, and answers
	Refused       uint64 // answers that were not delivered
	Late          uint64 // answers to calls that had been given up
	Malformed     uint64 // messages that no peer sends
}

// Peer is a worker that asks others and is asked. It owns a mailbox, belongs to its worker, and is
// not safe for concurrent use.
type Peer struct {
	ep  rdma.Endpoint
	box rdma.Mailbox
	// For headers: see header.at.
	at     uint32
	window int
	// Calls that are not released, at most window: those in calls, and those that are over.
	held int
	// The id of the last call.
	lastID uint64
	// Calls in flight, in no order.
	calls []*Call
	// Answers on their way. Their requests have ended: nothing waits for them.
	answers []*delivery
	// Requests that Next has not returned, in the order in which they arrived.
	came  []*Request
	stats Stats

	// Freed elements that are used again, so that a call allocates nothing in steady state. A Call
	// or Request must not be used behind Release, Answer or Drop: it may be another one by then.
	spareCalls    []*Call
	spareAnswers  []*delivery
	spareRequests []*Request
}

// spare takes a freed element, or makes a new one.
func spare[T any](all *[]*T) *T {
	n := len(*all)
	if n == 0 {
		return new(T)
	}
	e := (*all)[n-1]
	*all = (*all)[:n-1]
	return e
}

// Open opens a mailbox for the worker and returns its peer. The caller closes it. The window leaves
// half of the mailbox's buffers at least to requests and late answers. These may fill all of it:
// then answers are refused, and their senders repeat them.
func Open(ep rdma.Endpoint, o Options) (*Peer, error) {
	if o.Box == (rdma.BoxOptions{}) {
		o.Box.Node = rdma.All
	}
	if o.Box.Slots == 0 {
		o.Box.Slots = 64
	}
	most := max(o.Box.Slots/2, 1)
	if o.Window == 0 {
		o.Window = most
	}
	if o.Window < 1 || o.Window > most {
		return nil, fmt.Errorf("open a peer with a window of %d requests and %d buffers: want 1 to %d: %w", o.Window,
			o.Box.Slots,
			most, rdma.ErrAccess)
	}
	box, err := rdma.Listen(ep, o.Box)
	if err != nil {
		return nil, fmt.Errorf("open a peer: %w", err)
	}
	// Ids begin at a random number. So a late answer to the last owner of the mailbox does not
	// match a request of this one.
	return &Peer{ep: ep, box: box, at: uint32(o.Box.Node - rdma.All), window: o.Window, lastID: ep.Rand().Uint64()}, nil
}

// Box returns the peer's mailbox, of which others need the address. It is the peer's: only the peer
// reads and closes it.
func (p *Peer) Box() rdma.Mailbox { return p.box }

// Stats returns the peer's counts.
func (p *Peer) Stats() Stats { return p.stats }

// Next returns the next request. It returns nil without an error when something else happened: a
// verb of the worker completed, or a call of the peer is over. A caller that examines what it has
// in flight after each Next misses nothing. The error wraps rdma.ErrTimeout after the given time,
// or rdma.ErrClosed. Requests come in the order in which they arrived; each belongs to the caller
// until Answer or Drop.
func (p *Peer) Next(within time.Duration) (*Request, error) {
	over, now := p.progress()
	if len(p.came) == 0 && over == 0 {
		until := rdma.Forever
		if within < rdma.Forever-now {
			until = now + within
		}
		if err := p.await(now, until); err != nil {
			return nil, err
		}
		p.progress()
	}
	if len(p.came) == 0 {
		return nil, nil
	}
	r := p.came[0]
	p.came = p.came[:copy(p.came, p.came[1:])]
	return r, nil
}

// await waits until something happens, or until the peer has to repeat something or give it up. The
// error wraps rdma.ErrTimeout only at until. A SEND in flight needs no time of its own: its
// completion wakes the mailbox, too.
func (p *Peer) await(now, until time.Duration) error {
	wake := until
	for _, c := range p.calls {
		wake = c.way.wake(wake)
	}
	for _, d := range p.answers {
		if d.again > 0 {
			wake = d.wake(wake)
		}
	}
	within := rdma.Forever
	if wake < rdma.Forever {
		within = wake - now
	}
	err := p.box.Await(within)
	if wake < until && errors.Is(err, rdma.ErrTimeout) {
		return nil
	}
	return err
}

// progress advances all that is in flight, takes the messages that have arrived, and returns how
// many calls have ended. If a request or an ended call is there, and nothing is in flight, it does
// not read the clock and returns 0 for the time. Messages come first: a call of which the answer is
// there is not given up for its time.
func (p *Peer) progress() (over int, now time.Duration) {
	for m := p.box.Next(); m != nil; m = p.box.Next() {
		over += p.take(m)
	}
	if over+len(p.came) > 0 && len(p.answers)+len(p.calls) == 0 {
		return over, 0
	}
	now = p.ep.Now()
	answers := p.answers[:0]
	for _, d := range p.answers {
		done, err := d.step(p.ep, now)
		if !done {
			answers = append(answers, d)
			continue
		}
		if err != nil {
			p.stats.Refused++
		}
		d.release()
		p.spareAnswers = append(p.spareAnswers, d)
	}
	p.answers = answers
	for i := len(p.calls) - 1; i >= 0; i-- { // from the end, since end moves the last call
		if c := p.calls[i]; c.step(now) {
			p.end(c)
			over++
		}
	}
	return over, now
}

// take takes a message, and returns how many calls it ended. A request keeps the message's buffer
// until it is answered or dropped. An answer without a call is late, or comes for the second time;
// it is dropped.
func (p *Peer) take(m *rdma.Message) int {
	h, body, ok := parse(m.Data)
	switch {
	case !ok:
		p.stats.Malformed++
	case h.kind == kindRequest:
		r := spare(&p.spareRequests)
		*r = Request{Proc: h.code, Body: body, Client: m.Client, peer: p, m: m, id: h.id, from: h.from(m)}
		p.came = append(p.came, r)
		return 0
	default:
		for _, c := range p.calls {
			// The sender must be the mailbox that was asked: ids of different peers may be the
			// same.
			if c.id == h.id && c.to == h.from(m) {
				c.Status, c.Body, c.m = h.code, body, m
				p.end(c)
				return 1
			}
		}
		p.stats.Late++
	}
	p.box.Release(m)
	return 0
}

// Close closes the mailbox. Calls in flight end in ErrUncertain. Answers on their way may still
// arrive. The peers of requests that were not answered wait until they give up.
func (p *Peer) Close() error {
	for len(p.calls) > 0 {
		c := p.calls[0]
		// The request may be on its way.
		c.fail(rdma.ErrClosed, false)
		p.end(c)
	}
	for _, d := range p.answers {
		d.release()
	}
	p.answers = nil
	return p.box.Close()
}
