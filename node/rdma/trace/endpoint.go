package trace

import (
	"encoding/binary"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// open bounds the batches of one worker of which a ring still waits for answers; those of older
// ones stay unknown.
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

// Endpoint returns ep, logged in the ring under a name. Answers are seen when the worker waits for
// them.
func (g *Ring) Endpoint(ep rdma.Endpoint, name string) rdma.Endpoint {
	return &endpoint{Endpoint: ep, ring: g, name: name}
}

// Post logs the ops of b as they are sent: what fails at once is seen in Wait.
func (e *endpoint) Post(b *rdma.Batch) error {
	e.batches++
	l := logged{batch: b}
	at, trip := e.Now(), e.Counters().Trips+1
	var stalls stalls
	for i := range b.Len() {
		op := b.Op(i)
		r := Record{
			At: at, Worker: e.name, Step: b.Step(), Batch: e.batches, Chain: b.ChainOf(i), Trip: trip + stalls.of(op),
			Verb: op.Verb, Addr: op.Addr, Len: op.Len(), Fence: op.Fence, Expect: op.Expect, Value: op.Value,
		}
		if op.Verb == rdma.Write || op.Verb == rdma.Send || op.Verb == rdma.Append {
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
	e.answers(b) // of a fabric that executes a batch inside Post
	return nil
}

// stalls counts, by node, how often the ops of a batch have stalled, as package rdma counts trips.
type stalls map[int]*stalled

type stalled struct {
	times  uint64
	flying bool // a READ or an atomic, for which a fence waits
}

// of returns how often ops of the node have stalled up to op, which is the next one.
func (s *stalls) of(op *rdma.Op) uint64 {
	if *s == nil {
		*s = stalls{}
	}
	n := (*s)[op.Addr.Node()]
	if n == nil {
		n = new(stalled)
		(*s)[op.Addr.Node()] = n
	}
	if op.Fence && n.flying {
		n.times++
		n.flying = false
	}
	n.flying = n.flying || op.Verb.Fetches()
	return n.times
}

// Wait logs the answers that it brought.
func (e *endpoint) Wait(b *rdma.Batch, n int, within time.Duration) error {
	err := e.Endpoint.Wait(b, n, within)
	e.answers(b)
	for _, l := range e.flying {
		if l.batch == b && err == nil {
			for _, n := range l.records {
				e.ring.change(n, func(r *Record) { r.Waited = true })
			}
		}
	}
	if b.Finished() {
		e.forget(b)
	}
	return err
}

// answers logs what is complete of a batch.
func (e *endpoint) answers(b *rdma.Batch) {
	for _, l := range e.flying {
		if l.batch == b {
			for i, n := range l.records {
				if b.Completed(i) {
					e.ring.change(n, func(r *Record) { r.answer(b.Op(i)) })
				}
			}
		}
	}
}

// Listen opens the worker's mailbox. What comes there is logged as the SENDs of those that sent it.
func (e *endpoint) Listen(o rdma.BoxOptions) (rdma.Mailbox, error) {
	m, err := rdma.Listen(e.Endpoint, o)
	if err != nil {
		return nil, err
	}
	return &mailbox{m, e}, nil
}

type mailbox struct {
	rdma.Mailbox
	e *endpoint
}

// Await logs the answers that it brought.
func (m *mailbox) Await(within time.Duration) error {
	err := m.Mailbox.Await(within)
	for _, l := range m.e.flying {
		m.e.answers(l.batch)
	}
	return err
}

// Rings returns what the fabric promises of rings.
func (e *endpoint) Rings() (rdma.RingPromises, error) { return rdma.Rings(e.Endpoint) }

// OpenRing opens a ring. What lands in it is logged as the APPENDs of those that sent it.
func (e *endpoint) OpenRing(o rdma.RingOptions) (rdma.Ring, error) {
	return rdma.OpenRing(e.Endpoint, o)
}

// Call logs a two-sided call.
func (e *endpoint) Call(node int, q *rdma.Request, within time.Duration) error {
	n := e.ring.add(Record{
		At: e.Now(), Worker: e.name, Step: q.Step, Trip: e.Counters().Trips + 1, Proc: q.Proc,
		Addr: rdma.At(max(node, 0), 0),
	})
	err := e.Endpoint.Call(node, q, within)
	e.ring.change(n, func(r *Record) { r.Done, r.Waited, r.Err = true, true, err })
	return err
}

// Go starts a task with an endpoint that is logged, too.
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
	switch {
	case op.Verb == rdma.FetchAdd && op.Err == nil:
		r.After = op.Result + op.Value
	case op.Verb == rdma.MaskedCompareSwap && op.Swapped():
		r.After = op.Result&^op.SwapMask | op.Value&op.SwapMask
	case op.Verb == rdma.CompareSwap && op.Swapped():
		r.After = op.Value
	default:
		r.After = op.Result
	}
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
