package rcuckoo

import (
	"errors"
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/rcuckoo/extents"
	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node/rdma"
)

// kind is a kind of operation that changes the table.
type kind uint8

const (
	updating kind = iota
	deleting
	inserting
)

func (k kind) String() string { return [...]string{"update", "delete", "insert"}[k] }

// Update replaces the value of a key that is there (section 3.2.2): one trip locks and reads both
// rows, and the next writes them and releases the locks. The fence between lock and READs adds a
// latency, unless the lock table is in the NIC's memory. The error wraps client.ErrNotFound,
// client.ErrTooLarge, client.ErrFull when there is no extent for the value, rdma.ErrTimeout when
// nothing was changed in time, or client.ErrUncertain when the outcome is unknown.
func (s *Store) Update(key, value []byte) error { return s.modify(updating, key, value) }

// Delete removes a key that is there, in the same steps and with the same errors as Update.
func (s *Store) Delete(key []byte) error { return s.modify(deleting, key, nil) }

// Insert adds a key that is not there: see insert.go. The error wraps client.ErrExists, or
// client.ErrFull when the table has no room for it, or is one of Update's.
func (s *Store) Insert(key, value []byte) error { return s.modify(inserting, key, value) }

// modify carries out an operation, and decides what becomes of the extent that it took: a row
// names the extent, or the client keeps it for a later operation, or it is not known yet whether
// a row names it.
func (s *Store) modify(k kind, key, value []byte) error {
	if k != deleting && (len(key) > s.table.KeyBytes || len(value) > s.table.MaxValue()) {
		return fmt.Errorf("%s: a key of %d bytes (at most %d), a value of %d (at most %d): %w",
			k, len(key), s.table.KeyBytes, len(value), s.table.MaxValue(), client.ErrTooLarge)
	}
	if len(key) > s.table.KeyBytes {
		return fmt.Errorf("%s: %w", k, errNotFound)
	}
	s.begin()
	at := s.where(key)
	s.taken, s.takenIn = table.Ref{}, at.Shard // ApplyView clears taken when another copy of its shard leads
	err := s.carryOut(k, at, key, value)
	defer s.deferCleanup(at.Shard)
	switch {
	case err == nil:
		if k == inserting {
			s.help(at.Shard)
		}
		return nil
	case s.taken.Stamp == 0:
	case errors.Is(err, client.ErrUncertain):
		s.extents.MarkUnresolved(at.Shard, s.taken)
	default:
		s.extents.Give(at.Shard, s.taken)
	}
	return fmt.Errorf("%s: %w", k, err)
}

// carryOut tries an operation until it is done, or its outcome is known and no try is left. Each
// try begins with an idle view and a shard that is settled.
func (s *Store) carryOut(k kind, at table.Place, key, value []byte) error {
	for range joins {
		s.locks.sent = false
		err := s.awaitIdleView()
		if err == nil {
			s.runCleanup()
			err = s.settled(at.Shard)
		}
		if err == nil {
			err = s.try(k, at, key, value)
			s.pulse = nil
		}
		if err == nil {
			return nil
		}
		done, again, err := s.outcome(at.Shard, err) // the shard is settled then, if it can be
		switch {
		case done:
			return nil
		case !again:
			return err
		case s.left() == 0:
			return late(err)
		}
	}
	return errEpochs
}

// late returns the error of an operation that would begin again but has no time left. It wraps
// rdma.ErrTimeout. Nothing was changed.
func late(err error) error {
	if errors.Is(err, rdma.ErrTimeout) {
		return err
	}
	return fmt.Errorf("%w: %w", extents.ErrNoTime, err)
}

// MaxPair returns the largest sum of a key's and a value's length in bytes that the store takes
// however long the key is, up to what the pool was made for.
func (s *Store) MaxPair() int { return s.table.MaxValue() }

// try tries an operation once. It keeps the extent that it takes in s.taken, so the next try uses
// the same one. The error wraps errAgain when the operation has to begin again.
func (s *Store) try(k kind, at table.Place, key, value []byte) error {
	// An extent is taken before any lock: claims may take several trips.
	if len(value) > s.table.InlineBytes && s.taken.Stamp == 0 {
		var err error
		if s.taken, err = s.extents.Take(at.Shard, len(key), len(value), s.until); err != nil {
			return err
		}
	}
	if k == inserting {
		return s.insert(at, key, value)
	}
	s.want(at.Shard)
	s.wantRow(at.First)
	s.wantRow(at.Second)
	s.wantRows(at)
	if err := s.acquire(key, value); err != nil {
		return err
	}
	n, slot, err := s.held(&at, key)
	if err != nil {
		return err
	}
	if slot < 0 { // both rows are locked, so one look is enough
		if err := s.retreat(); err != nil {
			return err
		}
		return errNotFound
	}
	// The use of the old value ends with this change, in the same redo.
	freed := table.Ref{}
	if e := s.table.Entry(s.locks.row(n, s.table.RowBytes), slot); e.Meta.Extent() {
		freed = s.table.Ref(e)
	}
	c := table.Change{Row: n, Slot: slot, Entry: table.Entry{Body: s.spare}}
	if k == updating {
		c.Entry = s.newEntry(key, value)
	} else {
		clear(s.spare)
	}
	s.changes[0] = c
	return s.write(s.changes[:1], freed)
}

// newEntry encodes a pair's entry into s.spare, with the value or a ref to the extent that was
// taken.
func (s *Store) newEntry(key, value []byte) table.Entry {
	if s.taken.Stamp != 0 {
		return s.table.Named(s.spare, key, s.taken)
	}
	return s.table.Inline(s.spare, key, value)
}

// held returns the row and the slot of a key in rows that are locked and read. slot -1: the key
// is in neither. If the key belongs into other rows than were guessed, held corrects the place
// and reads these rows, which have the same locks. The error wraps client.ErrDamaged if a row is
// torn: no other client writes rows under these locks.
func (s *Store) held(at *table.Place, key []byte) (n uint32, slot int, err error) {
	if err := s.descend(at); err != nil {
		return 0, -1, err
	}
	for _, n := range [2]uint32{at.First, at.Second} {
		r := s.locks.row(n, s.table.RowBytes)
		if !s.table.Valid(r, at.Shard, n) {
			err := fmt.Errorf("row %d of shard %d is torn, and locked: %w", n, at.Shard, client.ErrDamaged)
			if e := s.retreat(); e != nil {
				return 0, -1, e
			}
			return 0, -1, err
		}
		s.cache.Put(at.Shard, n, r)
		if slot := s.table.Find(r, key); slot >= 0 {
			if e := s.table.Entry(r, slot); !s.table.Sound(e) || e.Meta.Extent() && !s.table.Names(s.table.Ref(e),
				len(key)) {
				err := fmt.Errorf("slot %d of row %d of shard %d: %w", slot, n, at.Shard, client.ErrDamaged)
				return 0, -1, errors.Join(err, s.retreat())
			}
			return n, slot, nil
		}
	}
	return 0, -1, nil
}
