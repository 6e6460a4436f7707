package extendible

import (
	"errors"
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
)

// Get implements client.Store.
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
	done  outcome = iota // it is part of the index
	lost                 // the slot had another word
	moved                // a rehash has moved the key, and may have come before
)

// replace CASes a slot, and looks behind it. When a rehash has moved the key, at is where the slot
// is now, with the word that is there: it has the same place in whatever subtable the key is in.
//
// An error that does not wrap client.ErrUncertain says that the slot is as it was.
func (s *Store) replace(step rdma.Step, a slotAt, old, new word) (out outcome, at slotAt, err error) {
	swapped, unsure, err := s.change(step, a, old, new)
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

// change CASes a slot; unsure: it is not known what became of that. Where the pool's view has
// changed meanwhile, the slot tells, unless a third word is there.
func (s *Store) change(step rdma.Step, a slotAt, old, new word) (swapped, unsure bool, err error) {
	swapped, err = s.swap(step, s.addrOf(a), uint64(old), uint64(new))
	if err == nil || !s.sent || errors.Is(err, rdma.ErrNoEffect) {
		return swapped, false, err
	}
	if s.retryable(err) {
		now, failed := s.readSlot(a)
		switch {
		case failed != nil:
			err = failed
		case now == new:
			return true, false, nil
		case now == old:
			return false, false, nil
		}
	}
	return false, true, err
}

// readSlot reads a slot.
func (s *Store) readSlot(a slotAt) (word, error) {
	b := s.ep.Batch()
	defer s.drop(b)
	op := b.Read(s.addrOf(a), 8)
	if err := s.do(stepFindWord, b); err != nil {
		return 0, err
	}
	return word(op.Word(0)), nil
}

// behind looks behind a CAS of a slot. Until a rehash has ended that may be moving the key, it
// waits.
func (s *Store) behind(a slotAt) (out outcome, at slotAt, err error) {
	from := a.subtable.place
	for r := s.pace; ; {
		at, v, err := s.lookAt(a, a.subtable.place != from)
		switch {
		case err == nil && v == valid && at.subtable.place == from:
			return done, at, nil
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
		// it has not moved: the pause is for what comes again and again
		if a.subtable.place == from && v != valid && !s.over() {
			continue
		}
		if !r.Again() {
			return lost, a, errTime
		}
	}
}

// lookAt looks at a subtable, and reads the slot before, if it is asked for.
func (s *Store) lookAt(a slotAt, slot bool) (slotAt, verdict, error) {
	if slot {
		w, err := s.readSlot(a)
		if err != nil {
			return a, changed, err
		}
		a.word = w
	}
	b := s.ep.Batch()
	defer s.drop(b)
	look := s.directory.look(b, a.subtable.suffix)
	if err := s.do(stepLook, b); err != nil {
		return a, changed, err
	}
	return a, s.directory.judge(look, a.subtable, s.op.hash), nil
}

// leaveBehind takes a word out of a slot of a subtable that the key has left. It belongs to no
// one's index; what fails is found by the next rehash.
func (s *Store) leaveBehind(a slotAt, w word) {
	_, _ = s.swap(stepSweepSlots, s.addrOf(a), uint64(w), 0)
}

// Update implements client.Store.
func (s *Store) Update(key, value []byte) error {
	if err := s.startWrite(key, value); err != nil {
		return fmt.Errorf("update: %w", err)
	}
	if err := s.update(); err != nil {
		return fmt.Errorf("update: %w", err)
	}
	return nil
}

func (s *Store) update() error {
	o := &s.op
	for r := s.pace; ; {
		a, found, err := s.find()
		if err == nil && !found {
			err = client.ErrNotFound
		}
		if err != nil {
			s.memory.unused(o.block)
			return err
		}
		out, at, err := s.replace(stepSwapSlot, a, a.word, o.word)
		switch {
		case err != nil:
			s.memory.settle(o.block, err)
			return err
		case out == done:
			s.memory.used(o.block, a.slot)
			s.memory.replaced(a.word)
			return nil
		case out == moved:
			s.leaveBehind(a, o.word)
			// While the word is there that was to be replaced, the rehash came before. When it is not,
			// either the pair is, or it was, or another client has replaced that word behind the rehash:
			// then this UPDATE came right before.
			if at.word != a.word {
				s.memory.used(o.block, noSlot.slot)
				return nil
			}
		}
		if !r.Again() {
			s.memory.unused(o.block)
			return errTime
		}
	}
}
