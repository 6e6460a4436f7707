package extendible

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/race"
)

// Two INSERTs of one key may find different empty slots. RACE lets an INSERT look
// again behind its CAS, and take its pair back if another one came first; but a
// reader may have seen the pair by then. Here the CAS proposes the pair, which
// readers do not see, and a second CAS makes it live. In between the INSERT reads
// both buckets again, and finds:
//
//	a pair of the key              the key exists, unless another look says that
//	                               it was moving: give way
//	a proposal in an earlier slot  give way to it, and begin again
//	a proposal in a later slot     end it, by a CAS, before the own one becomes live
//
// Of two proposals of one key at least one INSERT sees the other's, since each
// reads behind its CAS. If that INSERT has the earlier slot, it ends the other
// proposal; or that one was made live before, which the CAS finds out. If it has
// the later slot, it gives way. So no two proposals become live.
//
// An INSERT takes away its proposal that another one has made void, and begins
// again. The proposal of a dead client is ended, too, when an INSERT has seen
// it for a lease. It may meet several: all of their leases begin with the first
// look that finds them, since clients may have died one after the other while
// they gave way.

// Insert implements client.Store. An INSERT that fails with an error other than
// client.ErrUncertain has not taken effect, and will not.
func (s *Store) Insert(key, value []byte) error {
	if err := s.startWrite(key, value); err != nil {
		return fmt.Errorf("insert: %w", err)
	}
	if err := s.insert(); err != nil {
		return fmt.Errorf("insert: %w", err)
	}
	return nil
}

// errGaveWay begins an INSERT again: its proposal is in no slot any more.
var errGaveWay = errors.New("gave way")

// insert tries until the key is there, or the time is over. It hands the
// operation's block back to the memory, whatever happens.
func (s *Store) insert() error {
	o := &s.op
	// find also picks an empty slot.
	o.insert = true
	o.passing = [race.Candidates]passing{}
	for r := s.pace; ; {
		err := s.insertOnce()
		switch {
		case err == nil:
			s.memory.used(o.block, o.hash, o.slot)
			return nil
		case errors.Is(err, errGaveWay):
			// The words of this use of the block must not be met again.
			o.block.tag++
			s.name()
		case err != errAgain:
			s.memory.settle(o.block, err)
			return err
		}
		// The proposal is in no slot, so the block is free again.
		if !r.Again() {
			s.memory.unused(o.block)
			return errTime
		}
	}
}

// errAgain begins an INSERT again while no slot names its pair.
var errAgain = errors.New("again")

// insertOnce is one try. If the outcome of the proposal's CAS is unknown, the
// proposal is unresolved, and the next operation settles it: what never becomes
// live has not taken effect.
func (s *Store) insertOnce() error {
	o := &s.op
	a, found, err := s.find()
	switch {
	case err != nil:
		return err
	case found:
		return client.ErrExists
	// No slot is empty: the subtable has to be split, or slots in it to be freed.
	case a.slotWord == noSlot:
		if err := s.makeRoom(a.subtable); err != nil {
			return err
		}
		return errAgain
	case s.splitsEarly(a.subtable):
		if err := s.makeRoom(a.subtable); !errors.Is(err, client.ErrFull) {
			return cmp.Or(err, errAgain)
		}
	}
	// The WRITE of the pair is complete, so a client that finds the proposal
	// finds the pair, too.
	mine := o.word.as(proposed)
	// The slot was seen empty: 0 is the only word of an empty slot, so the CAS
	// may succeed though the slot was used and emptied meanwhile, without harm.
	swapped, unsure, err := s.change(stepPropose, a, 0, mine)
	if unsure {
		s.keepUnresolved()
	}
	if err != nil {
		return err
	}
	if !swapped {
		return errAgain
	}
	a.word = mine
	return s.decide(a)
}

// keepUnresolved notes that a slot may have the operation's word, or may get it yet.
func (s *Store) keepUnresolved() {
	s.unresolved = append(s.unresolved, unresolvedWord{s.op.hash, s.op.block.number})
}

// decide makes a proposal live, or gives way. The CAS that makes it live relies
// on rivals: all proposals of the key that were seen are ended, and those that
// were not seen see this one. A crash before that CAS leaves a proposal, which
// readers do not see; behind it, the pair.
func (s *Store) decide(a slotAt) error {
	o := &s.op
	for r := s.pace; ; {
		// The proposal may move with its subtable while this goes on: a follows
		// it.
		state, err := s.rivals(&a)
		if err != nil && s.retryable(err) {
			state, err = undecided, nil
		}
		switch {
		case err != nil:
			s.keepUnresolved()
			return err
		// The proposal is taken away. If the key does not exist the INSERT begins
		// again, with another word.
		case state == exists || state == behindRival || state == ended:
			return s.giveWay(state)
		case state == alone:
			out, at, err := s.replace(stepFinalize, a, o.word.as(proposed), o.word)
			switch {
			case err != nil:
				s.keepUnresolved()
				return err
			case out == done:
				o.slot = a.slot
				return nil
			// The proposal, or the live word, may be left in the old subtable,
			// where no reader of the key comes any more.
			case out == moved:
				s.leaveBehind(a, o.word)
				if at.word != o.word.as(proposed) && at.word != o.word.as(void) {
					// It became live before the rehash, whatever has become of it
					// since.
					return nil
				}
				a = at
			}
		}
		if !r.Again() {
			s.keepUnresolved()
			return errTime
		}
	}
}

// proposalState is what is to become of a proposal.
type proposalState uint8

