package rcuckoo

import (
	"math/bits"

	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// A table may double (beyond the paper; F12 of FUSEE has the same for RACE). Its rows lie in
// segments, of T rows each, T being Params.Rows; the first is the whole table until it grows. A key
// has two row numbers below T, as the paper has them, whatever the table's size, and a string of
// segment bits. A row's id is segment*T + number.
//
// All rows of a number have one lock: virtual locks, of which the paper has some for its own
// reasons. So a row is divided under one lock, and what there is of intents, leases and redos
// serves it.
//
// Each row has a level, in its version word. A row of level g has the entries whose lowest g
// segment bits are its segment's number. It is divided in two: those whose bit g is set move to row
// segment + 2^g of the same number, which is new, and both are of level g+1. So the segment of a
// row says at which level it began (its birth), and a row whose level is below that was not made
// yet: it is zero. For each number the rows that were made are the leaves of a binary tree, of
// which a key's bits name one.
//
// The new row is written ahead of the old one, behind a redo that names both, under their lock.
// Until the old one is written no client writes either of them: both have the same entries of those
// that move. From the moment when the new row has landed these entries belong to it:
//
//   - a client that looks at the new row finds what the old one has, or misses what it does not
//     have;
//   - a client that looks at the old row, which is of level g still, finds the same.
//
// So a row that was read whole, and is the key's by its own level, has the key if that row number
// has it: no other row need be looked at. A miss is what two looks say that find the same two rows
// with the same versions, as in a table that does not grow. Since a redo that landed whole is
// always carried out before the lock is free, no row of a later segment is ever half made where its
// lock is free.
//
// What a client takes to be the level of a table is a guess that costs a trip where it is wrong; it
// follows from the shard's growth word, as it was last seen.
const (
	// MaxLevels bounds Params.Levels: a table may grow to 65,536 times its size.
	MaxLevels = 16

	levelShift = 56
	levelOne   = 1 << levelShift
	// divided is how far the version word of a row is behind its division from what it was before: one
	// level, and one version.
	divided = levelOne + 1

	// A growth is a word of level and cursor, changed by atomics: see grow.go; and how many segments
	// behind the first have memory.
	growthBytes    = 16
	growthSegments = 8
)

// segmentBits mixes a key's hashes once more, so that its segment has nothing to do with its shard
// and its row numbers.
func (l *layout) segmentBits(h1, h2, h3 uint64) uint32 {
	return uint32(spread(h1^spread(h2^spread(h3)))) & (1<<l.Levels - 1)
}

// allRows is how many a shard has when it has grown as far as it may.
func (l *layout) allRows() int { return l.Rows << l.Levels }

// number returns a row's, which it has in common with one row of each segment.
func (l *layout) number(id uint32) uint32 {
	if id < uint32(l.Rows) {
		return id
	}
	return id % uint32(l.Rows)
}

// segment returns a row's.
func (l *layout) segment(id uint32) uint32 { return id / uint32(l.Rows) }

// birth returns the level at which a row is made; 0: it is there from the beginning.
func (l *layout) birth(id uint32) int { return bits.Len32(l.segment(id)) }

// parent returns the row whose division makes a row, whose birth is not 0.
func (l *layout) parent(id uint32) uint32 {
	return id - uint32(l.Rows)<<(l.birth(id)-1)
}

// child returns the row that a row's next division makes.
func (l *layout) child(id uint32, level int) uint32 { return id + uint32(l.Rows)<<level }

// made reports whether a valid row is part of the table.
func (l *layout) made(id uint32, r row) bool { return l.level(r) >= l.birth(id) }

// belongs reports whether entries with these bits belong into a valid row of their number. None do
// where its level is below its birth: its segment has a bit that is above the level.
func (l *layout) belongs(id, bits uint32, r row) bool {
	return bits&(1<<l.level(r)-1) == l.segment(id)
}

// right reports whether a valid row, whose segment agrees with some bits, is the one of its number
// for entries with these bits. Else it returns one that is nearer to it. Both ways end: a row that
// was not made leads to a parent, and one that was divided to a child that was made, of which there
// are no more than levels.
func (l *layout) right(id, segment uint32, r row) (next uint32, ok bool) {
	if l.Levels == 0 {
		return id, true
	}
	if !l.made(id, r) {
		return l.parent(id), false
	}
	birth := l.birth(id)
	rest := segment & (1<<l.level(r) - 1) >> birth << birth
	if rest == 0 {
		return id, true
	}
	return l.child(id, bits.TrailingZeros32(rest)), false
}

// follow has a place lead to where the rows that were read say that its key belongs; true: both are
// right.
func (l *layout) follow(at *place, first, second row) bool {
	var ok1, ok2 bool
	at.first, ok1 = l.right(at.first, at.bits, first)
	at.second, ok2 = l.right(at.second, at.bits, second)
	return ok1 && ok2
}

func (l *layout) growthAt(shard int) rdma.Addr { return l.at(l.growths, shard, 0) }

// growthOf returns the level of a growth word, and how many shares of the rows of the level before
// have been handed out.
func growthOf(word uint64) (level int, cursor uint64) {
	return int(word >> levelShift), word & (levelOne - 1)
}

// levels is what a client knows of how far tables have grown. A table is never less far than that.
type levels struct {
	*layout
	words  []uint64 // of each shard: the growth word that was seen last
	doubts []bool   // of each shard: a guess was wrong
}

func newLevels(l *layout) *levels {
	g := &levels{layout: l}
	if l.Levels > 0 {
		g.words, g.doubts = make([]uint64, l.Shards), make([]bool, l.Shards)
	}
	return g
}

// guess returns the row of a number where entries with these bits belong, as far as is known.
func (g *levels) guess(shard int, number, bits uint32) uint32 {
	if g.Levels == 0 {
		return number
	}
	level, cursor := growthOf(g.words[shard])
	if level == 0 {
		return number
	}
	id := number + uint32(g.Rows)*(bits&(1<<(level-1)-1))
	if g.shareOf(id) < cursor {
		id = number + uint32(g.Rows)*(bits&(1<<level-1))
	}
	return id
}

// forget forgets how far a table has grown: from now on the shard's new leader says so.
func (g *levels) forget(shard int) {
	if g.Levels > 0 {
		g.words[shard], g.doubts[shard] = 0, true
	}
}

// learn takes note of a growth word.
func (g *levels) learn(shard int, word uint64) {
	g.words[shard] = max(g.words[shard], word)
	g.doubts[shard] = false
}

// where returns the place of a key, as far as is known.
func (s *Store) where(key []byte) place {
	at := s.place(key)
	if s.Levels > 0 {
		at.first, at.second = s.levels.guess(at.shard, at.first, at.bits), s.levels.guess(at.shard, at.second, at.bits)
	}
	return at
}

// addGrowth adds a READ of the growth word to a batch where a guess was wrong; else it returns nil.
func (s *Store) addGrowth(b *rdma.Batch, shard int) *rdma.Op {
	if s.Levels == 0 || !s.levels.doubts[shard] {
		return nil
	}
	return b.Read(s.growthAt(shard), 8)
}

// learned takes note of what addGrowth read.
func (s *Store) learned(shard int, read *rdma.Op) {
	if read != nil {
		s.levels.learn(shard, le.Uint64(read.Buf))
	}
}

// readGrowths reads how far the tables have grown.
func (s *Store) readGrowths() error {
	if s.Levels == 0 {
		return nil
	}
	b := s.ep.Batch()
	defer b.Release()
	for shard := range s.Shards {
		b.Read(s.growthAt(shard), 8)
	}
	if err := s.ep.Post(b.As(stepReadGrowth)); err != nil {
		return err
	}
	if err := s.ep.Wait(b, rdma.All, s.each); err != nil {
		return err
	}
	for shard := range s.Shards {
		if op := b.Op(shard); op.Err == nil { // of a node that is down nothing is needed now
			s.levels.learn(shard, le.Uint64(op.Buf))
		}
	}
	return nil
}

// commit backs what a new pool needs on a node: all but slabs, and the rows of later segments.
func (l *layout) commit(f rdma.Fabric, n int) error {
	if l.Replicas > 1 { // whose copies would have to agree when to back more
		return node.Commit(f, n, 0, l.bytes)
	}
	if l.Tickets > 0 {
		if err := node.Commit(f, n, l.tickets.base, l.tickets.each*uint64(l.perNode)); err != nil {
			return err
		}
	}
	if l.Levels == 0 {
		return node.Commit(f, n, 0, l.slabs.base)
	}
	if err := node.Commit(f, n, 0, l.rows.base); err != nil {
		return err
	}
	for i := range l.perNode {
		if err := node.Commit(f, n, l.rows.of(i), uint64(l.Rows)*uint64(l.rowBytes)); err != nil {
			return err
		}
	}
	return nil
}
