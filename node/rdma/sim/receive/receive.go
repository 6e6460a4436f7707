// Package receive is the receive queue of a ring on a simulated node: it gives each block of an
// entry its place in the ring's buffers. On fabrics that promise several streams, entries go to
// streams by their lengths, and each stream takes buffers of its own.
package receive

import (
	"fmt"
	"math"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// Queue is where the blocks of a ring's entries land.
type Queue interface {
	// Post and Count are as of rdma.RingQueue.
	Post(buffers []rdma.Span, memory uint64, mtu int) error
	Count() rdma.RingCount
	// Place takes the next place for a block of n bytes of an entry of so many. The error is
	// rdma.ErrRingDry, or ErrNotReady.
	Place(entry, n int) (Place, error)
}

// Place is where a block lands. It is in flight to that until Landed.
type Place struct {
	rdma.RingPlace
	in *rdma.RingQueue
}

// Landed says that all of the block is in memory.
func (p Place) Landed() { p.in.Landed(p.RingPlace) }

// New returns the queue of a ring on a fabric that promises p.
func New(o rdma.RingOptions, p rdma.RingPromises) Queue {
	if p.Streams <= 1 {
		return oneStream{rdma.NewRingQueue(o)}
	}
	q := &streams{o: o, p: p, all: make([]stream, p.Streams)}
	for i := range q.all {
		q.all[i].queue = rdma.NewRingQueue(rdma.RingOptions{Node: o.Node, Buffers: mostOpen})
	}
	return q
}

type oneStream struct{ *rdma.RingQueue }

func (q oneStream) Place(_, n int) (Place, error) {
	p, err := q.RingQueue.Place(n)
	return Place{p, q.RingQueue}, err
}

// ErrNotReady: a stream takes another of the ring's buffers when what is in flight has landed. The
// device asks for the block again until then.
var ErrNotReady = fmt.Errorf("blocks are in flight to all buffers of the stream: %w", rdma.ErrRingDry)

// NotReadyPause is between two tries of such a block, as on soft-RoCE.
const NotReadyPause = 640 * time.Microsecond

// mostOpen is how many buffers of a stream are open at a time, as on ibverbs: one that fills, and
// one ahead.
const mostOpen = 2

// streams are the queue of a ring with entries that land in several streams. The ring's buffers go
// to streams one by one, in order, as these need them.
type streams struct {
	o      rdma.RingOptions
	p      rdma.RingPromises
	all    []stream
	posted []rdma.Span // and not begun
	begun  uint64
}

type stream struct {
	queue   *rdma.RingQueue // of the buffers that are open
	open    []uint64        // these, by the numbers of their posts, from 1
	settled uint64          // buffers of the queue that were
	wanted  bool            // an entry came
}

func (q *streams) Post(buffers []rdma.Span, memory uint64, mtu int) error {
	free := q.o.Buffers - len(q.posted) - len(q.open())
	if err := rdma.CheckRingBuffers(buffers, free, q.o.Node, memory, mtu); err != nil {
		return err
	}
	q.posted = append(q.posted, buffers...)
	q.feed()
	return nil
}

func (q *streams) Count() rdma.RingCount {
	q.feed()
	return rdma.CountOpen(q.begun, q.open())
}

func (q *streams) Place(entry, _ int) (Place, error) {
	i := q.p.Stream(entry)
	s := &q.all[i]
	s.wanted = true
	q.feed()
	p, err := s.queue.Place(q.p.Place(i))
	if err != nil && len(q.posted) > 0 {
		err = ErrNotReady
	}
	return Place{p, s.queue}, err
}

// feed begins buffers, first for streams that have none.
func (q *streams) feed() {
	for have := range mostOpen {
		for i := range q.all {
			s := &q.all[i]
			if s.settle(); !s.wanted || len(s.open) != have || len(q.posted) == 0 {
				continue
			}
			if err := s.queue.Post(q.posted[:1], math.MaxUint64, 0); err != nil {
				panic(fmt.Sprintf("sim: a stream with %d open buffers does not take another: %v", have, err))
			}
			q.posted = q.posted[1:]
			q.begun++
			s.open = append(s.open, q.begun)
		}
	}
}

func (s *stream) settle() {
	settled := s.queue.Count().Settled
	s.open = s.open[settled-s.settled:]
	s.settled = settled
}

// open returns the numbers of the buffers that are begun and not settled.
func (q *streams) open() (all []uint64) {
	for i := range q.all {
		s := &q.all[i]
		s.settle()
		all = append(all, s.open...)
	}
	return all
}
