package rowan

import (
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// SenderOptions describe a source of a log's entries.
type SenderOptions struct {
	Log Options // those of the receiver
	// Source is the source's number, below Log.Sources. One worker at a time is a source: the one
	// before was fenced off or has ended, with nothing in flight.
	Source uint16
	// Above is a stamp that no earlier entry of the source exceeds: the sender's stamps go on behind
	// it. A term in the upper bits, which grows with each worker that is the source, will do.
	Above uint64
	// Reserved says that the source needs no leave: what it appends goes into the reserve, when the
	// log is full for others. It bounds itself. It is for what makes room, and for what must not fail.
	Reserved bool
	// Later has NewSender not wait for the log's node: until Try has heard from it, there is no leave.
	Later bool
}

// Sender appends a source's entries to a log. It belongs to its worker.
type Sender struct {
	ep     rdma.Endpoint
	o      SenderOptions
	ring   rdma.RingAddr
	l      layout
	counts bool
	stamp  uint64

	// Bytes, of all workers that were the source: what the receiver has granted, as far as known; what
	// of it was reserved, and spent; and what the receiver was told of that.
	granted, reserved, spent, told uint64

	question *rdma.Batch // for more leave, in flight; nil: there is none
	asked    uint64      // what it told
	full     bool        // the last answer was that there is no more
	taken    bool        // the leave of earlier workers that were the source was taken over
}

// NewSender returns a sender. The error wraps rdma.ErrNotSupported on a fabric without rings.
func NewSender(ep rdma.Endpoint, o SenderOptions) (*Sender, error) {
	p, err := rdma.Rings(ep)
	if err != nil {
		return nil, err
	}
	o.Log = o.Log.withDefaults()
	if err := o.Log.check(p); err != nil {
		return nil, err
	}
	if int(o.Source) >= o.Log.Sources {
		return nil, fmt.Errorf("send as source %d of %d: %w", o.Source, o.Log.Sources, rdma.ErrAccess)
	}
	ring := rdma.RingAt(o.Log.Node, o.Log.Ring)
	s := &Sender{ep: ep, o: o, ring: ring, l: newLayout(p, o.Log.Secret, ring), counts: p.Counts, stamp: o.Above}
	if !o.Reserved && !o.Later {
		err = s.takeOver()
	}
	return s, err
}

// Add adds the append of an entry to a batch, under a stamp of its own: an entry that is appended
// again is another one. Entries of a source land in the order of their stamps, within each stream.
// The caller has reserved for it, and posts the batch before it adds to another.
func (s *Sender) Add(b *rdma.Batch, kind uint8, data []byte) (*rdma.Op, error) {
	n := s.l.sizeOf(len(data))
	if n > rdma.MaxMessage {
		return nil, fmt.Errorf("append %d bytes with their headers to %s: %w", n, s.ring, rdma.ErrMessageSize)
	}
	p := b.Alloc(n)
	s.stamp++
	s.l.seal(p, header{kind: kind, source: s.o.Source, length: len(data), stamp: s.stamp}, data)
	return b.Append(s.ring, p), nil
}

// Raise has the stamps of entries that are added from here on go on behind one, unless they are
// there already.
func (s *Sender) Raise(above uint64) { s.stamp = max(s.stamp, above) }

// Stamp returns the stamp of the last entry that was added, or what stamps go on behind.
func (s *Sender) Stamp() uint64 { return s.stamp }

// Acknowledged is asked once of each op that is complete. It returns nil when the op, which was
// posted at the time posted, has its entry in the log for good. Otherwise the entry may be found or
// not, until it is appended again.
func (s *Sender) Acknowledged(op *rdma.Op, posted time.Duration) error {
	if !s.o.Reserved {
		s.spent += s.l.taken(len(op.Buf))
	}
	switch took := s.ep.Now() - posted; {
	case op.Err != nil:
		return op.Err
	case !s.counts && took > AckWithin:
		return fmt.Errorf("append to %s, after %v: %w", s.ring, took, ErrLate)
	}
	return nil
}

// Pauses of Append while there is no room: the receiver makes some all the time.
const (
	firstPause = 10 * time.Microsecond
	mostPause  = time.Millisecond
)

// Append appends an entry, again when it was acknowledged too late, or when the log was full, the
// ring dry or not there, for as long as the given time. So it may be in the log more than once, the
// last time under the highest stamp. One that is in flight when the time is over keeps its leave
// until the source has a new sender.
func (s *Sender) Append(kind uint8, data []byte, within time.Duration) error {
	until := s.ep.Now() + within
	for pause := firstPause; ; pause = min(2*pause, mostPause) {
		err := s.once(kind, data, until-s.ep.Now())
		switch {
		case err == nil:
			return nil
		case errors.Is(err, ErrLate):
		case errors.Is(err, rdma.ErrFull), errors.Is(err, ErrAsked), errors.Is(err, rdma.ErrRingDry),
			errors.Is(err, rdma.ErrNoRing):
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
	if err := s.Reserve(len(data)); err != nil {
		return err
	}
	b := s.ep.Batch()
	defer b.Release()
	op, err := s.Add(b, kind, data)
	if err != nil {
		s.Return(len(data))
		return err
	}
	posted := s.ep.Now()
	if err := s.ep.Post(b.As("append")); err != nil {
		s.Return(len(data))
		return err
	}
	if err := s.ep.Wait(b, rdma.All, within); err != nil {
		return err
	}
	return s.Acknowledged(op, posted)
}
