package extendible

import (
	"errors"
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
)

// Get implements client.Store. The value is the Store's: it is valid until the
// next call.
func (s *Store) Get(key []byte) ([]byte, error) {
	s.start(key)
	_, found, err := s.find()
	switch {
	case err != nil:
		return nil, fmt.Errorf("get: %w", err)
	case !found:
		return nil, fmt.Errorf("get: %w", client.ErrNotFound)
	}
	return s.value, nil
}

// outcome is what became of a CAS of a slot.
type outcome uint8

const (
	// done: it is part of the index.
	done outcome = iota
	// lost: the slot had another word.
	lost
	// moved: a rehash has moved the key, and may have copied the slot before the
	// CAS.
	moved
)

// replace CASes a slot, and looks behind it. If a rehash has moved the key, at is
// where the slot is now, with the word that is there: a slot has the same place
// in whatever subtable its key is in.
//
// An error that does not wrap client.ErrUncertain says that the slot is as it
// was. A crash behind the CAS leaves the change, as if the operation had
// returned.
func (s *Store) replace(step rdma.Step, a slotAt, old, new word) (out outcome, at slotAt, err error) {
	swapped, unsure, err := s.change(step, a, old, new)
	// Nothing has changed, so there is nothing to look behind.
	if err == nil && !swapped || err != nil && !unsure {
		return lost, a, err
	}
	if err == nil {
		out, at, err = s.behind(a)
	}
	if err != nil {
		err = fmt.Errorf("%w: %w", client.ErrUncertain, err)
	}
	return out, at, err
}

// change CASes a slot. unsure: it is not known whether the CAS took effect, or
// will. If the pool's view has changed meanwhile, or a node was out of reach for a
// moment, the slot tells, unless a third word is there.
func (s *Store) change(step rdma.Step, a slotAt, old, new word) (swapped, unsure bool, err error) {
	_, swapped, err = s.trips.Swap(step, s.addrOf(a), uint64(old), uint64(new))
	// The outcome is known: the CAS was executed, or will not be.
	if err == nil || !s.trips.Sent || errors.Is(err, rdma.ErrNoEffect) {
		return swapped, false, err
	}
	// The view has changed or the node is back, so the CAS has landed, or never
	// will.
	for failed := err; s.retryable(failed); {
		// Nothing of the worker is in flight, so the word that is read now is
		// what the CAS has left, or what came behind it.
		var now word
		if now, failed = s.readSlot(a); failed != nil {
			continue
		}
		switch now {
		case new:
			return true, false, nil
		case old:
			return false, false, nil
		}
		break
	}
	return false, true, err
}

// readSlot reads the word of a slot.
func (s *Store) readSlot(a slotAt) (word, error) {
	b := s.ep.Batch()
	defer s.trips.Drop(b)
	op := b.Read(s.addrOf(a), 8)
	if err := s.trips.Do(stepFindWord, b); err != nil {
		return 0, err
	}
	return word(op.Word(0)), nil
}

// behind looks behind a CAS of a slot. As long as the key is in the same subtable
// the CAS counts. behind waits for a rehash that may be moving the key. When the
// key has moved, it reads the slot in the new subtable, and looks there, too.
func (s *Store) behind(a slotAt) (out outcome, at slotAt, err error) {
	// The CAS was in this subtable. It counts if the key was there behind it.
	from := a.subtable.place
	for r := s.pace; ; {
		at, v, err := s.lookAt(a, a.subtable.place != from)
		switch {
		// The subtable is as it was before the CAS, and no rehash is about to
		// move the key: a rehash that copies the slot later finds the new word.
		case err == nil && v == valid && at.subtable.place == from:
			return done, at, nil
		// The key is in another subtable. The slot was read before this look, so
		// the word was part of the index.
		case err == nil && v == valid:
			s.stats.Moved++
			return moved, at, nil
		case err == nil:
			s.stats.Looks++
			if err = s.directory.refresh(v, a.subtable); err == nil {
				a.subtable, err = s.directory.find(s.op.hash)
			}
		}
		if err != nil && !s.retryable(err) {
			return lost, a, err
		}
		// The key has not moved. The pause is for what comes again and again.
		if a.subtable.place == from && v != valid && !s.trips.Over() {
			continue
		}
		if !r.Again() {
			return lost, a, errTime
		}
	}
}

// lookAt looks at a subtable, and reads the slot before that if it is asked for.
func (s *Store) lookAt(a slotAt, slot bool) (slotAt, verdict, error) {
	if slot {
		w, err := s.readSlot(a)
		if err != nil {
			return a, changed, err
		}
		a.word = w
	}
	b := s.ep.Batch()
	defer s.trips.Drop(b)
	look := s.directory.look(b, a.subtable.suffix)
	if err := s.trips.Do(stepLook, b); err != nil {
		return a, changed, err
	}
	return a, s.directory.judge(look, a.subtable, s.op.hash), nil
}

// leaveBehind takes a word out of a slot of a subtable that the key has left.
// Readers of that key do not come there any more. If the CAS fails, the next
// rehash finds the word.
func (s *Store) leaveBehind(a slotAt, w word) {
	_, _, _ = s.trips.Swap(stepSweepSlots, s.addrOf(a), uint64(w), 0)
}

// Update implements client.Store. It takes effect at its CAS, or, when a rehash
// has copied the slot before, right before the change that it finds in the new
// subtable.
func (s *Store) Update(key, value []byte) error {
	if err := s.startWrite(key, value); err != nil {
		return fmt.Errorf("update: %w", err)
	}
	if err := s.update(); err != nil {
		return fmt.Errorf("update: %w", err)
	}
	return nil
}

// update tries until the word is replaced, or the time is over. It hands the
// operation's block back to the memory, whatever happens.
func (s *Store) update() error {
	o := &s.op
	for r := s.pace; ; {
		// find has also written the pair, in its first trip.
		a, found, err := s.find()
		if err == nil && !found {
			err = client.ErrNotFound
		}
		if err != nil {
			s.memory.unused(o.block)
			return err
		}
		// The CAS expects the word that was read with its pair, so no other
		// change of the key is lost.
		out, at, err := s.replace(stepSwapSlot, a, a.word, o.word)
		switch {
		case err != nil:
			s.memory.settle(o.block, err)
			// The CAS may land late. Until it has, the block's chunk must not be given
			// back: another client would find the block free.
			if errors.Is(err, client.ErrUncertain) {
				s.keepUnresolved()
			}
			return err
		case out == done:
			s.memory.used(o.block, o.hash, a.slot)
			// Only a block in one of the worker's own chunks goes into quarantine
			// here.
			s.memory.replaced(a.word)
			return nil
		case out == moved:
			s.leaveBehind(a, o.word)
			// While the new subtable has the word that was to be replaced, the
			// copy came before the CAS: again. If it has another one, then either
			// the new pair was copied, or another client has replaced the old
			// word behind the rehash. In the latter case this UPDATE came right
			// before that change, and nothing can tell otherwise.
			if at.word != a.word {
				s.memory.used(o.block, o.hash, noSlot.slot)
				return nil
			}
		}
		if !r.Again() {
			s.memory.unused(o.block)
			return errTime
		}
	}
}
