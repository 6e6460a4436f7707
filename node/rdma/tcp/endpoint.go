package tcp

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/realtime"
	"github.com/farkv/farkv/node/rdma/transport"
)

// Endpoint is one worker's way to the pool. It is not safe for concurrent use. Its lists are memory
// that is used again, so that a batch allocates nothing in steady state: touched are the links to
// which Post has appended frames that it has to write, and spares are frames that are complete.
//
// Answers are read by one of the workers that wait for some: see stream. It fills in the results
// and the buffers of ops, which their worker does not look at before they are complete, and leaves
// them in the inbox; only the worker itself completes them.
type Endpoint struct {
	*control.Worker
	fabric  *Fabric
	touched []*transport.Link // by the batch that is being posted
	spares  []*sent           // to be used again
}

var (
	_ rdma.Endpoint     = (*Endpoint)(nil)
	_ rdma.Messenger    = (*Endpoint)(nil)
	_ rdma.Ringer       = (*Endpoint)(nil)
	_ rdma.ClientLister = (*Endpoint)(nil)
)

// sent is one frame of verbs in flight: ops of one batch, or a part of a long one. It belongs to
// the worker until the link has taken it, to the link's reader until it is in the inbox, and to the
// worker again from then on. A frame is sent once: one that is lost may have been executed, in part
// or whole. Until it is complete it keeps the batch alive, also one that was released: what the
// answer brings is copied into that.
type sent struct {
	ep    *Endpoint
	batch *rdma.Batch
	node  int
	ops   []int // of the batch
	part  bool  // of ops[0] alone: n bytes at off of it
	off   int
	n     int
	left  *int // parts of the op that are not answered, shared by them
	// epoch is the one that the frame names, for errors: the worker may have joined another one
	// since.
	epoch uint64
	lost  error
}

// Post sends the batch to its nodes, and does not wait for them. All frames are appended to their
// links before one is written, so that the nodes are busy at the same time, and workers that post
// meanwhile share the write. An error says that nothing was sent. What is wrong with a single op,
// or with a node, is in Op.Err.
func (e *Endpoint) Post(b *rdma.Batch) error {
	if err := e.Usable(); err != nil {
		return fmt.Errorf("post %d verbs: %w", b.Len(), err)
	}
	// An answer that is here may say that the worker has strayed at a node: then nothing is sent
	// there.
	e.Waits.Collect()
	// Chains are counted before the first op can complete, which may be below.
	e.Posted(b)
	b.Track()
	e.touched = e.touched[:0]
	var seen [4]uint64 // nodes, of which a pool has 256 at most
	for i := range b.Len() {
		node := b.Op(i).Addr.Node()
		// There is no such node, so that no connection goes down.
		if node >= len(e.Lost) {
			b.Op(i).Fail(fmt.Errorf("pool has %d nodes: %w", len(e.Lost), rdma.ErrAccess))
			b.Complete(i)
			continue
		}
		if bit := uint64(1) << (node & 63); seen[node>>6]&bit == 0 {
			seen[node>>6] |= bit
			e.send(b, node, i)
		}
	}
	if len(e.touched) > 0 {
		// Workers that have answers and have not gone on append first what they are about to post.
		e.Waits.Yield()
		// A node that is slow to read is not waited for: see transport.Link.Flush. One of this
		// process executes the frames in Flush, and is waited for.
		for _, l := range e.touched {
			l.Flush()
			if l.IsBeside() {
				e.Waits.Collect() // the node has executed it
			}
		}
	}
	return nil
}

