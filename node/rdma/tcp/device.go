package tcp

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"
	"unsafe"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/realtime"
)

// Device is an RNIC in a memory node. It executes verbs on the node's memory past the node's
// process. The process decides which workers it serves: connections are made, and ended, over this
// package's protocol. Everything else of a pool is as without a device.
type Device interface {
	// Fabric names the fabric that the device's verbs go over, as Record.Fabric and in addresses.
	Fabric() string
	// Register lets the device use size bytes at base, until the registration is closed.
	Register(base unsafe.Pointer, size uint64) (Registration, error)
}

// Registration is memory of a node that a Device serves.
type Registration interface {
	// Connect connects a client's worker by what it offers, and returns what it has to know, and
	// how to end it.
	Connect(offer []byte, readOnly bool) (answer []byte, c DeviceConn, err error)
	// CompareSwap and FetchAdd are as in rdma.Memory: for the node's procedures, since a
	// processor's atomics are not atomic with those of a device.
	CompareSwap(off, expect, value uint64) uint64
	FetchAdd(off, n uint64) uint64
	// Close ends the registration; all connections were ended before.
	Close() error
}

// DeviceConn is a worker's connection to a node's memory.
type DeviceConn interface {
	// End ends it. When it returns, none of the verbs that were posted to the connection is being
	// executed, or ever will be.
	End()
}

// RingRegistration is a Registration of a Device that has rings.
type RingRegistration interface {
	Registration
	// OpenRing opens a ring without buffers, of which it is told the longest block of the pool's.
	// Options were checked.
	OpenRing(o rdma.RingOptions, mtu int) (DeviceRing, error)
}

// DeviceRing is a ring at a node's device. It is safe for concurrent use. Post and Count are as of
// rdma.Ring.
type DeviceRing interface {
	Post(buffers []rdma.Span) error
	Count() rdma.RingCount
	// Connect connects a sender's worker to a stream, by what it offers, as Registration.Connect.
	// The error wraps rdma.ErrNoRing when the ring has ended.
	Connect(stream int, offer []byte) (answer []byte, c RingConn, err error)
	// Close ends the ring, and all connections to it: when it returns nothing lands any more.
	Close()
}

// RingConn is a sender's connection to a stream of a ring.
type RingConn interface {
	DeviceConn
	// Landed returns how many blocks have landed over it, and whether it was ended, with its ring
	// or by End: then no more will.
	Landed() (blocks uint64, ended bool)
}

// What an attach frame asks for, in the place of its number of items.
const (
	attachAsk  = iota // whether the worker may post
	attachNew         // a connection to the node's memory, in the place of one that it may have
	attachEnd         // the end of it
	attachRing        // and on: the same of a connection to a ring
)

// maxOffer bounds in bytes what a device's two ends have to tell each other.
const maxOffer = 256

// owner identifies a worker that has a connection to the node's memory.
type owner struct {
	client rdma.ClientID
	life   uint64
}

// mostPeeks is how many connections without an identity a process may have to a node's memory
// beyond those of all clients.
const mostPeeks = 4

// mostRingConns is how many connections to rings a process may have at a node: one for each of its
// workers, each ring and stream that it appends to.
const mostRingConns = 1 << 12

// targetBytes are those of a ring's number and stream in an attach frame.
const targetBytes = 8

// target is where a worker's connection goes: to a stream of a ring; ring 0 is the node's memory.
type target struct {
	owner
	ring, stream uint32
}

// attachment is a worker's connection to the node's memory, or to a ring.
type attachment struct {
	rights rights
	conn   DeviceConn
}

// attach executes an attach frame. The caller holds c.executing, and with it c.attached: a fence
// that comes behind finds the connection, and one that came before is seen here.
func (c *conn) attach(h header, p []byte) error {
	least := rightsBytes
	if h.items >= attachRing {
		least += targetBytes
	}
	if len(p) < least || len(p) > least+maxOffer {
		return fmt.Errorf("attach with %d bytes: %w", len(p), ErrProtocol)
	}
	r := parseRights(p)
	c.out = append(c.out, make([]byte, headerBytes)...)
	from := len(c.out)
	to, p := target{owner: owner{r.client, r.life}}, p[rightsBytes:]
	if h.items >= attachRing {
		to.ring, to.stream, p = binary.LittleEndian.Uint32(p), binary.LittleEndian.Uint32(p[4:]), p[targetBytes:]
	}
	answer, err := c.serveAttach(h.items, &r, to, p)
	if err != nil {
		c.counters.failed(statusOf(err), 1)
		answer = []byte(err.Error())
		answer = answer[:min(len(answer), maxOffer)]
	}
	c.out = append(c.out, answer...)
	for len(c.out)%8 != from%8 {
		c.out = append(c.out, ' ')
	}
	c.answer(h, statusOf(err), len(answer), from)
	return nil
}

