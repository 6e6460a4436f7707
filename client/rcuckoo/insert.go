package rcuckoo

import (
	"fmt"

	"github.com/farkv/farkv/client"
)

// INSERT (section 3.2.3) guesses a cuckoo path from what it remembers of the table, takes the locks
// of its rows, and of both rows of the key even if the path needs only one: else two clients would
// insert one key into different rows. In the same trip it reads all rows of these locks, and looks
// for a path again, in them alone. If there is one its rows are written, from its end to its
// beginning, so that each entry on the way is in both its rows for a moment and always in one; if
// not, it lets go and guesses again, from what it has read.

var (
	errExists = fmt.Errorf("one of its rows has it: %w", client.ErrExists)
	errFull   = fmt.Errorf("no cuckoo path of %d moves leads to a free slot: %w", searchDepth, client.ErrFull)
)

// guesses is how often a path is guessed from the cache before the key's neighbourhood is read for
// it.
const guesses = 3

func (s *Store) insert(at place, key, value []byte) error {
	for round := 0; ; round++ {
		path, result := s.search.find(s.cache, at, searchDepth)
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

// insertBy locks the rows of a path and those of the key, and inserts it if there is a path then;
// false: there is none. full: nor was there anywhere else, so that the table has to grow.
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
	path, result := s.search.find(lockedRows{s}, *at, searchDepth)
	switch {
	case result != pathFound && full:
		return false, s.makeRoom(*at)
	case result != pathFound:
		return false, s.retreat()
	}
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

// wantCovered locks a row and reads all that this locks with it.
func (s *Store) wantCovered(n uint32) {
	s.wantRow(n)
	s.wantBand(s.lockedWith(n))
}

// remember keeps what was read in the cache.
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

// lockedRows is a view of the rows that are locked.
type lockedRows struct{ s *Store }

func (v lockedRows) row(shard int, n uint32) row {
	r := v.s.locks.row(n, v.s.rowBytes)
	if r == nil || !v.s.valid(r, shard, n) {
		return nil
	}
	return r
}

// neighbourhood is a view of rows as they were a moment ago.
type neighbourhood map[uint32]row

func (v neighbourhood) row(_ int, n uint32) row { return v[n] }

// explore looks for a path in rows that it reads for that, without locks. pathNone: all rows within
// reach are full.
func (s *Store) explore(at place) ([]step, found, error) {
	rows := neighbourhood{}
	r := s.pace
	r.Tries = 1 // rows are whole again later than a lock is free
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

// readMissing reads the rows that the last search lacked, and returns how many are torn.
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
