// Package search looks for cuckoo paths (section 3.2.3 of RCuckoo's paper): in the rows that a
// client has cached, has read, or has locked.
package search

import (
	"github.com/farkv/farkv/client/rcuckoo/table"
)

// A view is a set of rows that a search may read: those in a client's cache, or those that it has
// locked.
type View interface {
	// row returns a valid row of a shard, which may be used until the view changes. nil: the view
	// does not have it.
	Row(shard int, n uint32) table.Row
}

// A step of a cuckoo path writes one slot. The first step writes the free slot at the path's end,
// with the entry from the slot of the second step, and so on. The last one writes the new entry,
// in one of the key's rows.
type Step struct {
	Row  uint32
	Slot int // unknown in a row that the view does not have
}

const unknown = -1

// Result is the result of a search.
type Result int

const (
	// PathFound: the path ends in a free slot.
	PathFound Result = iota
	// PathGuessed: the path ends in a row that the view does not have, and which may have a free
	// slot. With an empty cache the path is the key's first row alone (section 3.2.3).
	PathGuessed
	// PathNone: the view has all rows that can be reached, and they are full.
	PathNone
)

// A search looks for cuckoo paths, breadth first, so that it finds a shortest one. It reuses its
// memory: once that is as large as searches need, nothing is allocated.
type Search struct {
	// Levels guesses which row of a number has a key. The Store learns from growth words, and
	// keeps it up to date: a wrong guess makes a row that is on no path seem to be missing.
	table  *table.Layout
	Levels *table.Levels
	// visits are the rows that the last search reached, in the order of the search.
	visits []visit
	// seen are the rows of visits.
	seen rowSet
	// steps has the memory of the result.
	steps [table.MaxSteps]Step
	// Missing are the rows that the last search needed and the view did not have, nearest first.
	Missing []uint32
}

// visit is a row that a path can reach: the entry in a slot of an earlier visit's row could move
// here.
type visit struct {
	row uint32
	// from is the index of the earlier visit; -1: it is one of the key's own rows.
	from int32
	// slot is the slot in the earlier visit's row.
	slot uint8
	// depth is how many entries move on the way here.
	depth uint8
}

// mostMissing bounds the rows that a client reads in one trip when it finds no path in the rows
// that it has.
const mostMissing = 32

// New returns a search for a layout. A worker has one, as its memory is reused.
func New(l *table.Layout) *Search {
	return &Search{table: l, Levels: table.NewLevels(l), Missing: make([]uint32, 0, mostMissing)}
}

// Find returns a shortest path by which an entry of a place can be inserted, with at most depth
// others moved. Steps are in the order in which the rows are written: from the free slot at the
// end of the path back to one of the place's rows. So an entry that moves is in both its rows for
// a moment, and always in one. A path has no row twice: the rows of a path are written in one redo,
// which has one change for each row. The result is valid until the next call.
//
// If the view does not have one of the key's own rows, find guesses that this row has a free
// slot, as it is locked and read anyhow. It guesses so of other rows only if it finds no path
// through rows that the view has. A row that is not made yet is on no path, however empty it is:
// see resolve.
func (s *Search) Find(v View, at table.Place, depth int) ([]Step, Result) {
	s.visits, s.Missing = s.visits[:0], s.Missing[:0]
	s.seen.reset()
	guess := -1
	// look adds a row to the visits unless it is there, and reports whether the row has a free
	// slot. Of the rows that the view does not have, the one that was reached first is guessed.
	look := func(n, bits uint32, from int32, slot, depth uint8) (free bool) {
		n, r := s.resolve(v, at.Shard, n, bits)
		if !s.seen.add(n) {
			return false
		}
		s.visits = append(s.visits, visit{n, from, slot, depth})
		if r == nil {
			if guess < 0 {
				guess = len(s.visits) - 1
			}
			if len(s.Missing) < mostMissing {
				s.Missing = append(s.Missing, n)
			}
			return false
		}
		return s.table.Free(r) >= 0
	}
	for _, n := range [2]uint32{at.First, at.Second} {
		if look(s.table.Number(n), at.Bits, -1, 0, 0) {
			return s.path(v, at.Shard, len(s.visits)-1), PathFound
		}
	}
	if guess >= 0 {
		return s.path(v, at.Shard, guess), PathGuessed
	}
	// Breadth first: visits are a queue, in ascending order of depth, so the first free slot ends
	// a shortest path.
	for i := 0; i < len(s.visits) && int(s.visits[i].depth) < depth; i++ {
		w := s.visits[i]
		r := v.Row(at.Shard, w.row)
		if r == nil {
			continue
		}
		// An entry in a slot of this row could move to its other row, if that row has room.
		for slot := range s.table.Slots {
			to, bits, ok := s.other(r, slot, at.Shard, w.row)
			if !ok {
				continue
			}
			if look(to, bits, int32(i), uint8(slot), w.depth+1) {
				return s.path(v, at.Shard, len(s.visits)-1), PathFound
			}
		}
	}
	// No path leads through rows that the view has. The nearest row that it does not have may
	// have a free slot.
	if guess >= 0 {
		return s.path(v, at.Shard, guess), PathGuessed
	}
	return nil, PathNone
}

