package rowan

import (
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// SenderOptions describe one source of a log's entries.
type SenderOptions struct {
	Log Options // as at the receiver
	// Source is the source's number, below Log.Sources. Only one worker at a time may be a source:
	// the one before has ended or was fenced off, and has nothing in flight.
	Source uint16
	// Above is a stamp that no earlier entry of the source exceeds. The sender's stamps begin above
	// it. A term in the upper bits that grows with each worker of the source is enough.
	Above uint64
	// Reserved lets the source append without leave, into the reserve when the log is full for
	// others. The caller bounds what it appends. It is for appends that make room, and for those
	// that must not fail.
	Reserved bool
	// Later makes NewSender return without waiting for the log's node. There is no leave before the
	// answer to a question of Try has arrived.
	Later bool
}

// Sender appends the entries of one source to a log. It belongs to its worker, and is not safe for
// concurrent use.
type Sender struct {
	ep     rdma.Endpoint
	o      SenderOptions
	ring   rdma.RingAddr
	l      layout
	counts bool
	// Stamp of the last entry that was added. It only grows.
	stamp uint64

	// Bytes since the log began, over all workers of the source. granted: by the receiver, as far
	// as the sender knows. reserved: by Try, at most granted. spent: of reserved, what is complete.
	// told: of spent, what the receiver was told.
	granted, reserved, spent, told uint64

	// The question for more leave that is in flight; nil: none is. The sender owns the batch.
	question *rdma.Batch
	// What the question says is spent.
	asked uint64
	// The last answer was that the receiver has no more.
	full bool
	// The leave of earlier workers of the source was declared spent: see takeOver.
	taken bool
}

// NewSender returns a sender. Unless told otherwise (Reserved, Later) it takes over the leave of
// earlier workers of the source, which waits for the log's node. The error wraps
// rdma.ErrNotSupported on a fabric without rings.
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

// Add adds the append of an entry to a batch. Each call takes a new stamp: an entry that is
// appended again is another entry to the log. The entries of a source land in the order of their
// stamps, within each stream. The caller has leave (Try, Reserve), and posts the batch before it
// adds to another one, since that order is the order of posting. The data is copied.
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

// Raise makes the stamps of later entries greater than above. It never lowers them. A caller raises
// them to a new term.
func (s *Sender) Raise(above uint64) { s.stamp = max(s.stamp, above) }

// Stamp returns the stamp of the last entry, or the one that the next is above.
func (s *Sender) Stamp() uint64 { return s.stamp }

// Acknowledged must be called once for each op that is complete. posted is when the op was posted.
// It returns nil if the entry is in the log for good. Otherwise the entry may be found or not, and
// the caller may append it again. In both cases the leave is spent.
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

// Append appends one entry and waits. It tries again, for up to the given time, if the
// acknowledgment came too late, the log was full, or the ring was dry or absent. So the entry may
// be in the log several times; the last one has the highest stamp. An append that is in flight at
// the end keeps its leave until the source has a new sender. The error then wraps rdma.ErrTimeout.
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

// once is one attempt of Append. The batch is released in all cases: the fabric keeps its buffers
// while it is in flight.
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