func (c *conn) serveAttach(what int, r *rights, to target, offer []byte) (answer []byte, err error) {
	if st := c.barred(r); st != statusOK {
		c.detach() // the fence may not have reached c yet: what is refused now does not land later
		return nil, st.err()
	}
	old, ok := c.attached[to]
	if what == attachRing+attachAsk {
		return old.landed()
	}
	if ok && what != attachAsk {
		c.part(to, &old)
	}
	switch what {
	case attachNew:
	case attachRing + attachNew:
		return c.attachRing(r, to, offer)
	default:
		return nil, nil
	}
	if c.pool.region == nil {
		return nil, fmt.Errorf("the node has no device: %w", rdma.ErrNotSupported)
	}
	// there are no more workers, unless they are readers
	if len(c.attached)-c.ringed >= c.pool.record.Clients+mostPeeks {
		return nil, fmt.Errorf("the process has %d connections to the node's memory: %w", len(c.attached)-c.ringed,
			rdma.ErrFull)
	}
	answer, dc, err := c.pool.region.Connect(offer, c.readsOnly(r))
	if err != nil {
		return nil, err
	}
	return c.attachedTo(to, r, answer, dc)
}

// attachedTo keeps a connection that was made.
func (c *conn) attachedTo(to target, r *rights, answer []byte, dc DeviceConn) ([]byte, error) {
	if len(answer) > maxOffer {
		dc.End()
		return nil, fmt.Errorf("a device answers %d bytes: %w", len(answer), errFailed)
	}
	if c.attached == nil {
		c.attached = map[target]attachment{}
	}
	c.attached[to] = attachment{*r, dc}
	if to.ring != 0 {
		c.ringed++
	}
	return answer, nil
}

// attachRing connects a worker to a ring.
func (c *conn) attachRing(r *rights, to target, offer []byte) ([]byte, error) {
	own := c.pool.ringAt(uint64(to.ring))
	switch {
	case c.readsOnly(r):
		return nil, rdma.ErrAccess
	case own == nil:
		return nil, rdma.ErrNoRing
	case own.device == nil:
		return nil, fmt.Errorf("the node has no device: %w", rdma.ErrNotSupported)
	case c.ringed >= mostRingConns:
		return nil, fmt.Errorf("the process has %d connections to rings: %w", c.ringed, rdma.ErrFull)
	}
	answer, rc, err := own.device.Connect(int(min(to.stream, rdma.MaxStreams)), offer)
	if err != nil {
		return nil, err
	}
	return c.attachedTo(to, r, answer, rc)
}

// part ends a connection.
func (c *conn) part(to target, a *attachment) {
	a.conn.End()
	delete(c.attached, to)
	if to.ring != 0 {
		c.ringed--
	}
}

// landed answers how many blocks have landed over a connection to a ring, and whether it has ended.
func (a *attachment) landed() ([]byte, error) {
	rc, ok := a.conn.(RingConn)
	if !ok {
		return nil, rdma.ErrNoRing
	}
	blocks, ended := rc.Landed()
	over := uint64(0)
	if ended {
		over = 1
	}
	return binary.LittleEndian.AppendUint64(binary.LittleEndian.AppendUint64(nil, blocks), over), nil
}

// detach ends the connections to the node's memory and rings of workers that may not post any more.
// The caller holds c.executing.
func (c *conn) detach() {
	for to, a := range c.attached {
		if c.ended || c.barred(&a.rights) != statusOK {
			c.part(to, &a)
		}
	}
}

// servedBytes is the body of the answer to a serve frame.
const servedBytes = 16

// serves answers for how long yet the node may serve.
func (c *conn) serves(h header) {
	c.out = append(c.out, make([]byte, headerBytes)...)
	from := len(c.out)
	left := max(0, c.pool.until.Load()-int64(realtime.Boot()))
	fence := c.pool.fence.Load()
	c.detach() // a client that learns of the fence may say that what was posted before does not land later
	c.out = binary.LittleEndian.AppendUint64(c.out, uint64(left))
	c.out = binary.LittleEndian.AppendUint64(c.out, fence)
	c.answer(h, statusOK, 0, from)
}

// serving is the question to a node for how long it may serve, in flight since a time on realtime.Boot.
// No worker waits for its answer.
type serving struct {
	l    *link
	sent time.Duration
}

func (serving) lose(error) {}

func (q serving) land(h header, body []byte) error {
	if h.kind != kindServe || len(body) != servedBytes {
		return fmt.Errorf("frame of kind %d with %d bytes tells how long a node serves: %w",
			h.kind, len(body), ErrProtocol)
	}
	left := time.Duration(binary.LittleEndian.Uint64(body))
	q.l.until.Store(int64(q.sent + min(max(left, 0), time.Hour)))
	q.l.hears.Store(int64(q.sent + min(max(left, 0), 4*q.l.every)))
	q.l.fence.Store(binary.LittleEndian.Uint64(body[8:]))
	return nil
}

// keepServed asks a node of a pool with devices for how long it may serve, a few times in each
// lease, until the connection breaks.
func (l *link) keepServed(s *stream) {
	for {
		l.askServing()
		s.call()
		select {
		case <-s.over:
			return
		case <-l.stop:
			return
		case <-time.After(realtime.Beat(l.every)):
		}
	}
}