// send sends the ops of b that go to one node, the first of which is number first. A failure here
// is before anything was sent: the verbs certainly have no effect. The link's lock is held over all
// frames of the batch for that node, so that no other worker's comes between them. A link that
// another goroutine is writing takes the frames along; one that this worker has to write is among
// those touched.
func (e *Endpoint) send(b *rdma.Batch, node, first int) {
	l := e.Link(node)
	err := cmp.Or(e.Lost[node], e.fabric.Down(node))
	var s transport.Sending
	if err == nil {
		s, err = l.Begin()
	}
	if err != nil {
		for i := first; i < b.Len(); i++ {
			if b.Op(i).Addr.Node() == node {
				b.Op(i).Fail(rdma.NoEffect(err))
				b.Complete(i)
			}
		}
		return
	}
	w := writer{e: e, s: s, out: s.Out(), b: b, node: node}
	for i := first; i < b.Len(); i++ {
		if b.Op(i).Addr.Node() == node {
			w.add(i)
		}
	}
	w.finish()
	if s.Done() {
		e.touched = append(e.touched, l)
	}
}

// spare returns a frame without ops, of which the list keeps its memory.
func (e *Endpoint) spare() *sent {
	s := control.Reuse(&e.spares)
	*s = sent{ep: e, ops: s.ops[:0]}
	return s
}

// Land takes the answer to a frame. It runs in the goroutine that reads, which may be another
// worker's. It writes to the batch's buffers and results, and completes nothing. p is the link's,
// and is copied. An error breaks the link, which calls Lose then: what was filled in up to there is
// not looked at, since all ops of the frame fail.
func (s *sent) Land(h transport.Header, p []byte) error {
	if h.Kind != transport.KindVerbs {
		return fmt.Errorf("frame of kind %d answers verbs: %w", h.Kind, transport.ErrProtocol)
	}
	if h.Status != transport.StatusOK {
		s.Lose(s.refused(h.Status, 0))
		return nil
	}
	if h.Items != len(s.ops) {
		return fmt.Errorf("%d answers to %d verbs: %w", h.Items, len(s.ops), transport.ErrProtocol)
	}
	for _, i := range s.ops {
		rest, err := s.result(s.batch.Op(i), p)
		if err != nil {
			return err
		}
		p = rest
	}
	if len(p) > 0 {
		return fmt.Errorf("%d bytes behind the last answer: %w", len(p), transport.ErrProtocol)
	}
	// From here on s is the worker's, which may use it for another frame.
	s.ep.Waits.Arrived(s)
	return nil
}

// result takes the answer to one op, and returns what is behind it. Bytes that a READ brings go
// into the op's buffer, those of a part to its place in it. An op that the node refused has no
// bytes behind its status.
func (s *sent) result(op *rdma.Op, p []byte) (rest []byte, err error) {
	if len(p) < transport.ResultBytes {
		return nil, fmt.Errorf("answer to %s is cut off: %w", op.Verb, transport.ErrProtocol)
	}
	st, n := transport.Status(p[0]), int(binary.LittleEndian.Uint32(p[4:]))
	p = p[transport.ResultBytes:]
	if st != transport.StatusOK {
		op.Fail(s.refused(st, op.Verb))
		return p, nil
	}
	buf := op.Buf
	if s.part {
		buf = buf[s.off : s.off+s.n]
	}
	if n != transport.ResultLen(op.Verb, len(buf)) || transport.Pad(n) > len(p) {
		return nil, fmt.Errorf("answer of %d bytes to %s of %d: %w", n, op.Verb, len(buf), transport.ErrProtocol)
	}
	switch {
	case op.Verb == rdma.Read:
		copy(buf, p[:n])
	case op.Verb.Atomic():
		op.Result = binary.LittleEndian.Uint64(p)
	}
	return p[transport.Pad(n):], nil
}

// refused is why the node did not execute a verb, or, with verb 0, the whole frame. It wraps
// rdma.ErrNoEffect, unless a part of the op may have landed.
func (s *sent) refused(st transport.Status, v rdma.Verb) error {
	err := control.Refusal(st, s.node, s.ep.Client(), s.epoch)
	// Other parts of the verb may have been executed. A WRITE that met a page without memory has
	// landed up to there.
	if s.part || v == rdma.Write && st == transport.StatusFull {
		return err
	}
	return rdma.NoEffect(err)
}

// Lose says that there is no answer, and why. It runs in the goroutine that breaks the link, or
// reads.
func (s *sent) Lose(err error) {
	s.lost = err
	s.ep.Waits.Arrived(s)
}

