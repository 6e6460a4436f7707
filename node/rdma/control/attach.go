package control

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/transport"
)

// What an attach frame asks for, in the place of its number of items.
const (
	AttachAsk  = iota // whether the worker may post
	AttachNew         // a connection to the node's memory, in the place of one that it may have
	AttachEnd         // the end of it
	AttachRing        // and on: the same of a connection to a ring
)

// MaxOffer bounds in bytes what a device's two ends have to tell each other. Both ends pad it to
// whole words. An error's text is cut off there, too.
const MaxOffer = 256

// TargetBytes are those of a ring's number and stream in an attach frame, u32 each, behind the
// rights and before what the device offers.
const TargetBytes = 8

// What follows is for fabrics with verbs that go past this package's connections, from device to
// device.

// Attach asks a node for a connection from device to device, and ends the one that the worker had
// there before: none of the verbs that were posted to it is executed any more. The answer is the
// node's Registration's. Errors are those of verbs. It is executed in the order of the connection
// to the node, once. When the answer is lost the worker does not know whether there is a
// connection, and asks for another one, which ends it.
func (w *Worker) Attach(node int, offer []byte) ([]byte, error) {
	answer, err := w.attach(node, AttachNew, nil, offer)
	if err != nil {
		return nil, fmt.Errorf("connect to the memory of node %d: %w", node, err)
	}
	return answer, nil
}

// MayPost asks a node whether it would execute the worker's verbs: nil, or why not. It wraps
// rdma.ErrNodeDown when there is no answer in time. The answer was true when the node gave it. A
// fence may have come since. A node that refuses has ended the worker's connection before it
// answers: verbs that were posted to it do not land later.
func (w *Worker) MayPost(node int) error {
	_, err := w.attach(node, AttachAsk, nil, nil)
	return err
}

// Detach tells a node that the worker needs its connection to the memory no more. When it returns
// nil, none of the verbs that were posted to it is executed any more. After another error that is
// so once the worker has attached anew, or the process another connection to the node.
func (w *Worker) Detach(node int) error {
	_, err := w.attach(node, AttachEnd, nil, nil)
	return err
}

// AttachRing is Attach for a stream of a ring. It ends the connection that the worker had to that
// stream, and to no other. The error wraps rdma.ErrNoRing when there is none.
func (w *Worker) AttachRing(to rdma.RingAddr, stream int, offer []byte) ([]byte, error) {
	answer, err := w.attach(to.Node(), AttachRing+AttachNew, RingTarget(to, stream), offer)
	if err != nil {
		return nil, fmt.Errorf("connect to %s: %w", to, err)
	}
	return answer, nil
}

// MayAppend is MayPost for the worker's connection to a stream of a ring. When the ring has ended
// the error wraps rdma.ErrNoRing, and blocks says how many have landed over the connection; -1: it
// is not known. Blocks land in the order in which they were posted, so that blocks says which ones
// did. The answer is two words: the number, and whether the connection has ended.
func (w *Worker) MayAppend(to rdma.RingAddr, stream int) (blocks int64, err error) {
	p, err := w.attach(to.Node(), AttachRing+AttachAsk, RingTarget(to, stream), nil)
	if err != nil {
		return -1, err
	}
	if len(p) != 16 {
		return -1, fmt.Errorf("%d bytes answer what has landed: %w", len(p), transport.ErrProtocol)
	}
	blocks = int64(binary.LittleEndian.Uint64(p))
	if binary.LittleEndian.Uint64(p[8:]) != 0 {
		err = fmt.Errorf("%s has ended: %w", to, rdma.ErrNoRing)
	}
	return blocks, err
}

// DetachRing is Detach for a stream of a ring.
func (w *Worker) DetachRing(to rdma.RingAddr, stream int) error {
	_, err := w.attach(to.Node(), AttachRing+AttachEnd, RingTarget(to, stream), nil)
	return err
}

// RingTarget is where an attach frame for a ring goes, behind the rights: see TargetBytes.
func RingTarget(to rdma.RingAddr, stream int) []byte {
	return binary.LittleEndian.AppendUint64(nil, uint64(to.Number())|uint64(stream)<<32)
}

// attach sends an attach frame, and waits for the answer for as long as transport.DeadAfter. The
// answer is the caller's: the link's reader copied it out of the frame. to is nil but for a ring,
// and offer nil but for a new connection. After an error that wraps rdma.ErrNodeDown the node may
// have done it.
func (w *Worker) attach(node, what int, to, offer []byte) ([]byte, error) {
	if err := w.pool.Down(node); err != nil {
		return nil, err
	}
	c := w.newCall()
	l := w.pool.links[node].verbs
	err := l.Send(transport.KindAttach, what, c, func(out []byte) []byte {
		out = append(append(w.Claim(out, node), to...), offer...)
		return append(out, make([]byte, -len(offer)&7)...) // bodies are whole words
	})
	if err != nil {
		return nil, err
	}
	if err := w.answeredSoon(c, node, transport.DeadAfter); err != nil {
		return nil, err // the link's reader may still write the answer
	}
	return c.answer, nil
}

// Task starts a task with an endpoint that open makes. Close joins it before it gives back what is
// the process's: see rdma.Env.Go.
func (p *Pool) Task(open func(name string) (rdma.Endpoint, error), name string, work func(rdma.Endpoint)) error {
	return p.tasks.Go(open, name, work)
}

// Usable is nil, or an error wrapping rdma.ErrClosed once the endpoint or its fabric was closed.
func (w *Worker) Usable() error {
	if w.closed || w.pool.closing.Load() {
		return fmt.Errorf("endpoint of client %d: %w", w.Identity.ID, rdma.ErrClosed)
	}
	return nil
}

// Epoch returns the epoch that the worker has joined.
func (w *Worker) Epoch() uint64 { return w.joined }

// Reach reports whether the process is connected to a node, by which of its connections, counted
// from 1, or why it is not. Connections from device to device end with the one that they were asked
// for over: another number means that the worker has lost them.
func (ctl *Control) Reach(node int) (connection uint64, err error) {
	if err := ctl.Down(node); err != nil {
		return 0, err
	}
	return ctl.links[node].verbs.Reach()
}

// Served returns until when, on realtime.Boot, a node serves for sure, and the epoch that was
// fenced there last, as it said then. What a device executed was true only if it completed before:
// a node that was expelled does not say so any more, and its device goes on.
func (ctl *Control) Served(node int) (until time.Duration, fence uint64) {
	return ctl.links[node].verbs.Served()
}
