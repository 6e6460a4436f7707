package rcuckoo

import (
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/rcuckoo/search"
	"github.com/farkv/farkv/client/rcuckoo/session"
	"github.com/farkv/farkv/client/rcuckoo/steps"
	"github.com/farkv/farkv/client/rcuckoo/table"
)

// INSERT (section 3.2.3) guesses a cuckoo path from the rows in the client's cache. It takes the
// locks of the path's rows, and of both rows of the key even if the path needs only one: else two
// clients could insert one key into different rows. In the same trip it reads all rows of these
// locks, and looks for a path again, in these rows alone. If there is one, it writes the path's
// rows from the end to the beginning. So each entry that moves is in both its rows for a moment,
// and always in one of them. If there is none, it releases the locks and guesses again, from what
// it has read.
//
// A path a, b, c, where c is one of the key's rows, and a has a free slot, is written as
//
//	a: the entry that is in b's slot    this entry is in a and in b then
//	b: the entry that is in c's slot    this entry is in b and in c, the one before in a alone
//	c: the new entry
//
// in one batch, behind one redo. So a reader finds each key that moves, and the new key once the
// last row has landed. What a crash leaves is a prefix of these WRITEs, the last of them perhaps
// torn. The locks of all rows are still held then, and the redo names all of them: repair writes
// the rest (redo.go of package table).

var (
	errExists = fmt.Errorf("one of its rows has it: %w", client.ErrExists)
	errFull   = fmt.Errorf("no cuckoo path of %d moves leads to a free slot: %w", table.SearchDepth, client.ErrFull)
)

// guesses is how often a path is guessed from the cache before the key's neighbourhood is read for
// it.
const guesses = 3

// insert tries paths until one works. Each try that finds its guess wrong has read the rows that
// it had locked, so the next guess comes from rows that are up to date. The first guesses come from
// the cache, which may be out of date; later ones from rows that explore reads. The error wraps
// client.ErrFull when no path exists and the table cannot grow, and rdma.ErrTimeout when the time
// is used up; nothing was changed then.
//
// No lock is held between two tries. A crash there leaves an intent that is idle, or names locks
// which are free, and the extent of the value in the claim list.
func (s *Store) insert(o *session.Op, at table.Place, key, value []byte) error {
	for round := 0; ; round++ {
		path, result := s.search.Find(s.cache, at, table.SearchDepth)
		// If the cache says that the table is full, it may be out of date.
		if round >= guesses || result == search.PathNone {
			var err error
			if path, result, err = s.explore(o, at); err != nil {
				return err
			}
		}
		if round > 0 {
			o.Stats.Searches++
		}
		done, err := s.insertBy(o, path, &at, key, value, result == search.PathNone)
		switch {
		case done || err != nil:
			return err
		case o.Left() == 0:
			return session.ErrWaited
		}
	}
}

