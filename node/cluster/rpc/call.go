package rpc

import (
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// Call is a request of a peer in flight, or its answer. It is the caller's until Release.
type Call struct {
	Status uint16 // of the answer: what the handler said
	Body   []byte // of the answer, until Release
	Err    error  // why there is none

	peer *Peer
	id   uint64
	to   rdma.BoxAddr
	way  delivery // of the request; its until is the call's
	sent bool     // the request was delivered
	over bool
	m    *rdma.Message // that the answer is in
}

// Start sends a request for a procedure of the owner of a mailbox, and does not wait. The body is
// copied; the spans are gathered from the memory of the node that the worker runs beside. The call
// is given up after the given time. An error means that nothing was sent; it wraps ErrWindow when
// too many calls are not released.
func (p *Peer) Start(to rdma.BoxAddr, proc uint16, within time.Duration, body []byte, spans ...rdma.Span) (*Call,
	error) {
	if p.held >= p.window {
		return nil, fmt.Errorf("ask %s: %w", to, ErrWindow)
	}
	c := spare(&p.spareCalls)
	p.lastID++
	*c = Call{peer: p, id: p.lastID, to: to}
	if err := c.way.send(p.ep, "ask", to, header{c.id, kindRequest, proc, p.at}, body, spans); err != nil {
		p.spareCalls = append(p.spareCalls, c)
		return nil, fmt.Errorf("ask %s: %w", to, err)
	}
	c.way.until = rdma.Forever
	if now := p.ep.Now(); within < rdma.Forever-now {
		c.way.until = now + within
	}
	p.calls = append(p.calls, c)
	p.held++
	p.stats.Asked++
	return c, nil
}

// Call sends a request and waits for its answer: see Start. Requests that come meanwhile wait for
// Next. The caller releases the call; on an error there is nothing to release.
func (p *Peer) Call(to rdma.BoxAddr, proc uint16, within time.Duration, body []byte, spans ...rdma.Span) (*Call,
	error) {
	c, err := p.Start(to, proc, within, body, spans...)
	if err != nil {
		return nil, err
	}
	if err := p.Wait(c); err != nil {
		c.Release()
		return nil, err
	}
	return c, nil
}

// Wait waits until a call is over, which it is in time, and returns why it failed.
func (p *Peer) Wait(c *Call) error {
	for !c.over {
		over, now := p.progress()
		if c.over || over > 0 {
			continue
		}
		if err := p.await(now, c.way.until); err != nil && !errors.Is(err, rdma.ErrTimeout) {
			c.fail(err, false)
			p.end(c)
		}
	}
	return c.Err
}

// Over reports whether the call is over, as far as the peer has looked: see Next.
func (c *Call) Over() bool { return c.over }

// step goes on with a call that is in flight, and reports whether it is over.
func (c *Call) step(now time.Duration) bool {
	if !c.sent {
		done, err := c.way.step(c.peer.ep, now)
		if done && err != nil {
			c.fail(err, c.way.undelivered(err))
			return true
		}
		c.sent = done
	}
	if now < c.way.until {
		return false
	}
	c.fail(fmt.Errorf("no answer: %w", rdma.ErrTimeout), false)
	return true
}

// fail notes why there is no answer. Certain: the request has not run and will not.
func (c *Call) fail(err error, certain bool) {
	if certain {
		c.Err = fmt.Errorf("ask %s: %w", c.to, err)
	} else {
		c.Err = fmt.Errorf("ask %s: %w: %w", c.to, ErrUncertain, err)
	}
}

// end takes a call that is over out of those in flight.
func (p *Peer) end(c *Call) {
	for i, other := range p.calls {
		if other == c {
			last := len(p.calls) - 1
			p.calls[i] = p.calls[last]
			p.calls = p.calls[:last]
			break
		}
	}
	c.over = true
	if b := c.way.batch; b != nil && (b.Finished() || c.m != nil) { // an answer may overtake the request's completion
		_ = p.ep.Wait(b, 0, 0) // does not wait: it counts the trip
	}
	c.way.release()
}

// Release gives the call and its answer's buffer back. A call in flight is given up: its answer is
// dropped.
func (c *Call) Release() {
	p := c.peer
	if p == nil {
		panic("rpc: call released twice")
	}
	if !c.over {
		p.end(c)
	}
	if c.m != nil {
		p.box.Release(c.m)
	}
	*c = Call{}
	p.held--
	p.spareCalls = append(p.spareCalls, c)
}