// other returns the number and the bits of the other row where the entry in a slot may be. false:
// there is no entry that can move. Entries that no client can have written, or that are in a
// wrong row, are damage, and are not moved.
func (s *Search) other(r table.Row, slot, shard int, n uint32) (to, bits uint32, ok bool) {
	e := s.table.Entry(r, slot)
	if !e.Meta.Used() || !s.table.Sound(e) {
		return 0, 0, false
	}
	p := s.table.Place(s.table.Key(e))
	number := s.table.Number(n)
	return p.Other(number), p.Bits, p.Shard == shard && p.Has(number) && s.table.Belongs(n, p.Bits, r)
}

// resolve returns the row of a number where entries with these bits belong, if the view has it.
// Else it returns nil and the id of a row to read: one on the way to the right row, or one to
// read again as two rows of the view contradict each other.
func (s *Search) resolve(v View, shard int, number, segment uint32) (id uint32, r table.Row) {
	l := s.table
	if l.Levels == 0 {
		return number, v.Row(shard, number)
	}
	// A view may have several such rows, from different moments: the one that was made last is
	// right.
	for g := l.Levels; g >= 0; g-- {
		if id = number + uint32(l.Rows)*(segment&(1<<g-1)); g < l.Levels && segment>>g&1 == 0 {
			continue // the row of level g+1 has the same id
		}
		if r = v.Row(shard, id); r != nil && l.Belongs(id, segment, r) {
			return id, r
		}
	}
	// The view does not have the right row. Its other rows of the number lead towards it, from
	// the row that is guessed.
	id = s.Levels.Guess(shard, number, segment)
	for up, down := false, false; ; {
		if r = v.Row(shard, id); r == nil {
			return id, nil
		}
		next, ok := l.Right(id, segment, r)
		if ok {
			return id, r
		}
		up, down = up || next < id, down || next > id
		if up && down { // a row was made after the view's copy was read: read the child again
			return max(id, next), nil
		}
		id = next
	}
}

// path returns the steps from a visit, the end of a path, back to one of the key's rows. Each
// visit names the one that it was reached from, so the steps come out in the order of the WRITEs.
func (s *Search) path(v View, shard, last int) []Step {
	w, slot, n := s.visits[last], unknown, 0
	if r := v.Row(shard, w.row); r != nil {
		slot = s.table.Free(r)
	}
	for {
		s.steps[n] = Step{w.row, slot}
		n++
		if w.from < 0 {
			return s.steps[:n]
		}
		slot = int(w.slot)
		w = s.visits[w.from]
	}
}

// rowSet is a hash set of rows, with linear probing. It is emptied in constant time: only slots
// with the set's turn are occupied.
type rowSet struct {
	// slots are a power of two. At most half of them are occupied, so probing ends.
	slots []struct{ row, turn uint32 }
	// turn is not 0 once reset was called: zero slots are free.
	turn uint32
	n    int // rows in the set
}

// leastRowSet is how many slots a set has at first.
const leastRowSet = 1 << 8

// reset empties the set. It must be called before the first add.
func (s *rowSet) reset() {
	s.n = 0
	if s.turn++; s.turn == 0 || s.slots == nil { // turns start again: old slots would seem to be occupied
		s.slots = make([]struct{ row, turn uint32 }, max(len(s.slots), leastRowSet))
		s.turn = 1
	}
}

// add adds a row, and reports whether it is new.
func (s *rowSet) add(row uint32) bool {
	mask := uint32(len(s.slots) - 1)
	i := uint32(table.Spread(uint64(row))) & mask
	for ; s.slots[i].turn == s.turn; i = (i + 1) & mask {
		if s.slots[i].row == row {
			return false
		}
	}
	s.slots[i].row, s.slots[i].turn = row, s.turn
	// At most half of the slots are occupied then, as probing needs.
	if s.n++; 2*s.n > len(s.slots) {
		s.grow()
	}
	return true
}

// grow doubles the slots. Rows of earlier turns are dropped.
func (s *rowSet) grow() {
	old := s.slots
	s.slots = make([]struct{ row, turn uint32 }, 2*len(old))
	s.n = 0
	for _, e := range old {
		if e.turn == s.turn {
			s.add(e.row)
		}
	}
}

// Neighbourhood is a view of rows that were read without locks, by their ids. They may have
// changed since.
type Neighbourhood map[uint32]table.Row

// Row implements View.
func (v Neighbourhood) Row(_ int, n uint32) table.Row { return v[n] }
