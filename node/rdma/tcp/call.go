package tcp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/realtime"
)

// called is a two-sided call, or an attach, listen or meet frame, in flight. One that is not
// answered in time is left to itself.
type called struct {
	ep     *Endpoint
	r      rdma.Request
	answer []byte // of an attach frame
	count  rdma.RingCount
	err    error
	over   bool // under Endpoint.mu
}

func (c *called) land(h header, p []byte) error {
	if h.kind != kindCall && h.kind != kindAttach && h.kind != kindListen && h.kind != kindRing &&
		h.kind != kindMeet {
		return fmt.Errorf("frame of kind %d answers a call: %w", h.kind, ErrProtocol)
	}
	if h.status != statusOK && len(p) == 0 {
		c.end(h.status.err())
		return nil
	}
	if h.status != statusOK {
		c.end(fmt.Errorf("%s: %w", strings.TrimRight(string(p), " "), h.status.err()))
		return nil
	}
	switch h.kind {
	case kindListen, kindMeet:
		c.end(nil)
		return nil
	case kindRing:
		switch len(p) {
		case 0:
		case countBytes:
			c.count.Begun, c.count.Settled = binary.LittleEndian.Uint64(p), binary.LittleEndian.Uint64(p[8:])
			for i := range c.count.Open {
				c.count.Open[i] = binary.LittleEndian.Uint64(p[16+8*i:])
			}
		default:
			return fmt.Errorf("%d bytes answer about a ring: %w", len(p), ErrProtocol)
		}
		c.end(nil)
		return nil
	case kindAttach:
		if h.items > len(p) || len(p) > pad(maxOffer) {
			return fmt.Errorf("%d bytes answer an attach: %w", len(p), ErrProtocol)
		}
		c.answer = append([]byte(nil), p[:h.items]...)
		c.end(nil)
		return nil
	}
	if len(p) != 6*8 {
		return fmt.Errorf("%d bytes answer a call: %w", len(p), ErrProtocol)
	}
	for i := range c.r.Ret {
		c.r.Ret[i] = binary.LittleEndian.Uint64(p[8*i:])
	}
	c.end(nil)
	return nil
}

func (c *called) lose(err error) { c.end(err) }

func (c *called) end(err error) {
	ep := c.ep // behind Unlock the worker may use c for another call
	ep.mu.Lock()
	c.err, c.over, ep.told = err, true, true
	ep.mu.Unlock()
	ep.rouse()
}

func (c *called) isOver() bool {
	c.ep.mu.Lock()
	defer c.ep.mu.Unlock()
	return c.over
}

// Call runs one of the node's procedures.
func (e *Endpoint) Call(node int, r *rdma.Request, within time.Duration) error {
	if err := e.call(node, r, within); err != nil {
		return &rdma.CallError{Node: node, Err: err}
	}
	return nil
}

func (e *Endpoint) call(node int, r *rdma.Request, within time.Duration) error {
	switch {
	case e.closed || e.fabric.closing.Load():
		return fmt.Errorf("endpoint of client %d: %w", e.client.ID, rdma.ErrClosed)
	case uint(node) >= uint(len(e.lost)):
		return fmt.Errorf("pool has %d nodes: %w", len(e.lost), rdma.ErrAccess)
	case e.lost[node] != nil:
		return e.lost[node]
	}
	e.Called(node)
	if err := e.fabric.down(node); err != nil {
		return err
	}
	r.Client = e.client.ID
	c := reuse(&e.calls)
	c.ep, c.r, c.err, c.over = e, *r, nil, false
	l := e.fabric.links[node].verbs
	err := l.send(kindCall, 1, c, func(out []byte) []byte { return appendCall(e.claim(out, node), r) })
	if err == nil {
		err = e.answered(c, node, within)
	}
	if err == nil {
		r.Ret = c.r.Ret
	}
	return err
}

func (e *Endpoint) answered(c *called, node int, within time.Duration) error {
	patience := realtime.Within(within)
	for e.collect(); !c.isOver(); e.collect() { // first: word that comes behind isOver is not overlooked
		if patience.Over() {
			e.leaveToOthers()
			return fmt.Errorf("no answer for %v: %w", within, rdma.ErrTimeout)
		}
		e.fabric.links[node].verbs.await(e, patience.Until())
	}
	err := c.err
	e.calls = append(e.calls, c)
	if errors.Is(err, rdma.ErrStale) || errors.Is(err, rdma.ErrRevoked) {
		return refusal(statusOf(err), node, e.client.ID, e.joined)
	}
	return err
}
