package rcuckoo

import (
	"errors"
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/rcuckoo/extents"
	"github.com/farkv/farkv/client/rcuckoo/locks"
	"github.com/farkv/farkv/client/rcuckoo/session"
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
// a row names it. The client's claim list in the pool names the extent in each of these cases, so a
// crash leaks nothing: see claims.go of package extents.
func (s *Store) modify(k kind, key, value []byte) error {
	if k != deleting && (len(key) > s.session.Table.KeyBytes || len(value) > s.session.Table.MaxValue()) {
		return fmt.Errorf("%s: a key of %d bytes (at most %d), a value of %d (at most %d): %w",
			k, len(key), s.session.Table.KeyBytes, len(value), s.session.Table.MaxValue(), client.ErrTooLarge)
	}
	if len(key) > s.session.Table.KeyBytes {
		return fmt.Errorf("%s: %w", k, errNotFound)
	}
	o := s.op.Begin()
	at := s.where(key)
	s.taken, s.takenIn = table.Ref{}, at.Shard // ApplyView clears taken when another copy of its shard leads
	err := s.carryOut(o, k, at, key, value)
	// Deferred, as help may leave an intent or leases, too.
	defer o.DeferCleanup(at.Shard)
	switch {
	case err == nil:
		if k == inserting {
			s.help(o, at.Shard)
		}
		return nil
	// No extent was taken, or it was forgotten with the shard: the takeover has freed it.
	case s.taken.Stamp == 0:
	case errors.Is(err, client.ErrUncertain):
		// It is looked for in the rows once the shard is settled.
		s.extents.MarkUnresolved(at.Shard, s.taken)
	default:
		s.extents.Give(at.Shard, s.taken)
	}
	return fmt.Errorf("%s: %w", k, err)
}

// carryOut tries an operation until it is done, or its outcome is known and no try is left. Each
// try begins with an idle view and a shard that is settled.
func (s *Store) carryOut(o *session.Op, k kind, at table.Place, key, value []byte) error {
	for range session.Joins {
		// This try may fail before it begins with locks: what the last one has sent must not
		// count.
		s.locks.Sent = false
		err := o.AwaitIdleView()
		if err == nil {
			s.settler.RunCleanup(o)
			err = s.settler.Settled(o, at.Shard)
		}
		if err == nil {
			err = s.try(o, k, at, key, value)
			// The heartbeat was for the intent of this try. To settle it the worker sends others.
			o.Heartbeat = nil
		}
		if err == nil {
			return nil
		}
		done, again, err := s.settler.Outcome(o, at.Shard, s.locks.Sent, err) // the shard is settled then, if it can be
		switch {
		case done:
			return nil
		case !again:
			return err
		case o.Left() == 0:
			return late(err)
		}
	}
	return session.ErrEpochs
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
func (s *Store) MaxPair() int { return s.session.Table.MaxValue() }

// try tries an operation once. For an UPDATE or a DELETE that meets no other client that is:
//
//  1. WRITE intent | masked CAS of the locks | READ of both rows, fenced
//  2. WRITE redo | WRITE row | masked CAS that releases the locks
//  3. WRITE that ends the intent; it is not waited for
//
// Each is one batch to the leader, in one chain. Locks that lie in two words take a batch of the
// first kind for each word. A value in an extent adds its WRITE to 1, and the CAS of the old
// value's mark to 2, between row and locks. With replicas the backups get redo and row in a batch
// between 1 and 2.
//
// What a crash leaves, by the last verb that has landed: the intent alone, which names locks that
// are free; locks and no redo, so repair frees the locks, and nothing has changed; a whole redo,
// so repair carries it out; free locks and an intent, which repair ends.
//
// The extent that it takes is kept in s.taken, so the next try uses the same one. The error wraps
// ErrAgain when the operation has to begin again.
func (s *Store) try(o *session.Op, k kind, at table.Place, key, value []byte) error {
	// An extent is taken before any lock: claims may take several trips.
	if len(value) > o.Table.InlineBytes && s.taken.Stamp == 0 {
		var err error
		if s.taken, err = s.extents.Take(at.Shard, len(key), len(value), o.Until); err != nil {
			return err
		}
	}
	if k == inserting {
		return s.insert(o, at, key, value)
	}
	// Both rows are locked, whichever has the key: an INSERT could move the key from one to the
	// other, but not without both locks.
	s.locks.Start(at.Shard)
	s.locks.LockRow(o, at.First)
	s.locks.LockRow(o, at.Second)
	s.locks.ReadPlace(o, at)
	if err := s.acquire(o, s.taken, key, value); err != nil {
		return err
	}
	n, slot, err := s.held(o, &at, key)
	if err != nil {
		return err
	}
	if slot < 0 { // both rows are locked, so one look is enough
		if err := s.locks.Release(o); err != nil {
			return err
		}
		return errNotFound
	}
	// The use of the old value ends with this change, in the same redo.
	freed := table.Ref{}
	if e := o.Table.Entry(s.locks.Row(n, o.Table.RowBytes), slot); e.Meta.Extent() {
		freed = o.Table.Ref(e)
	}
	c := table.Change{Row: n, Slot: slot, Entry: table.Entry{Body: s.spare}}
	if k == updating {
		c.Entry = s.newEntry(key, value)
	} else {
		// A DELETE leaves a slot that is all zero, with meta 0.
		clear(s.spare)
	}
	s.changes[0] = c
	return s.write(o, s.changes[:1], freed)
}

// newEntry encodes a pair's entry into s.spare, with the value or a ref to the extent that was
// taken. The entry shares s.spare, so there is one new entry at a time.
func (s *Store) newEntry(key, value []byte) table.Entry {
	if s.taken.Stamp != 0 {
		return s.session.Table.Named(s.spare, key, s.taken)
	}
	return s.session.Table.Inline(s.spare, key, value)
}

// held returns the row and the slot of a key in rows that are locked and read. slot -1: the key
// is in neither. If the key belongs into other rows than were guessed, held corrects the place
// and reads these rows, which have the same locks. The error wraps client.ErrDamaged if a row is
// torn: no other client writes rows under these locks.
func (s *Store) held(o *session.Op, at *table.Place, key []byte) (n uint32, slot int, err error) {
	if err := s.descend(o, at); err != nil {
		return 0, -1, err
	}
	for _, n := range [2]uint32{at.First, at.Second} {
		r := s.locks.Row(n, o.Table.RowBytes)
		if !o.Table.Valid(r, at.Shard, n) {
			err := fmt.Errorf("row %d of shard %d is torn, and locked: %w", n, at.Shard, client.ErrDamaged)
			if e := s.locks.Release(o); e != nil {
				return 0, -1, e
			}
			return 0, -1, err
		}
		s.cache.Put(at.Shard, n, r)
		if slot := o.Table.Find(r, key); slot >= 0 {
			e := o.Table.Entry(r, slot)
			if !o.Table.Sound(e) || e.Meta.Extent() && !o.Table.Names(o.Table.Ref(e), len(key)) {
				err := fmt.Errorf("slot %d of row %d of shard %d: %w", slot, n, at.Shard, client.ErrDamaged)
				return 0, -1, errors.Join(err, s.locks.Release(o))
			}
			return n, slot, nil
		}
	}
	return 0, -1, nil
}

// acquire takes the locks that are wanted. If a lock word has to be repaired it is repaired, or
// the repair is waited for, and the operation has to begin again. Nothing is held meanwhile, and
// no intent names the word: a repairer waits for all that do.
func (s *Store) acquire(o *session.Op, taken table.Ref, key, value []byte) error {
	err := s.locks.Acquire(o, taken, key, value)
	if !errors.Is(err, locks.ErrBlocked) {
		return err
	}
	if err := s.settler.AwaitRepair(o, s.locks.Shard, s.locks.Blocked); err != nil {
		return err
	}
	return session.ErrAgain
}