const (
	// undecided: look again.
	undecided proposalState = iota
	// alone: it may become live.
	alone
	// exists: the key has a live pair.
	exists
	// behindRival: another proposal comes first.
	behindRival
	// ended: another INSERT has made it void.
	ended
)

// rivals reads the buckets of a proposal again, and looks. If a rehash has moved
// the proposal, a becomes the slot where it is now. If the rehash came before the
// proposal, the new subtable has not got it, and it counts as ended.
func (s *Store) rivals(a *slotAt) (proposalState, error) {
	o := &s.op
	// The READs of the buckets come behind the proposal's CAS, which was waited
	// for. So of two INSERTs of one key at least one sees the other's proposal.
	b := s.ep.Batch()
	defer s.trips.Drop(b)
	view := o.at.ReadAt(b, s.subtableAt(a.subtable.place))
	look := s.directory.look(b, a.subtable.suffix)
	if err := s.trips.Do(stepReadAgain, b); err != nil {
		return undecided, err
	}
	// A rehash may have copied the slot before the proposal, or behind it.
	if s.directory.judge(look, a.subtable, o.hash) != valid {
		out, at, err := s.behind(*a)
		if err != nil {
			return undecided, err
		}
		if out == moved {
			s.leaveBehind(*a, o.word.as(proposed))
			// It was not copied, or was ended since.
			if at.word != o.word.as(proposed) {
				return ended, nil
			}
		}
		*a = at
		return undecided, nil
	}
	view.Words(&o.again)
	// The look is valid, so the slots were part of the index when they were
	// read.
	f, err := s.compete(*a)
	if err != nil || f != exists {
		return f, err
	}
	// This look was of no moment behind the slots: the pair may have become live
	// in a subtable that a rehash had copied already. So it takes another look to
	// say that the key exists.
	if _, v, err := s.lookAt(*a, false); err != nil || v != valid {
		return undecided, err
	}
	return exists, nil
}

// compete looks for the key in slots that were read behind the proposal, and ends
// proposals in later slots. A pair that was there when the operation found that
// the key is not there is another key's, and is left out.
func (s *Store) compete(a slotAt) (proposalState, error) {
	o := &s.op
	// Pairs of the same fingerprint are READ to compare their keys.
	b := s.ep.Batch()
	defer s.trips.Drop(b)
	for i := range o.again {
		w := o.slotWord(i, o.again[i])
		// Only another INSERT changes a proposal, and only to a void word.
		if w.slot == a.slot && w.word != o.word.as(proposed) {
			return ended, nil
		}
		if s.competes(a, w, word(o.slots[i])) {
			b.Read(s.blockAt(s.block(w.word)), w.word.units()*unitBytes)
		}
	}
	if b.Len() == 0 {
		return alone, nil
	}
	// Another INSERT is at work on the key, or on one with the same
	// fingerprint.
	s.stats.Duplicates++
	if err := s.trips.Do(stepReadRivals, b); err != nil {
		return undecided, err
	}
	read, f := 0, alone
	for i := range o.again {
		w := o.slotWord(i, o.again[i])
		if !s.competes(a, w, word(o.slots[i])) {
			continue
		}
		p, whole := decodePair(b.Op(read).Buf, w.word)
		read++
		switch {
		// By now another word is in the slot, or the word is one that a key has
		// left behind. Once is a reason to look again.
		case !whole:
			if !o.suspected(a.subtable, w) {
				o.suspects = append(o.suspects, suspect{place: a.subtable.place, slotWord: w})
				return undecided, nil
			}
		// It is another key with the same fingerprint.
		case !bytes.Equal(p.key, o.key):
		case w.word.kind() == live:
			return exists, nil
		// Both INSERTs order their slots alike, so one of them goes on.
		case w.slot < a.slot && !s.lapsed(i, w.word):
			f = behindRival
		// It is for the proposals in front of both to end this one.
		case w.slot > a.slot && f == behindRival:
		default:
			s.stats.Ended++
			at := s.addrOf(slotAt{a.subtable, w})
			_, ok, err := s.trips.Swap(stepEndRival, at, uint64(w.word), uint64(w.word.as(void)))
			if err != nil || !ok {
				return undecided, err
			}
		}
	}
	return f, nil
}

// competes reports whether a slot may have the key, live or proposed, beside the
// operation's own proposal.
func (s *Store) competes(a slotAt, w slotWord, known word) bool {
	if w.slot == a.slot || !s.valid(w.word) || w.word == known && w.word.kind() == live {
		return false
	}
	return w.word.is(live, s.op.hash) || w.word.is(proposed, s.op.hash)
}

// lapsed reports whether the operation has seen a word in the key's i-th slot for
// a lease, on its own clock. The client of a proposal does not go on then: a live
// INSERT decides within a few trips.
func (s *Store) lapsed(i int, w word) bool {
	p := &s.op.passing[i]
	if p.word != w {
		*p = passing{w, s.ep.Now()}
	}
	return s.ep.Now()-p.since >= s.Lease
}

// giveWay takes the operation's proposal away, or the void word that it has
// become.
func (s *Store) giveWay(f proposalState) error {
	o := &s.op
	// The proposal may have become void, and a rehash may have copied it: clear
	// looks for whatever names the block.
	err := s.directory.clear(o.hash, o.block.number)
	if err != nil {
		s.keepUnresolved()
	}
	if f == exists {
		return client.ErrExists
	}
	if err != nil {
		return err
	}
	return errGaveWay
}
