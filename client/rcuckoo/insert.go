package rcuckoo

import (
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/rcuckoo/search"
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

var (
	errExists = fmt.Errorf("one of its rows has it: %w", client.ErrExists)
	errFull   = fmt.Errorf("no cuckoo path of %d moves leads to a free slot: %w", table.SearchDepth, client.ErrFull)
)

// guesses is how often a path is guessed from the cache before the key's neighbourhood is read for
// it.
const guesses = 3

// insert tries paths until one works. The first guesses come from the cache, which may be out of
// date; later ones from rows that explore reads. The error wraps client.ErrFull when no path
// exists and the table cannot grow, and rdma.ErrTimeout when the time is used up; nothing was
// changed then.
func (s *Store) insert(at table.Place, key, value []byte) error {
	for round := 0; ; round++ {
		path, result := s.search.Find(s.cache, at, table.SearchDepth)
		// If the cache says that the table is full, it may be out of date.
		if round >= guesses || result == search.PathNone {
			var err error
			if path, result, err = s.explore(at); err != nil {
				return err
			}
		}
		if round > 0 {
			s.stats.Searches++
		}
		done, err := s.insertBy(path, &at, key, value, result == search.PathNone)
		switch {
		case done || err != nil:
			return err
		case s.left() == 0:
			return errWaited
		}
	}
}

// insertBy locks the rows of a path and those of the key, and inserts the key if the locked rows
// have a path. done false: they have none, and the worker holds nothing. full: no path was found
// anywhere, so the table has to grow.
func (s *Store) insertBy(path []search.Step, at *table.Place, key, value []byte, full bool) (done bool, err error) {
	s.want(at.Shard)
	s.wantCovered(at.First)
	s.wantCovered(at.Second)
	for _, p := range path {
		s.wantCovered(p.Row)
	}
	if err := s.acquire(key, value); err != nil {
		return false, err
	}
	_, slot, err := s.held(at, key)
	if err != nil {
		return false, err
	}
	if slot >= 0 {
		if err := s.retreat(); err != nil {
			return false, err
		}
		return false, errExists
	}
	s.remember()
	// Only a path in locked rows counts. It may be another one than was guessed.
	path, result := s.search.Find(lockedRows{s}, *at, table.SearchDepth)
	switch {
	case result != search.PathFound && full: // it divides rows, which releases the locks
		return false, s.makeRoom(*at)
	case result != search.PathFound: // the guess was out of date; the cache is up to date now
		return false, s.retreat()
	}
	// Each row gets the entry of the row that is written after it, and the last one the new entry.
	for i, p := range path {
		c := table.Change{Row: p.Row, Slot: p.Slot}
		if i+1 < len(path) {
			c.Entry = s.table.Entry(s.locks.row(path[i+1].Row, s.table.RowBytes), path[i+1].Slot)
		} else {
			c.Entry = s.newEntry(key, value)
		}
		s.changes[i] = c
	}
	s.stats.Paths[len(path)-1]++
	return true, s.write(s.changes[:len(path)], table.Ref{})
}

// wantCovered adds the lock of a row to the wants, and all rows of that lock to what is read:
// they may be part of another path, at no more locks.
func (s *Store) wantCovered(n uint32) {
	s.wantRow(n)
	s.wantBand(s.table.LockedWith(n))
}

// remember puts all valid rows that were read into the cache.
func (s *Store) remember() {
	l := &s.locks
	for _, p := range l.bands {
		for n := p.from; n < p.to; n++ {
			if r := l.row(n, s.table.RowBytes); s.table.Valid(r, l.shard, n) {
				s.cache.Put(l.shard, n, r)
			}
		}
	}
}

// lockedRows is a view of the rows that are locked and read. They do not change while the locks
// are held.
type lockedRows struct{ s *Store }

func (v lockedRows) Row(shard int, n uint32) table.Row {
	r := v.s.locks.row(n, v.s.table.RowBytes)
	if r == nil || !v.s.table.Valid(r, shard, n) {
		return nil
	}
	return r
}

// explore looks for a path in rows that it reads without locks, as many trips as the search
// needs. PathNone: all rows within reach were full when they were read.
func (s *Store) explore(at table.Place) ([]search.Step, search.Result, error) {
	rows := search.Neighbourhood{}
	r := s.pace
	r.Tries = 1 // a torn row takes longer to become whole than a lock to become free
	for {
		path, result := s.search.Find(rows, at, table.SearchDepth)
		if result != search.PathGuessed || len(s.search.Missing) == 0 {
			return path, result, nil
		}
		torn, err := s.readMissing(at.Shard, rows)
		if err != nil {
			return nil, search.PathNone, err
		}
		if torn > 0 {
			r.Wait()
		}
		if s.left() == 0 {
			return nil, search.PathNone, errWaited
		}
	}
}

// readMissing reads the rows that the last search lacked, copies them into rows, and returns how
// many were torn.
func (s *Store) readMissing(shard int, rows search.Neighbourhood) (torn int, err error) {
	b := s.ep.Batch()
	for _, n := range s.search.Missing {
		b.Read(s.table.RowAt(s.table.Leads[shard], n), s.table.RowBytes)
	}
	if err := s.do(steps.ReadNeighbours, b); err != nil {
		return 0, s.unread(shard, b, fmt.Errorf("read rows of shard %d: %w", shard, err))
	}
	defer b.Release()
	for i, n := range s.search.Missing {
		r := table.Row(b.Op(i).Buf)
		if !s.table.Valid(r, shard, n) {
			torn++
			continue
		}
		rows[n] = append(table.Row(nil), r...)
		s.cache.Put(shard, n, r)
	}
	return torn, nil
}
