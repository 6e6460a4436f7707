// Package fault is an endpoint that fails on purpose: at a worker's k-th verb, or at a named step
// of its protocol, it crashes the worker, fails the verb, or holds it up. It works on every fabric;
// package sim has crashes of its own.
package fault

import (
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// Fault says what goes wrong, and where. Exactly one of Crash, Err and Delay says what.
type Fault struct {
	// At is the verb or call that it befalls, counting the worker's from 1. With At 0 it is the
	// first one posted as Step; a fault with neither never happens.
	At   uint64
	Step rdma.Step

	// Crash stops the worker: of the batch in which the verb lies, what comes before it is posted,
	// it and what comes behind it are not. Then Crash is called; it may kill the process. If it
	// returns, the endpoint and those of the worker's tasks answer everything with rdma.ErrClosed
	// and post nothing.
	Crash func()
	// Err fails the verb, which is not posted; the others of its batch are.
	Err error
	// Delay holds up the verb and the batch in which it lies before it is posted.
	Delay time.Duration
}

// Stop is a Crash that does not end the process: the endpoint is of no use from there on.
func Stop() {}

// Endpoint is an endpoint with faults.
type Endpoint struct {
	rdma.Endpoint
	faults  []Fault
	sent    uint64
	crashed *atomic.Bool // its tasks', too
	scratch rdma.Base    // counts what the real queue does not see
	parts   []*part
}

// New returns ep with faults. Each befalls the worker once.
func New(ep rdma.Endpoint, faults ...Fault) *Endpoint {
	return &Endpoint{Endpoint: ep, faults: append([]Fault(nil), faults...), crashed: new(atomic.Bool)}
}

// Sent returns how many verbs and calls the worker has come to: enumerating faults runs At from 1
// to this.
func (e *Endpoint) Sent() uint64 { return e.sent }

// Crashed reports whether a fault has crashed the worker.
func (e *Endpoint) Crashed() bool { return e.crashed.Load() }

// take removes the first fault that befalls the next n verbs, of a step, and returns it and the
// verb's place among them.
func (e *Endpoint) take(step rdma.Step, n int) (*Fault, int) {
	best, place := -1, n
	for i, f := range e.faults {
		at := n
		switch {
		case f.At > e.sent && f.At-e.sent <= uint64(n):
			at = int(f.At-e.sent) - 1
		case f.At == 0 && f.Step != "" && f.Step == step:
			at = 0
		}
		if at < place {
			best, place = i, at
		}
	}
	if best < 0 {
		return nil, n
	}
	f := e.faults[best]
	e.faults = append(e.faults[:best], e.faults[best+1:]...)
	return &f, place
}

// Post posts b, or what the faults leave of it.
func (e *Endpoint) Post(b *rdma.Batch) error {
	if err := e.gone("post"); err != nil {
		return err
	}
	e.settle()
	var fails map[int]error
	for {
		f, i := e.take(b.Step(), b.Len())
		switch {
		case f == nil && len(fails) == 0:
			e.sent += uint64(b.Len())
			return e.Endpoint.Post(b)
		case f == nil:
			e.sent += uint64(b.Len())
			return e.postPart(b, fails)
		case f.Crash != nil:
			return errors.Join(e.postBefore(b, i, fails), e.crash(f, "post"))
		case f.Err != nil:
			if fails == nil {
				fails = map[int]error{}
			}
			fails[i] = f.Err
		default:
			e.Endpoint.Sleep(f.Delay)
		}
	}
}

func (e *Endpoint) crash(f *Fault, what string) error {
	e.crashed.Store(true)
	f.Crash()
	return e.gone(what)
}

// gone returns the error of a worker that has crashed.
func (e *Endpoint) gone(what string) error {
	if e.crashed.Load() {
		return fmt.Errorf("%s after a crash on purpose: %w", what, rdma.ErrClosed)
	}
	return nil
}

// Wait waits for b.
func (e *Endpoint) Wait(b *rdma.Batch, n int, within time.Duration) error {
	if err := e.gone("wait"); err != nil {
		return err
	}
	e.settle()
	for _, p := range e.parts {
		if p.whole == b {
			err := e.Endpoint.Wait(p.sent, n, within)
			e.settle()
			return err
		}
	}
	return e.Endpoint.Wait(b, n, within)
}

// Call makes a call, which counts as a verb.
func (e *Endpoint) Call(node int, r *rdma.Request, within time.Duration) error {
	if err := e.gone("call"); err != nil {
		return err
	}
	for {
		f, _ := e.take(r.Step, 1)
		switch {
		case f == nil:
			e.sent++
			return e.Endpoint.Call(node, r, within)
		case f.Crash != nil:
			return e.crash(f, "call")
		case f.Err != nil:
			e.sent++
			return &rdma.CallError{Node: node, Err: f.Err}
		default:
			e.Endpoint.Sleep(f.Delay)
		}
	}
}

// Listen opens the worker's mailbox. Its SENDs are verbs; messages that come have no faults of
// their own: they are verbs of those that sent them.
func (e *Endpoint) Listen(o rdma.BoxOptions) (rdma.Mailbox, error) {
	if err := e.gone("listen"); err != nil {
		return nil, err
	}
	m, err := rdma.Listen(e.Endpoint, o)
	if err != nil {
		return nil, err
	}
	return &mailbox{m, e}, nil
}

// mailbox is that of a worker, which receives nothing once it has crashed.
type mailbox struct {
	rdma.Mailbox
	e *Endpoint
}

func (m *mailbox) Next() *rdma.Message {
	if m.e.Crashed() {
		return nil
	}
	return m.Mailbox.Next()
}

func (m *mailbox) Await(within time.Duration) error {
	if err := m.e.gone("wait for a message"); err != nil {
		return err
	}
	m.e.settle()
	err := m.Mailbox.Await(within)
	m.e.settle()
	return err
}

// Close closes the mailbox, which a worker that has crashed does not.
func (m *mailbox) Close() error {
	if err := m.e.gone("close the mailbox"); err != nil {
		return err
	}
	return m.Mailbox.Close()
}

// Rings returns what the fabric promises of rings.
func (e *Endpoint) Rings() (rdma.RingPromises, error) {
	if err := e.gone("look for rings"); err != nil {
		return rdma.RingPromises{}, err
	}
	return rdma.Rings(e.Endpoint)
}

// OpenRing opens a ring. What others append to it are verbs of theirs.
func (e *Endpoint) OpenRing(o rdma.RingOptions) (rdma.Ring, error) {
	if err := e.gone("open a ring"); err != nil {
		return nil, err
	}
	r, err := rdma.OpenRing(e.Endpoint, o)
	if err != nil {
		return nil, err
	}
	return &ring{r, e}, nil
}

// ring is that of a worker, which posts no buffers once it has crashed.
type ring struct {
	rdma.Ring
	e *Endpoint
}

func (r *ring) Post(buffers ...rdma.Span) error {
	if err := r.e.gone("post buffers"); err != nil {
		return err
	}
	return r.Ring.Post(buffers...)
}

// Close closes the ring, which a worker that has crashed does not.
func (r *ring) Close() error {
	if err := r.e.gone("close the ring"); err != nil {
		return err
	}
	return r.Ring.Close()
}

// Join joins the view, which a worker that has crashed does not. It is no verb: no other worker
// sees that it happened.
func (e *Endpoint) Join() (rdma.View, error) {
	if err := e.gone("join the view"); err != nil {
		return rdma.View{}, err
	}
	return e.Endpoint.Join()
}

// Sleep pauses the worker; one that has crashed does not sleep.
func (e *Endpoint) Sleep(d time.Duration) {
	if !e.crashed.Load() {
		e.Endpoint.Sleep(d)
		e.settle()
	}
}

// Go starts a task without faults of its own, which ends with the worker's crash.
func (e *Endpoint) Go(name string, f func(rdma.Endpoint)) error {
	if err := e.gone("start a task"); err != nil {
		return err
	}
	return e.Endpoint.Go(name, func(own rdma.Endpoint) { f(&Endpoint{Endpoint: own, crashed: e.crashed}) })
}

// Close gives the identity back, which a worker that has crashed does not.
func (e *Endpoint) Close() error {
	if err := e.gone("close"); err != nil {
		return err
	}
	return e.Endpoint.Close()
}
