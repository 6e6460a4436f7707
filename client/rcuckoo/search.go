package rcuckoo

// A view is the rows that a search may look at: those that a client remembers, or those that it has
// locked.
type view interface {
	// row returns a row of a shard, which is valid, until the view changes; nil: it is not known.
	row(shard int, n uint32) row
}

// A step of a cuckoo path is a slot that is written: with the entry of the next step's slot, and in
// the last step with the new one.
type step struct {
	row  uint32
	slot int // unknown: that of a row that is not known
}

const unknown = -1

// found is what a search came to.
type found int

const (
	// pathFound: the path ends in a free slot.
	pathFound found = iota
	// pathGuessed: the path ends in a row that is not known, and presumed to have a free slot. Of an
	// empty cache it is the key's first row alone (section 3.2.3).
	pathGuessed
	// pathNone: all rows that can be reached are known, and full.
	pathNone
)

// A search looks for cuckoo paths, breadth first, so that it finds the shortest. Its memory is used
// again: once it has grown to what searches need nothing is allocated.
type search struct {
	l       *layout
	levels  *levels
	visits  []visit
	seen    rowSet
	steps   [maxSteps]step
	missing []uint32 // rows that the last search would have looked at, had they been known: the nearest, in order
}

// visit is a row that can be reached: the entry in a slot of an earlier visit's row could move
// here.
type visit struct {
	row   uint32
	from  int32 // -1: it is one of the key's own rows
	slot  uint8
	depth uint8
}

// mostMissing bounds the rows that a client reads ahead in one trip when it finds no path in what
// it knows.
const mostMissing = 32

func newSearch(l *layout) *search {
	return &search{l: l, levels: newLevels(l), missing: make([]uint32, 0, mostMissing)}
}

// find returns the shortest path by which an entry of a place can be inserted, with no more than
// depth others moved. Steps are in the order in which rows are written: from the end of the path, a
// free slot, back to one of the place's rows. So in between an entry may be in both its rows, but
// is always in one. A path has no row twice. It is valid until the next call.
//
// A row that is not known is presumed to be free if it is the key's own, since that will be locked
// and read anyhow; else only if no path through known rows is found. A row that was not made yet is
// none, however empty it is: see resolve.
func (s *search) find(v view, at place, depth int) ([]step, found) {
	s.visits, s.missing = s.visits[:0], s.missing[:0]
	s.seen.reset()
	guess := -1
	look := func(n, bits uint32, from int32, slot, depth uint8) (free bool) {
		n, r := s.resolve(v, at.shard, n, bits)
		if !s.seen.add(n) {
			return false
		}
		s.visits = append(s.visits, visit{n, from, slot, depth})
		if r == nil {
			if guess < 0 {
				guess = len(s.visits) - 1
			}
			if len(s.missing) < mostMissing {
				s.missing = append(s.missing, n)
			}
			return false
		}
		return s.l.free(r) >= 0
	}
	for _, n := range [2]uint32{at.first, at.second} {
		if look(s.l.number(n), at.bits, -1, 0, 0) {
			return s.path(v, at.shard, len(s.visits)-1), pathFound
		}
	}
	if guess >= 0 {
		return s.path(v, at.shard, guess), pathGuessed
	}
	for i := 0; i < len(s.visits) && int(s.visits[i].depth) < depth; i++ {
		w := s.visits[i]
		r := v.row(at.shard, w.row)
		if r == nil {
			continue
		}
		for slot := range s.l.entries {
			to, bits, ok := s.other(r, slot, at.shard, w.row)
			if !ok {
				continue
			}
			if look(to, bits, int32(i), uint8(slot), w.depth+1) {
				return s.path(v, at.shard, len(s.visits)-1), pathFound
			}
		}
	}
	if guess >= 0 {
		return s.path(v, at.shard, guess), pathGuessed
	}
	return nil, pathNone
}

// other returns the number, and the bits, of the row where else the entry in a slot may be. Entries
// that no client can have written stay where they are.
func (s *search) other(r row, slot, shard int, n uint32) (to, bits uint32, ok bool) {
	e := s.l.entry(r, slot)
	if !e.meta.used() || !s.l.sound(e) {
		return 0, 0, false
	}
	p := s.l.place(s.l.key(e))
	number := s.l.number(n)
	return p.other(number), p.bits, p.shard == shard && p.has(number) && s.l.belongs(n, p.bits, r)
}

// resolve returns the row of a number where entries with these bits belong, as far as a view knows;
// else one that is to be read for that, or read again where two contradict each other, and nil.
func (s *search) resolve(v view, shard int, number, segment uint32) (id uint32, r row) {
	l := s.l
	if l.Levels == 0 {
		return number, v.row(shard, number)
	}
	for g := l.Levels; g >= 0; g-- { // of several that a view has, of different moments, the last one made
		if id = number + uint32(l.Rows)*(segment&(1<<g-1)); g < l.Levels && segment>>g&1 == 0 {
			continue // as with the bit
		}
		if r = v.row(shard, id); r != nil && l.belongs(id, segment, r) {
			return id, r
		}
	}
	id = s.levels.guess(shard, number, segment)
	for up, down := false, false; ; {
		if r = v.row(shard, id); r == nil {
			return id, nil
		}
		next, ok := l.right(id, segment, r)
		if ok {
			return id, r
		}
		up, down = up || next < id, down || next > id
		if up && down { // a row was made between two looks: the later one is the child's
			return max(id, next), nil
		}
		id = next
	}
}

// path walks back from the last visit of a path.
func (s *search) path(v view, shard, last int) []step {
	w, slot, n := s.visits[last], unknown, 0
	if r := v.row(shard, w.row); r != nil {
		slot = s.l.free(r)
	}
	for {
		s.steps[n] = step{w.row, slot}
		n++
		if w.from < 0 {
			return s.steps[:n]
		}
		slot = int(w.slot)
		w = s.visits[w.from]
	}
}

// rowSet is a set of rows that is emptied in no time: a row is in it if it bears the set's turn.
type rowSet struct {
	slots []struct{ row, turn uint32 } // a power of two, at most half of which are of this turn
	turn  uint32
	n     int
}

const leastRowSet = 1 << 8

func (s *rowSet) reset() {
	s.n = 0
	if s.turn++; s.turn == 0 || s.slots == nil { // turns of long ago look like this one
		s.slots = make([]struct{ row, turn uint32 }, max(len(s.slots), leastRowSet))
		s.turn = 1
	}
}

// add reports whether the row is new.
func (s *rowSet) add(row uint32) bool {
	mask := uint32(len(s.slots) - 1)
	i := uint32(spread(uint64(row))) & mask
	for ; s.slots[i].turn == s.turn; i = (i + 1) & mask {
		if s.slots[i].row == row {
			return false
		}
	}
	s.slots[i].row, s.slots[i].turn = row, s.turn
	if s.n++; 2*s.n > len(s.slots) {
		s.grow()
	}
	return true
}

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