func (l *link) askServing() {
	// a link that is down asks again
	_ = l.send(kindServe, 0, serving{l, realtime.Boot()}, func(out []byte) []byte { return out })
}

// What follows is for fabrics with verbs that go past this package's connections, from device to
// device.

// Attach asks a node for a connection from device to device, and ends the one that the worker had
// there before: none of the verbs that were posted to it is executed any more. The answer is the
// node's Registration's. Errors are those of verbs.
func (e *Endpoint) Attach(node int, offer []byte) ([]byte, error) {
	answer, err := e.attach(node, attachNew, nil, offer)
	if err != nil {
		return nil, fmt.Errorf("connect to the memory of node %d: %w", node, err)
	}
	return answer, nil
}

// MayPost asks a node whether it would execute the worker's verbs: nil, or why not. It wraps
// rdma.ErrNodeDown when there is no answer in time.
func (e *Endpoint) MayPost(node int) error {
	_, err := e.attach(node, attachAsk, nil, nil)
	return err
}

// Detach tells a node that the worker needs its connection to the memory no more.
func (e *Endpoint) Detach(node int) error {
	_, err := e.attach(node, attachEnd, nil, nil)
	return err
}

// AttachRing is Attach for a stream of a ring. The error wraps rdma.ErrNoRing when there is none.
func (e *Endpoint) AttachRing(to rdma.RingAddr, stream int, offer []byte) ([]byte, error) {
	answer, err := e.attach(to.Node(), attachRing+attachNew, ringTarget(to, stream), offer)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", to, err)
	}
	return answer, nil
}

// MayAppend is MayPost for the worker's connection to a stream of a ring. When the ring has ended
// the error wraps rdma.ErrNoRing, and blocks says how many have landed over the connection; -1: it
// is not known.
func (e *Endpoint) MayAppend(to rdma.RingAddr, stream int) (blocks int64, err error) {
	p, err := e.attach(to.Node(), attachRing+attachAsk, ringTarget(to, stream), nil)
	if err != nil {
		return -1, err
	}
	if len(p) != 16 {
		return -1, fmt.Errorf("%d bytes answer what has landed: %w", len(p), ErrProtocol)
	}
	blocks = int64(binary.LittleEndian.Uint64(p))
	if binary.LittleEndian.Uint64(p[8:]) != 0 {
		err = fmt.Errorf("%s has ended: %w", to, rdma.ErrNoRing)
	}
	return blocks, err
}

// DetachRing is Detach for a stream of a ring.
func (e *Endpoint) DetachRing(to rdma.RingAddr, stream int) error {
	_, err := e.attach(to.Node(), attachRing+attachEnd, ringTarget(to, stream), nil)
	return err
}

func ringTarget(to rdma.RingAddr, stream int) []byte {
	return binary.LittleEndian.AppendUint64(nil, uint64(to.Number())|uint64(stream)<<32)
}

func (e *Endpoint) attach(node, what int, to, offer []byte) ([]byte, error) {
	if err := e.fabric.down(node); err != nil {
		return nil, err
	}
	c := reuse(&e.calls)
	c.ep, c.err, c.over, c.answer = e, nil, false, nil
	l := e.fabric.links[node].verbs
	err := l.send(kindAttach, what, c, func(out []byte) []byte {
		out = append(append(e.claim(out, node), to...), offer...)
		return append(out, make([]byte, -len(offer)&7)...) // bodies are whole words
	})
	if err != nil {
		return nil, err
	}
	err = e.answered(c, node, deadAfter)
	if errors.Is(err, rdma.ErrTimeout) {
		err = fmt.Errorf("node %d: %w: %w", node, rdma.ErrNodeDown, err)
	}
	return c.answer, err
}

// Task starts a task with an endpoint that open makes. Close joins it before it gives back what is
// the process's: see Endpoint.Go.
func (f *Fabric) Task(open func(name string) (rdma.Endpoint, error), name string, work func(rdma.Endpoint)) error {
	return f.tasks.Go(open, name, work)
}

// Usable is nil, or an error wrapping rdma.ErrClosed once the endpoint or its fabric was closed.
func (e *Endpoint) Usable() error {
	if e.closed || e.fabric.closing.Load() {
		return fmt.Errorf("endpoint of client %d: %w", e.client.ID, rdma.ErrClosed)
	}
	return nil
}

// Epoch returns the epoch that the worker has joined.
func (e *Endpoint) Epoch() uint64 { return e.joined }

// Reach reports whether the process is connected to a node, by which of its connections, counted
// from 1, or why it is not.
func (f *Fabric) Reach(node int) (connection uint64, err error) {
	if err := f.down(node); err != nil {
		return 0, err
	}
	return f.links[node].verbs.reach()
}

// Served returns until when, on realtime.Boot, a node serves for sure, and the epoch that was fenced
// there last, as it said then. What a device executed was true only if it completed before: a node
// that was expelled does not say so any more, and its device goes on.
func (f *Fabric) Served(node int) (until time.Duration, fence uint64) {
	l := f.links[node].verbs
	return time.Duration(l.until.Load()), l.fence.Load()
}

func (l *link) reach() (uint64, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.times, l.why
}
