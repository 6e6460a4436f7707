package rpc

import (
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// Call is a request of a peer and, once it is over, its answer. The caller owns it until Release.
type Call struct {
	Status uint16 // of the answer: the handler defines it
	Body   []byte // of the answer; valid until Release
	Err    error  // why there is no answer

	peer *Peer
	id   uint64
	to   rdma.BoxAddr
	// The delivery of the request. Its until is also when the call is given up.
	way delivery
	// The request was delivered. The handler may not have looked at it.
	sent bool
	// The answer has come, or the call was given up. Then the peer does not have it any more.
	over bool
	// The message with the answer, of which the buffer is held until Release.
	m *rdma.Message
}

// Start sends a request to the owner of a mailbox, and does not wait. The body is copied. The spans
// are gathered from the memory of the node beside which the worker runs; they must not change until
// the call is over. The call is given up after the given time. On an error nothing was sent; it
// wraps ErrWindow if too many calls are not released.
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
	// From here on the caller must release the call.
	p.held++
	p.stats.Asked++
	return c, nil
}

// Call sends a request and waits for its answer: see Start. Requests that arrive meanwhile are kept
// for Next. The caller releases the call, except on an error.
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

// Wait waits until a call is over, and returns its error. It ends, since each call is given up in
// time. It does not return at the first answer of another call: those are advanced on the way, and
// their Wait finds them over.
func (p *Peer) Wait(c *Call) error {
	for !c.over {
		over, now := p.progress()
		if c.over || over > 0 {
			continue
		}
		if err := p.await(now, c.way.until); err != nil && !errors.Is(err, rdma.ErrTimeout) {
			// The mailbox is gone, so no answer can come.
			c.fail(err, false)
			p.end(c)
		}
	}
	return c.Err
}

// Over reports whether the call is over, as far as the peer has looked: Next looks.
func (c *Call) Over() bool { return c.over }

// step advances a call in flight, and reports whether it is over. A request of which the call is
// given up may still be served: its SEND is in flight, or the handler is at work.
func (c *Call) step(now time.Duration) bool {
	if !c.sent {
		done, err := c.way.step(c.peer.ep, now)
		// The delivery has failed. Whether the request may have run depends on how.
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

// fail notes why there is no answer. certain says that the request has not run and will not;
// otherwise the error wraps ErrUncertain. A caller may repeat a call only if certain, or if the
// procedure may run twice.
func (c *Call) fail(err error, certain bool) {
	if certain {
		c.Err = fmt.Errorf("ask %s: %w", c.to, err)
	} else {
		c.Err = fmt.Errorf("ask %s: %w: %w", c.to, ErrUncertain, err)
	}
}

// end removes a call that is over from those in flight. A request in flight may still land: its
// batch owns the memory until then.
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
	// An answer may arrive before the request's completion.
	if b := c.way.batch; b != nil && (b.Finished() || c.m != nil) {
		_ = p.ep.Wait(b, 0, 0) // does not wait: it counts the trip
	}
	c.way.release()
}

// Release frees the call and the buffer of its answer. A call in flight is given up: a later answer
// is dropped. Its handler may still run it.
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