// Complete completes the ops of a frame that was answered, or will never be. It runs in the worker,
// when it collects its inbox. A verb that strayed takes down the worker's connection to that node
// for good, as one in error would be: what it posts there later fails at once. A revocation does
// not: it is an rdma.ErrAccess as well, but the nodes refuse that life by themselves.
func (s *sent) Complete() {
	e, b := s.ep, s.batch
	for _, i := range s.ops {
		op := b.Op(i)
		if s.lost != nil {
			op.Fail(s.lost)
		}
		if op.Err != nil && e.Lost[s.node] == nil && errors.Is(op.Err, rdma.ErrAccess) &&
			!errors.Is(op.Err, rdma.ErrRevoked) {
			e.Lost[s.node] = fmt.Errorf("connection to node %d is down since %w", s.node, op.Err)
		}
		// The op completes when no part of it is in flight any more: its buffer may be used again
		// then.
		if s.part {
			if *s.left--; *s.left > 0 {
				continue
			}
		}
		b.Complete(i)
	}
	s.batch = nil
	e.Flying[s.node]--
	e.spares = append(e.spares, s)
}

// Wait waits for n chains of b. After rdma.ErrTimeout the rest is in flight, and is read while the
// worker does not wait: it may be waited for again. A wait that is over when it begins takes no
// system call.
func (e *Endpoint) Wait(b *rdma.Batch, n int, within time.Duration) error {
	if n == rdma.All || n > b.Chains() {
		n = b.Chains()
	}
	e.Waits.Collect()
	if b.Done() >= n {
		e.Waited(b)
		return nil
	}
	// on realtime.Now; 0: there is none
	until := time.Duration(0)
	if within != rdma.Forever {
		until = realtime.Now() + max(within, 1)
	}
	for at := 0; ; {
		at = e.await(b, n, at, until)
		e.Waits.Collect()
		if b.Done() >= n {
			e.Waited(b)
			return nil
		}
		if until > 0 && realtime.Now() >= until {
			e.LeaveToOthers()
			return fmt.Errorf("wait for %d of %d chains: %w", n, b.Chains(), rdma.ErrTimeout)
		}
	}
}

// await waits until something has arrived. The ops of b up to number at are complete; it returns up
// to where they are now. Where all chains have to end, it does not matter which node answers first:
// the worker waits for that of the first op that is left, and reads that connection itself. It does
// so, too, where only one node is left. Otherwise it reads none: a goroutine of each link does,
// which costs a switch between threads.
func (e *Endpoint) await(b *rdma.Batch, n, at int, until time.Duration) int {
	for b.Completed(at) {
		at++
	}
	node := b.Op(at).Addr.Node()
	if n == b.Chains() || !others(b, at, node) {
		e.Link(node).Await(e.Waits, until)
		return at
	}
	// Any of several nodes may be the first to answer.
	for i, n := at, 0; i < b.Len() && n < mostAside; i++ {
		if !b.Completed(i) {
			n = e.Waits.Ask(e.Link(b.Op(i).Addr.Node()))
		}
	}
	e.Waits.ParkAside(until)
	return at
}

// mostAside bounds the nodes of which one batch's first answers are waited for; those of others
// come a moment later. Each costs the waking of a goroutine.
const mostAside = 16

// others reports whether ops of b behind number at are in flight to other nodes.
func others(b *rdma.Batch, at, node int) bool {
	for i := at; i < b.Len(); i++ {
		if !b.Completed(i) && b.Op(i).Addr.Node() != node {
			return true
		}
	}
	return false
}

// Go starts a task with an endpoint of its own, which has an identity of its own. Once the fabric
// closes, that endpoint answers rdma.ErrClosed, which is how the task learns that it has to return.
// The fabric's Close joins it. A panic in f ends the process.
func (e *Endpoint) Go(name string, f func(rdma.Endpoint)) error {
	return e.fabric.Task(e.fabric.Open, name, f)
}
