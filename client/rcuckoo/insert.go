package rcuckoo

import (
	"fmt"

	"github.com/farkv/farkv/client"
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
	errFull   = fmt.Errorf("no cuckoo path of %d moves leads to a free slot: %w", searchDepth, client.ErrFull)
)

// guesses is how often a path is guessed from the cache before the key's neighbourhood is read for
// it.
const guesses = 3

// insert tries paths until one works. The first guesses come from the cache, which may be out of
// date; later ones from rows that explore reads. The error wraps client.ErrFull when no path
// exists and the table cannot grow, and rdma.ErrTimeout when the time is used up; nothing was
// changed then.
func (s *Store) insert(at place, key, value []byte) error {
	for round := 0; ; round++ {
		path, result := s.search.find(s.cache, at, searchDepth)
		// If the cache says that the table is full, it may be out of date.
		if round >= guesses || result == pathNone {
			var err error
			if path, result, err = s.explore(at); err != nil {
				return err
			}
		}
		if round > 0 {
			s.stats.Searches++
		}
		done, err := s.insertBy(path, &at, key, value, result == pathNone)
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
func (s *Store) insertBy(path []step, at *place, key, value []byte, full bool) (done bool, err error) {
	s.want(at.shard)
	s.wantCovered(at.first)
	s.wantCovered(at.second)
	for _, p := range path {
		s.wantCovered(p.row)
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
	path, result := s.search.find(lockedRows{s}, *at, searchDepth)
	switch {
	case result != pathFound && full: // it divides rows, which releases the locks
		return false, s.makeRoom(*at)
	case result != pathFound: // the guess was out of date; the cache is up to date now
		return false, s.retreat()
	}
	// Each row gets the entry of the row that is written after it, and the last one the new entry.
	for i, p := range path {
		c := change{row: p.row, slot: p.slot}
		if i+1 < len(path) {
			c.entry = s.entry(s.locks.row(path[i+1].row, s.rowBytes), path[i+1].slot)
		} else {
			c.entry = s.newEntry(key, value)
		}
		s.changes[i] = c
	}
	s.stats.Paths[len(path)-1]++
	return true, s.write(s.changes[:len(path)], ref{})
}

// wantCovered adds the lock of a row to the wants, and all rows of that lock to what is read:
// they may be part of another path, at no more locks.
func (s *Store) wantCovered(n uint32) {
	s.wantRow(n)
	s.wantBand(s.lockedWith(n))
}

// remember puts all valid rows that were read into the cache.
func (s *Store) remember() {
	l := &s.locks
	for _, p := range l.bands {
		for n := p.from; n < p.to; n++ {
			if r := l.row(n, s.rowBytes); s.valid(r, l.shard, n) {
				s.cache.put(l.shard, n, r)
			}
		}
	}
}

// lockedRows is a view of the rows that are locked and read. They do not change while the locks
// are held.
type lockedRows struct{ s *Store }

func (v lockedRows) row(shard int, n uint32) row {
	r := v.s.locks.row(n, v.s.rowBytes)
	if r == nil || !v.s.valid(r, shard, n) {
		return nil
	}
	return r
}

// neighbourhood is a view of rows that were read without locks, by their ids. They may have
// changed since.
type neighbourhood map[uint32]row

func (v neighbourhood) row(_ int, n uint32) row { return v[n] }

// explore looks for a path in rows that it reads without locks, as many trips as the search
// needs. pathNone: all rows within reach were full when they were read.
func (s *Store) explore(at place) ([]step, found, error) {
	rows := neighbourhood{}
	r := s.pace
	r.Tries = 1 // a torn row takes longer to become whole than a lock to become free
	for {
		path, result := s.search.find(rows, at, searchDepth)
		if result != pathGuessed || len(s.search.missing) == 0 {
			return path, result, nil
		}
		torn, err := s.readMissing(at.shard, rows)
		if err != nil {
			return nil, pathNone, err
		}
		if torn > 0 {
			r.Wait()
		}
		if s.left() == 0 {
			return nil, pathNone, errWaited
		}
	}
}

// readMissing reads the rows that the last search lacked, copies them into rows, and returns how
// many were torn.
func (s *Store) readMissing(shard int, rows neighbourhood) (torn int, err error) {
	b := s.ep.Batch()
	for _, n := range s.search.missing {
		b.Read(s.rowAt(s.leads[shard], n), s.rowBytes)
	}
	if err := s.do(stepReadNeighbours, b); err != nil {
		return 0, s.unread(shard, b, fmt.Errorf("read rows of shard %d: %w", shard, err))
	}
	defer b.Release()
	for i, n := range s.search.missing {
		r := row(b.Op(i).Buf)
		if !s.valid(r, shard, n) {
			torn++
			continue
		}
		rows[n] = append(row(nil), r...)
		s.cache.put(shard, n, r)
	}
	return torn, nil
}
