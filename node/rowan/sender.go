package rowan

import (
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// SenderOptions describe a source of a log's entries.
type SenderOptions struct {
	Ring rdma.RingAddr
	// Source is the source's number, below Options.Sources. One worker at a time is a source: the one before was fenced off
	// or has ended, with nothing in flight.
	Source uint16
	// Above is a stamp that no earlier entry of the source exceeds: the sender's stamps go on behind it. A term in the upper
	// bits, which grows with each worker that is the source, will do.
	Above uint64
	// Secret is that of the log's Options.
	Secret uint64
}

// Sender appends a source's entries to a log. It belongs to its worker.
type Sender struct {
	ep     rdma.Endpoint
	o      SenderOptions
	l      layout
	counts bool
	stamp  uint64
}

// NewSender returns a sender. The error wraps rdma.ErrNotSupported on a fabric without rings.
func NewSender(ep rdma.Endpoint, o SenderOptions) (*Sender, error) {
	p, err := rdma.Rings(ep)
	if err != nil {
		return nil, err
	}
	return &Sender{ep: ep, o: o, l: newLayout(p.MTU, o.Secret, o.Ring), counts: p.Counts, stamp: o.Above}, nil
}

// Add adds the append of an entry to a batch, under a stamp of its own: an entry that is appended again is another one.
// Entries of a source land in the order of their stamps. The caller posts the batch before it adds to another, and asks
// Acknowledged once the op is complete.
func (s *Sender) Add(b *rdma.Batch, kind uint8, data []byte) (*rdma.Op, error) {
	n := s.l.sizeOf(len(data))
	if n > rdma.MaxMessage {
		return nil, fmt.Errorf("append %d bytes with their headers to %s: %w", n, s.o.Ring, rdma.ErrMessageSize)
	}
	p := b.Alloc(n)
	s.stamp++
	s.l.seal(p, header{kind: kind, source: s.o.Source, length: len(data), stamp: s.stamp}, data)
	return b.Append(s.o.Ring, p), nil
}

// Acknowledged returns nil when a completed op has its entry in the log for good, posted at the time posted. Otherwise the
// entry may be there or not, and may be found by some scans and not by others, until it is appended again.
func (s *Sender) Acknowledged(op *rdma.Op, posted time.Duration) error {
	switch took := s.ep.Now() - posted; {
	case op.Err != nil:
		return op.Err
	case !s.counts && took > AckWithin:
		return fmt.Errorf("append to %s, after %v: %w", s.o.Ring, took, ErrLate)
	}
	return nil
}

// Pauses of Append while the ring is dry: the receiver pushes segments all the time.
const (
	firstPause = 10 * time.Microsecond
	mostPause  = time.Millisecond
)

// Append appends an entry, again when it was acknowledged too late, or when the ring was dry or not there, for as long as
// the given time. So it may be in the log more than once, the last time under the highest stamp.
func (s *Sender) Append(kind uint8, data []byte, within time.Duration) error {
	until := s.ep.Now() + within
	for pause := firstPause; ; pause = min(2*pause, mostPause) {
		err := s.once(kind, data, until-s.ep.Now())
		switch {
		case err == nil:
			return nil
		case errors.Is(err, ErrLate):
		case errors.Is(err, rdma.ErrRingDry), errors.Is(err, rdma.ErrNoRing):
			s.ep.Sleep(pause)
		default:
			return err
		}
		if s.ep.Now() >= until {
			return fmt.Errorf("given up after %v: %w: %w", within, rdma.ErrTimeout, err)
		}
	}
}

func (s *Sender) once(kind uint8, data []byte, within time.Duration) error {
	b := s.ep.Batch()
	defer b.Release()
	op, err := s.Add(b, kind, data)
	if err != nil {
		return err
	}
	posted := s.ep.Now()
	if err := s.ep.Post(b.As("append")); err != nil {
		return err
	}
	if err := s.ep.Wait(b, rdma.All, within); err != nil {
		return err
	}
	return s.Acknowledged(op, posted)
}
