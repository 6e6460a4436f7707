package rowan

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/farkv/farkv/node/rdma"
)

// A sender cannot be told that the log is full: a ring that is dry refuses everything, what would
// make room, too. So a source has leave for so many bytes, as a rule, and asks for more before it
// has none. The log begins with two words for each source, which count bytes for ever: what the
// receiver has granted, and of that, what the sender says is spent, because it landed, or never
// will. What is granted and not spent has its room in segments that are in the ring. The lowest bit
// of the first word says that the receiver had no more for the source when it looked last, which
// tells a log that is full from a receiver that is behind.

// leave encodes the first word.
func leave(granted uint64, none bool) (word uint64) {
	if none {
		word = 1
	}
	return word | granted<<1
}

// outstanding returns how much a source may append yet: it never has more than its credit. The
// words say more when a crash undid what a source had spent, or they were damaged.
func outstanding(grant, spent uint64, credit int) uint64 {
	return min(grant-min(grant, spent), uint64(credit))
}

// readSpent reads what the senders say. Room that is counted later has what they spent in it.
func (r *Receiver) readSpent() error { return r.readWords(r.spent, r.o.spentAt(0)) }

func (r *Receiver) readWords(words []uint64, a rdma.Addr) error {
	if err := read(r.ep, r.words, a); err != nil {
		return err
	}
	for i := range words {
		words[i] = binary.LittleEndian.Uint64(r.words[8*i:])
	}
	return nil
}

// grant gives sources leave, each up to Options.Credit, as far as there is room in the ring for all
// of it; those that are not urgent, beyond what is left of the reserve. The one that is first takes
// turns, so that none goes without for long where there is little.
func (r *Receiver) grant() error {
	usable := r.o.usable(r.l.mtu)
	room, reserve := max(0, r.unbegun-r.o.begins(r.open))*usable, r.o.Reserve*usable
	for i, g := range r.grants {
		left := int(outstanding(g, r.spent[i], r.o.Credit))
		room -= left
		if r.urgent(i) {
			reserve -= left
		}
	}
	b := r.ep.Batch()
	defer b.Release()
	for k := range r.grants {
		i := (r.turn + k) % len(r.grants)
		most := room - max(0, reserve)
		if r.urgent(i) {
			most = room
		}
		wants := r.o.Credit - int(outstanding(r.grants[i], r.spent[i], r.o.Credit))
		switch more := min(wants, most); { // a source with less than half may want as much; one with more does not
		case more >= r.o.Credit/2:
			room -= more
			if r.urgent(i) {
				reserve -= more
			}
			r.grants[i] += uint64(more)
			r.none[i] = false
			b.WriteWord(r.o.grantAt(i), leave(r.grants[i], false))
		case wants >= r.o.Credit/2 && !r.none[i]:
			r.none[i] = true
			b.WriteWord(r.o.grantAt(i), leave(r.grants[i], true))
		}
	}
	r.turn++
	r.moved = r.moved || b.Len() > 0
	return r.t.persist(r.ep, b, "grant")
}

// urgent reports whether a source is.
func (r *Receiver) urgent(source int) bool { return source >= r.o.Sources-r.o.Urgent }

// ErrAsked is wrapped when a writer has no leave, or segment, and has not heard whether there is
// more: what gives it may be behind, or dead.
var ErrAsked = errors.New("the log was asked for leave, and has not answered")

// Reserve is Try, and waits for the answer where it has to ask, which takes a trip. The error wraps
// rdma.ErrFull when the log's segments are taken, and ErrAsked when the receiver is behind.
func (s *Sender) Reserve(length int) error {
	err := s.Try(length)
	if !errors.Is(err, rdma.ErrFull) && !errors.Is(err, ErrAsked) || s.question == nil {
		return err
	}
	if err := s.ep.Wait(s.question, rdma.All, patience); err != nil {
		return fmt.Errorf("ask for credit at %s: %w", s.ring, err)
	}
	if err := s.heed(); err != nil {
		return err
	}
	return s.take(s.l.taken(s.l.sizeOf(length)))
}

// Try takes leave to append an entry with so much data: Add uses it. It does not wait. The error
// wraps rdma.ErrFull when there is none left, and the receiver had no more, and ErrAsked when it
// has not said that. Then the sender has asked for more, or does so now, and the caller tries again
// later: the answer comes like a completion of its own.
func (s *Sender) Try(length int) error {
	if s.o.Reserved {
		return nil
	}
	n, credit := s.l.taken(s.l.sizeOf(length)), uint64(s.o.Log.Credit)
	if n > credit/2 {
		return fmt.Errorf("reserve %d bytes of %s of %d at a time: %w", n, s.ring, credit/2, rdma.ErrMessageSize)
	}
	if err := s.heed(); err != nil {
		return err
	}
	left := s.granted - s.reserved
	if s.question == nil && (n > left || left < credit/2 && s.spent-s.told >= credit/4) {
		if err := s.ask(); err != nil {
			return err
		}
	}
	return s.take(n)
}

// take takes so much of the leave.
func (s *Sender) take(n uint64) error {
	if left := s.granted - s.reserved; n > left {
		err := ErrAsked
		if s.full {
			err = rdma.ErrFull
		}
		return fmt.Errorf("reserve %d bytes of %s, with %d left: %w", n, s.ring, left, err)
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

// ask tells the receiver what is spent, and asks what it has granted since. What earlier workers
// that were the source had leave for is asked first: it is spent, since nothing of theirs lands any
// more.
func (s *Sender) ask() error {
	source := int(s.o.Source)
	b := s.ep.Batch()
	b.Chain()
	if s.taken {
		b.WriteWord(s.o.Log.spentAt(source), s.spent)
	}
	b.Read(s.o.Log.grantAt(source), 8)
	if err := s.ep.Post(b.As("ask for credit")); err != nil {
		b.Release()
		return fmt.Errorf("ask for credit at %s: %w", s.ring, err)
	}
	s.question, s.asked = b, s.spent
	return nil
}

// heed takes the answer of a question, if it has come.
func (s *Sender) heed() error {
	b := s.question
	if b == nil || !b.Finished() {
		return nil
	}
	s.question, s.full = nil, false
	defer b.Release()
	if err := b.Err(); err != nil {
		return fmt.Errorf("ask for credit at %s: %w", s.ring, err)
	}
	word := b.Op(b.Len() - 1).Word(0)
	s.granted, s.told = word>>1, s.asked
	if !s.taken {
		s.taken, s.reserved, s.spent = true, s.granted, s.granted
		return nil // what there is leave for now was not asked yet
	}
	s.full = word&1 != 0
	return nil
}

// takeOver gives back what earlier workers that were the source had leave for, and waits for leave.
func (s *Sender) takeOver() error {
	for range 2 {
		if err := s.ask(); err != nil {
			return err
		}
		if err := s.ep.Wait(s.question, rdma.All, patience); err != nil {
			return fmt.Errorf("take over the credit of source %d at %s: %w", s.o.Source, s.ring, err)
		}
		if err := s.heed(); err != nil {
			return err
		}
	}
	return nil
}
