package rowan

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/farkv/farkv/node/rdma"
)

// Flow control. A ring that has no buffer left refuses all appends, those that would make room too,
// and it cannot tell a sender that the log is full. So a source needs leave for the bytes that it
// appends, and asks for more before its leave is used up.
//
// The log begins with two words for each source, which count bytes for ever: what the receiver has
// granted (written by the receiver alone), and how much of that is spent (written by the sender
// alone), because the append landed or never will. Invariant: what is granted and not spent has its
// room in segments that are in the ring. The lowest bit of the first word says that the receiver
// had no more for this source when it looked last. It tells a full log from a slow receiver.
//
// A crash of the sender leaves leave that is granted and not spent. The next sender of the source
// declares it spent: see takeOver. A crash of the receiver loses nothing: the next one reads the
// grants from memory.

// leave encodes the word that the receiver writes.
func leave(granted uint64, none bool) (word uint64) {
	if none {
		word = 1
	}
	return word | granted<<1
}

// outstanding returns how many bytes a source may still append. It is never more than the credit:
// the words may say more when a crash undid what a source had spent, or when they were damaged.
func outstanding(grant, spent uint64, credit int) uint64 {
	return min(grant-min(grant, spent), uint64(credit))
}

// readSpent reads what the senders say is spent. It comes before the free segments are counted. So
// what is spent by then lies in segments that are not counted as room, and no room is granted
// twice.
func (r *Receiver) readSpent() error { return r.readWords(r.spent, r.o.spentAt(0)) }

// readWords fills words from an array of words at a.
func (r *Receiver) readWords(words []uint64, a rdma.Addr) error {
	if err := read(r.ep, r.words, a); err != nil {
		return err
	}
	for i := range words {
		words[i] = binary.LittleEndian.Uint64(r.words[8*i:])
	}
	return nil
}

// grant gives sources leave, each up to Options.Credit, as long as the ring has room for all of it.
// Sources that are not urgent get nothing of the reserve that urgent ones have not taken yet. The
// source that is served first changes with each call, so that no source starves where there is
// little room.
//
// A grant is durable when grant returns. A crash before that leaves a grant of before, or one with
// its room in segments that the next receiver digests: it is bounded by the credit.
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
	// A source asks for more when less than half of its credit is left. So grants of less than half
	// are refused, and one of half or more is given at once.
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

// urgent reports whether a source may use the reserve: the last Options.Urgent sources may.
func (r *Receiver) urgent(source int) bool { return source >= r.o.Sources-r.o.Urgent }

// ErrAsked is wrapped when a writer has no leave, or no segment, and does not know yet whether
// there is more: its question is in flight, or the receiver is slow or dead.
var ErrAsked = errors.New("the log was asked for leave, and has not answered")

// Reserve is Try, but waits for the answer if a question is in flight, which takes a trip. The
// error wraps rdma.ErrFull when the log has no room, and ErrAsked when the receiver has not
// answered with leave.
func (s *Sender) Reserve(length int) error {
	err := s.Try(length)
	if !errors.Is(err, rdma.ErrFull) && !errors.Is(err, ErrAsked) || s.question == nil {
		return err
	}
	if err := s.ep.Wait(s.question, rdma.All, patience); err != nil {
		return fmt.Errorf("ask for credit at %s: %w", s.ring, err)
	}
	if err := s.takeAnswer(); err != nil {
		return err
	}
	return s.take(s.l.taken(s.l.sizeOf(length)))
}

// Try takes leave to append an entry with length bytes of data; Add uses it up. It does not wait.
// The error wraps rdma.ErrFull when there is not enough leave and the receiver said that it has no
// more, and ErrAsked when the receiver has not said so. In both cases a question is in flight, and
// the caller tries again later: the answer arrives like a completion of its own. An entry of more
// than half of the credit is refused with rdma.ErrMessageSize, since the receiver may never grant
// so much at once.
func (s *Sender) Try(length int) error {
	if s.o.Reserved {
		return nil
	}
	n, credit := s.l.taken(s.l.sizeOf(length)), uint64(s.o.Log.Credit)
	if n > credit/2 {
		return fmt.Errorf("reserve %d bytes of %s of %d at a time: %w", n, s.ring, credit/2, rdma.ErrMessageSize)
	}
	if err := s.takeAnswer(); err != nil {
		return err
	}
	left := s.granted - s.reserved
	// A sender asks ahead of need: when less than half of its credit is left, and it has spent at
	// least a quarter that the receiver does not know of yet.
	if s.question == nil && (n > left || left < credit/2 && s.spent-s.told >= credit/4) {
		if err := s.ask(); err != nil {
			return err
		}
	}
	return s.take(n)
}

// take takes n bytes of the leave that the sender has.
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

// Return gives back the leave that Try or Reserve took for an entry that was not added.
func (s *Sender) Return(length int) {
	if !s.o.Reserved {
		s.reserved -= s.l.taken(s.l.sizeOf(length))
	}
}

// ask posts a question: it tells the receiver what is spent, and reads what is granted. The two
// verbs are one chain, so that the READ is behind the WRITE. The first question of a sender writes
// nothing: what earlier workers of the source had spent is not known to it before the answer.
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

// takeAnswer takes the answer to a question, if it has arrived. It does not wait.
func (s *Sender) takeAnswer() error {
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
		// All that was granted before belonged to earlier workers of the source, which have ended
		// or were fenced off. Nothing of theirs lands any more, so all of it is spent. The next
		// question says so.
		s.taken, s.reserved, s.spent = true, s.granted, s.granted
		return nil // what there is leave for now was not asked yet
	}
	s.full = word&1 != 0
	return nil
}

// takeOver gives back the leave of earlier workers of the source, and then waits for leave of its
// own. The first question reads the grant, the second one says that all of it is spent. A crash
// between the two leaves the leave as it was, for the next sender to take over.
func (s *Sender) takeOver() error {
	for range 2 {
		if err := s.ask(); err != nil {
			return err
		}
		if err := s.ep.Wait(s.question, rdma.All, patience); err != nil {
			return fmt.Errorf("take over the credit of source %d at %s: %w", s.o.Source, s.ring, err)
		}
		if err := s.takeAnswer(); err != nil {
			return err
		}
	}
	return nil
}
