package trace

import (
	"encoding/binary"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// open bounds the batches of one worker whose answers a ring still waits for; those of older ones stay unknown.
const open = 64

// endpoint logs what its worker posts.
type endpoint struct {
	rdma.Endpoint
	ring    *Ring
	name    string
	batches uint64
	flying  []logged
}

// logged is a batch that is in flight and the numbers of its records, an op each.
type logged struct {
	batch   *rdma.Batch
	records []uint64
}

// Endpoint returns ep, logged in the ring under a name. Answers are seen when the worker waits for them.
func (g *Ring) Endpoint(ep rdma.Endpoint, name string) rdma.Endpoint {
	return &endpoint{Endpoint: ep, ring: g, name: name}
}

// Post logs the ops of b as they are sent: what fails at once is seen in Wait.
func (e *endpoint) Post(b *rdma.Batch) error {
	e.batches++
	l := logged{batch: b}
	at := e.Now()
	for i := range b.Len() {
		op := b.Op(i)
		r := Record{
			At: at, Worker: e.name, Step: b.Step(), Batch: e.batches, Chain: b.ChainOf(i), Verb: op.Verb, Addr: op.Addr,
			Len: op.Len(), Fence: op.Fence, Expect: op.Expect, Value: op.Value,
		}
		if op.Verb == rdma.Write {
			r.keep(op.Buf)
		}
		l.records = append(l.records, e.ring.add(r))
	}
	err := e.Endpoint.Post(b)
	if err != nil {
		for _, n := range l.records {
			e.ring.change(n, func(r *Record) { r.Done, r.Err = true, err })
		}
		return err
	}
	e.forget(b) // its queue has used the batch again: the answers of its last use were never waited for
	if len(e.flying) == open {
		e.flying = append(e.flying[:0], e.flying[1:]...)
	}
	e.flying = append(e.flying, l)
	return nil
}

// Wait logs the answers that it brought.
func (e *endpoint) Wait(b *rdma.Batch, n int, within time.Duration) error {
	err := e.Endpoint.Wait(b, n, within)
	for _, l := range e.flying {
		if l.batch == b {
			for i, n := range l.records {
				if b.Completed(i) {
					e.ring.change(n, func(r *Record) { r.answer(b.Op(i)) })
				}
			}
		}
	}
	if b.Finished() {
		e.forget(b)
	}
	return err
}

// Call logs a two-sided call.
func (e *endpoint) Call(node int, q *rdma.Request, within time.Duration) error {
	n := e.ring.add(Record{
		At: e.Now(), Worker: e.name, Step: q.Step, Proc: q.Proc, Addr: rdma.At(max(node, 0), 0),
	})
	err := e.Endpoint.Call(node, q, within)
	e.ring.change(n, func(r *Record) { r.Done, r.Err = true, err })
	return err
}

// Go starts a task whose endpoint is logged, too.
func (e *endpoint) Go(name string, f func(rdma.Endpoint)) error {
	return e.Endpoint.Go(name, func(own rdma.Endpoint) { f(e.ring.Endpoint(own, name)) })
}

func (e *endpoint) forget(b *rdma.Batch) {
	for i, l := range e.flying {
		if l.batch == b {
			e.flying = append(e.flying[:i], e.flying[i+1:]...)
			return
		}
	}
}

func (r *Record) answer(op *rdma.Op) {
	r.Done, r.Result, r.Err = true, op.Result, op.Err
	if op.Verb == rdma.Read && op.Err == nil {
		r.keep(op.Buf)
	}
}

func (r *Record) keep(p []byte) {
	var all [8 * kept]byte
	copy(all[:], p)
	for i := range r.Words {
		r.Words[i] = binary.LittleEndian.Uint64(all[8*i:])
	}
}
