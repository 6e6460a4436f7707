package rpc

import (
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// What callers branch on.
var (
	// ErrUncertain is wrapped when a request may have run, or may run yet.
	ErrUncertain = errors.New("the request may have run")
	// ErrWindow is wrapped when a peer has as many calls as it may.
	ErrWindow = errors.New("too many calls are not released")
)

// Options shape a peer. Zero values mean defaults.
type Options struct {
	// Box is the peer's mailbox. The default is a client's: at all nodes. Of the bytes of a message 16
	// are the header's.
	Box rdma.BoxOptions
	// Window bounds the calls of the peer that are not released, so that its mailbox has room for
	// their answers, besides late ones and requests; the default is half of the mailbox's buffers, and
	// the most.
	Window int
}

// answerPatience bounds for how long an answer is sent again: to a mailbox that is full, of
// requests if its peer serves, too, or of late answers if that has not looked for a while; and
// until the worker has joined a new view. It is longer than a program that lives stands still on a
// machine that is busy: one that misses an answer waits for it as long as it may.
const answerPatience = time.Second

// Stats count what a peer met. They only grow.
type Stats struct {
	Asked, Served uint64 // requests sent, and answers
	Refused       uint64 // answers that were not delivered
	Late          uint64 // answers to requests that had been given up
	Malformed     uint64 // messages that are no peer's
}

// Peer is a worker that asks others and is asked. It has the worker's mailbox, and is not safe for
// concurrent use.
type Peer struct {
	ep      rdma.Endpoint
	box     rdma.Mailbox
	at      uint32 // in headers
	window  int
	held    int // calls that are not released
	lastID  uint64
	calls   []*Call     // in flight
	answers []*delivery // that Answer began
	came    []*Request  // that Next has not returned, the first one first
	stats   Stats

	spareCalls    []*Call
	spareAnswers  []*delivery
	spareRequests []*Request
}

// spare takes an element that is used again, or makes one.
func spare[T any](all *[]*T) *T {
	n := len(*all)
	if n == 0 {
		return new(T)
	}
	e := (*all)[n-1]
	*all = (*all)[:n-1]
	return e
}

// Open opens the mailbox of a worker and returns its peer.
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
	// Ids begin anywhere, so that a late answer to the last owner of the mailbox's number answers no
	// request of this one.
	return &Peer{ep: ep, box: box, at: uint32(o.Box.Node - rdma.All), window: o.Window, lastID: ep.Rand().Uint64()}, nil
}

// Box returns the peer's mailbox, for its address.
func (p *Peer) Box() rdma.Mailbox { return p.box }

// Stats returns what the peer met so far.
func (p *Peer) Stats() Stats { return p.stats }

// Next returns the next request. It returns nil, and no error, when something else happened: a verb
// of the worker completed, or a call of the peer is over. Look at what is in flight behind each
// Next, and Next misses nothing. The error wraps rdma.ErrTimeout after the given time, or
// rdma.ErrClosed.
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

// await waits until something happens, or is to be done by the peer itself. The error wraps
// rdma.ErrTimeout only at until.
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

// progress goes on with all that is in flight, takes the messages that came, and returns how many
// calls are over since. When there is nothing to wait for it may leave the time out.
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
	for i := len(p.calls) - 1; i >= 0; i-- { // from the end: those that are over leave
		if c := p.calls[i]; c.step(now) {
			p.end(c)
			over++
		}
	}
	return over, now
}

// take takes a message, and returns how many calls are over by it.
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

// Close gives the mailbox back. Calls in flight end in ErrUncertain.
func (p *Peer) Close() error {
	for len(p.calls) > 0 {
		c := p.calls[0]
		c.fail(rdma.ErrClosed, false)
		p.end(c)
	}
	for _, d := range p.answers {
		d.release()
	}
	p.answers = nil
	return p.box.Close()
}
