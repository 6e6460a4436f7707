package rowan

import (
	"encoding/binary"
	"fmt"

	"github.com/farkv/farkv/node/rdma"
)

// A sender cannot be told that the log is full: a ring that is dry refuses everything, what would make room, too. So a
// source has leave for so many bytes, as a rule, and asks for more before it has none. The log begins with two words
// for each source, which count bytes for ever: what the receiver has granted, and of that, what the sender says is
// spent, because it landed, or never will. What is granted and not spent has its room in segments that are in the ring.

// outstanding returns how much a source may append yet.
func outstanding(grant, spent uint64) uint64 { return grant - min(grant, spent) }

// readSpent reads what the senders say. Room that is counted later has what they spent in it.
func (r *Receiver) readSpent() error { return r.readWords(r.spent, r.o.spentAt(0)) }

func (r *Receiver) readWords(words []uint64, a rdma.Addr) error {
	p := make([]byte, 8*len(words))
	if err := r.read(p, a); err != nil {
		return err
	}
	for i := range words {
		words[i] = binary.LittleEndian.Uint64(p[8*i:])
	}
	return nil
}

// grant gives sources leave, each up to Options.Credit, as far as there is room in the ring for all of it, beyond the
// reserve. The one that is first takes turns, so that none goes without for long where there is little.
func (r *Receiver) grant() error {
	room := max(0, r.unbegun-r.o.kept()) * r.o.usable(r.l.mtu)
	for i, g := range r.grants {
		room -= int(outstanding(g, r.spent[i]))
	}
	b := r.ep.Batch()
	defer b.Release()
	for k := range r.grants {
		i := (r.turn + k) % len(r.grants)
		more := min(r.o.Credit-int(outstanding(r.grants[i], r.spent[i])), room)
		if more >= r.o.Credit/2 { // a source with less than half may want as much; one with more does not
			room -= more
			r.grants[i] += uint64(more)
			b.WriteWord(r.o.grantAt(i), r.grants[i])
		}
	}
	r.turn++
	return r.persist(b, "grant")
}

// Reserve takes leave to append an entry with so much data: Add uses it. Without any left it asks for more, which takes
// a trip. The error wraps rdma.ErrFull when there is none: the log's segments are taken, or the receiver is behind.
func (s *Sender) Reserve(length int) error {
	if s.o.Reserved {
		return nil
	}
	n, credit := s.l.taken(s.l.sizeOf(length)), uint64(s.o.Log.Credit)
	if n > credit/2 {
		return fmt.Errorf("reserve %d bytes of %s of %d at a time: %w", n, s.ring, credit/2, rdma.ErrMessageSize)
	}
	left := s.granted - s.reserved
	if n > left || left < credit/2 && s.spent-s.told >= credit/4 {
		if err := s.ask(); err != nil {
			return err
		}
	}
	if left = s.granted - s.reserved; n > left {
		return fmt.Errorf("reserve %d bytes of %s, with %d left: %w", n, s.ring, left, rdma.ErrFull)
	}
	s.reserved += n
	return nil
}

// Return gives back what Reserve took for an entry that was not added.
func (s *Sender) Return(length int) {
	if !s.o.Reserved {
		s.reserved -= s.l.taken(s.l.sizeOf(length))
	}
}

// ask tells the receiver what is spent, and looks at what it has granted since.
func (s *Sender) ask() error {
	source := int(s.o.Source)
	b := s.ep.Batch()
	defer b.Release()
	b.Chain()
	b.WriteWord(s.o.Log.spentAt(source), s.spent)
	grant := b.Read(s.o.Log.grantAt(source), 8)
	if err := rdma.Do(s.ep, b.As("ask for credit"), patience); err != nil {
		return fmt.Errorf("ask for credit at %s: %w", s.ring, err)
	}
	s.granted, s.told = grant.Word(0), s.spent
	return nil
}

// takeOver gives back what earlier workers that were the source had leave for: nothing of theirs lands any more.
func (s *Sender) takeOver() error {
	granted, err := rdma.ReadWord(s.ep, "take over credit", s.o.Log.grantAt(int(s.o.Source)), patience)
	if err != nil {
		return fmt.Errorf("take over the credit of source %d at %s: %w", s.o.Source, s.ring, err)
	}
	s.granted, s.reserved, s.spent = granted, granted, granted
	return s.ask()
}
