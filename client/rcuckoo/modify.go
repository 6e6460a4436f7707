package rcuckoo

import (
	"fmt"

	"github.com/farkv/farkv/client"
)

// kind is a change of the table.
type kind uint8

const (
	updating kind = iota
	deleting
	inserting
)

func (k kind) String() string { return [...]string{"update", "delete", "insert"}[k] }

// Update replaces the value of a key that is there (section 3.2.2): both rows are locked and read in one trip, and written and let
// go of in the next.
func (s *Store) Update(key, value []byte) error { return s.modify(updating, key, value) }

// Delete removes a key that is there, as Update.
func (s *Store) Delete(key []byte) error { return s.modify(deleting, key, nil) }

// Insert adds a key that is not there: see insert.go.
func (s *Store) Insert(key, value []byte) error { return s.modify(inserting, key, value) }

func (s *Store) modify(k kind, key, value []byte) error {
	if k != deleting && (len(key) > s.KeyBytes || len(value) > s.maxValue()) {
		return fmt.Errorf("%s: a key of %d bytes (at most %d), a value of %d (at most %d): %w", k, len(key), s.KeyBytes, len(value), s.maxValue(), client.ErrTooLarge)
	}
	if len(key) > s.KeyBytes {
		return fmt.Errorf("%s: %w", k, errNotFound)
	}
	s.begin()
	s.ended(false)
	at := s.place(key)
	for range joins {
		s.locks.sent = false
		err := s.settled(at.shard)
		if err == nil {
			err = s.try(k, at, key, value)
		}
		if err == nil {
			return nil
		}
		done, again, err := s.outcome(at.shard, err)
		switch {
		case done:
			return nil
		case !again:
			return fmt.Errorf("%s: %w", k, err)
		}
	}
	return fmt.Errorf("%s: %w", k, errEpochs)
}

// maxValue is the longest value in bytes.
func (s *Store) maxValue() int { return s.InlineBytes }

// try carries a change out. The error wraps errAgain when it has to begin again.
func (s *Store) try(k kind, at place, key, value []byte) error {
	if k == inserting {
		return s.insert(at, key, value)
	}
	s.want(at.shard)
	s.wantRow(at.first)
	s.wantRow(at.second)
	s.wantRows(at)
	if err := s.acquire(); err != nil {
		return err
	}
	n, slot, err := s.held(at, key)
	if err != nil {
		return err
	}
	if slot < 0 {
		if err := s.retreat(); err != nil {
			return err
		}
		return errNotFound
	}
	c := change{row: n, slot: slot, entry: entry{body: s.spare}}
	if k == updating {
		c.entry = s.inline(s.spare, key, value)
	} else {
		clear(s.spare)
	}
	s.changes[0] = c
	return s.write(s.changes[:1])
}

// held returns the row and the slot of a key in rows that are locked; slot -1: it is in neither.
func (s *Store) held(at place, key []byte) (n uint32, slot int, err error) {
	for _, n := range [2]uint32{at.first, at.second} {
		r := s.locks.row(n, s.rowBytes)
		if !s.valid(r, at.shard, n) {
			err := fmt.Errorf("row %d of shard %d is torn, and locked: %w", n, at.shard, client.ErrDamaged)
			if e := s.retreat(); e != nil {
				return 0, -1, e
			}
			return 0, -1, err
		}
		s.cache.put(at.shard, n, r)
		if slot := s.find(r, key); slot >= 0 {
			return n, slot, nil
		}
	}
	return 0, -1, nil
}