// insertBy locks the rows of a path and those of the key, and inserts the key if the locked rows
// have a path. done false: they have none, and the worker holds nothing. full: no path was found
// anywhere, so the table has to grow.
func (s *Store) insertBy(o *session.Op, path []search.Step, at *table.Place, key, value []byte, full bool) (
	done bool, err error,
) {
	// Rows may be named in any order, and several times: locks sorts their bits by words (section
	// 3.4.1). With each lock all of its rows are read, so a path through other rows than were
	// guessed may be found, too.
	s.locks.Start(at.Shard)
	s.locks.LockCovered(o, at.First)
	s.locks.LockCovered(o, at.Second)
	for _, p := range path {
		s.locks.LockCovered(o, p.Row)
	}
	// Each try writes the value into the same extent again. No row names the extent before the
	// last try, so no reader sees it change.
	if err := s.acquire(o, s.taken, key, value); err != nil {
		return false, err
	}
	_, slot, err := s.held(o, at, key)
	if err != nil {
		return false, err
	}
	// Both rows were read under their locks, so the answer is sure, and no other client inserts
	// the key meanwhile.
	if slot >= 0 {
		if err := s.locks.Release(o); err != nil {
			return false, err
		}
		return false, errExists
	}
	s.remember(o)
	// Only a path in locked rows counts. It may be another one than was guessed.
	path, result := s.search.Find(lockedRows{s}, *at, table.SearchDepth)
	switch {
	case result != search.PathFound && full: // it divides rows, which releases the locks
		return false, s.makeRoom(o, *at)
	case result != search.PathFound: // the guess was out of date; the cache is up to date now
		return false, s.locks.Release(o)
	}
	// Each row gets the entry of the row that is written after it, and the last one the new entry.
	for i, p := range path {
		c := table.Change{Row: p.Row, Slot: p.Slot}
		if i+1 < len(path) {
			// The entry shares the memory of the row that was read, which stays until the rows
			// are written.
			c.Entry = o.Table.Entry(s.locks.Row(path[i+1].Row, o.Table.RowBytes), path[i+1].Slot)
		} else {
			c.Entry = s.newEntry(key, value)
		}
		s.changes[i] = c
	}
	o.Stats.Paths[len(path)-1]++
	return true, s.write(o, s.changes[:len(path)], table.Ref{})
}

// remember puts all valid rows that were read into the cache.
func (s *Store) remember(o *session.Op) {
	l := s.locks
	l.EachRow(o.Table.RowBytes, func(n uint32, r table.Row) {
		if o.Table.Valid(r, l.Shard, n) {
			s.cache.Put(l.Shard, n, r)
		}
	})
}

// lockedRows is a view of the rows that are locked and read. They do not change while the locks
// are held.
type lockedRows struct{ s *Store }

func (v lockedRows) Row(shard int, n uint32) table.Row {
	r := v.s.locks.Row(n, v.s.session.Table.RowBytes)
	if r == nil || !v.s.session.Table.Valid(r, shard, n) {
		return nil
	}
	return r
}

// explore looks for a path in rows that it reads without locks, as many trips as the search
// needs. PathNone: all rows within reach were full when they were read.
//
// The rows that it collects are of different moments. The path is a guess all the same, better
// than that from the cache: the search in locked rows decides.
func (s *Store) explore(o *session.Op, at table.Place) ([]search.Step, search.Result, error) {
	rows := search.Neighbourhood{}
	r := o.Pace
	r.Tries = 1 // a torn row takes longer to become whole than a lock to become free
	for {
		path, result := s.search.Find(rows, at, table.SearchDepth)
		if result != search.PathGuessed || len(s.search.Missing) == 0 {
			return path, result, nil
		}
		torn, err := s.readMissing(o, at.Shard, rows)
		if err != nil {
			return nil, search.PathNone, err
		}
		if torn > 0 {
			r.Wait()
		}
		if o.Left() == 0 {
			return nil, search.PathNone, session.ErrWaited
		}
	}
}

// readMissing reads the rows that the last search lacked, copies them into rows, and returns how
// many were torn.
func (s *Store) readMissing(o *session.Op, shard int, rows search.Neighbourhood) (torn int, err error) {
	b := o.EP.Batch()
	for _, n := range s.search.Missing {
		b.Read(o.Table.RowAt(o.Table.Leads[shard], n), o.Table.RowBytes)
	}
	if err := o.Do(steps.ReadNeighbours, b); err != nil {
		return 0, s.locks.Unread(o, shard, b, fmt.Errorf("read rows of shard %d: %w", shard, err))
	}
	defer b.Release()
	for i, n := range s.search.Missing {
		r := table.Row(b.Op(i).Buf)
		if !o.Table.Valid(r, shard, n) {
			torn++
			continue
		}
		// A copy: the search goes on when the batch is released. A torn row stays out of the view,
		// so the next search asks for it again.
		rows[n] = append(table.Row(nil), r...)
		s.cache.Put(shard, n, r)
	}
	return torn, nil
}
