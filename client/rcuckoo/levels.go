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
// All rows of a number share one lock (the paper's virtual locks, section 3.4.2, let rows share
// locks, too). So a row is divided under one lock, and intents, leases and redos work as for
// other changes.
//
// Each row has a level, in its version word. A row of level g has the entries with the row's
// segment number in their lowest g segment bits. It is divided in two: the entries with bit g set
// move to row segment + 2^g of the same number, which is new, and both rows get level g+1. So the
// segment of a row says at which level it begins (its birth). A row with a level below its birth
// is not made yet: it is zero. For each number, the rows that are made are the leaves of a binary
// tree, and a key's bits name one of them.
//
// The new row is written before the old one, behind a redo that names both, under their lock.
// Until the old one is written no client writes either of them, and both have the entries that
// move. From the moment when the new row has landed these entries belong to it:
//
//   - a client that reads the new row finds an entry that moves exactly if the old row has it;
//   - a client that reads the old row, which still has level g, finds the same.
//
// So if a row was read whole, and is the key's by its own level, it has the key if any row of its
// number has: no other row of that number need be read. The key is in neither row if two looks
// find the same two rows with the same versions and without the key, as in a table that does not
// grow. A redo that landed whole is carried out before the lock is free, so while the lock of a
// row is free the row is not half made.
//
// A crash during a division leaves the redo, and none, one or both of the rows, under the lock.
// Repair makes the new row from the old one, which is unchanged until the new one is whole.
//
// What a client takes for the level of a table is a guess, from the growth word that it saw last.
// A wrong guess costs a trip.
const (
	// MaxLevels bounds Params.Levels: a table may grow to 65,536 times its size.
	MaxLevels = 16

	// levelShift is the first bit of the level, in a version word and in a growth word.
	levelShift = 56
	levelOne   = 1 << levelShift
	// divided is by how much a division increases the version word of a row: one level, and one
	// version.
	divided = levelOne + 1

	// A growth is two words, changed by atomics: level and cursor, see grow.go; and, at
	// growthSegments, how many segments behind the first have memory.
	growthBytes    = 16
	growthSegments = 8
)

// segmentBits mixes a key's hashes once more, so that its segment does not depend on its shard
// and its row numbers.
func (l *layout) segmentBits(h1, h2, h3 uint64) uint32 {
	return uint32(spread(h1^spread(h2^spread(h3)))) & (1<<l.Levels - 1)
}

// allRows is how many rows a shard has when it has grown as far as it may. Ids of rows are below
// it.
func (l *layout) allRows() int { return l.Rows << l.Levels }

// number returns the number of a row, which one row of each segment has.
func (l *layout) number(id uint32) uint32 {
	if id < uint32(l.Rows) {
		return id
	}
	return id % uint32(l.Rows)
}

// segment returns the segment of a row.
func (l *layout) segment(id uint32) uint32 { return id / uint32(l.Rows) }

// birth returns the level at which a row is made; 0: it is there from the beginning.
func (l *layout) birth(id uint32) int { return bits.Len32(l.segment(id)) }

// parent returns the row that is divided to make a row. The row's birth must not be 0.
func (l *layout) parent(id uint32) uint32 {
	return id - uint32(l.Rows)<<(l.birth(id)-1)
}

// child returns the row that the next division of a row of a level makes.
func (l *layout) child(id uint32, level int) uint32 { return id + uint32(l.Rows)<<level }

// made reports whether a valid row is part of the table.
func (l *layout) made(id uint32, r row) bool { return l.level(r) >= l.birth(id) }

// belongs reports whether entries with these bits belong into a valid row of their number. None
// belong into a row that is not made: its segment has a bit above its level.
func (l *layout) belongs(id, bits uint32, r row) bool {
	return bits&(1<<l.level(r)-1) == l.segment(id)
}

// right reports whether a valid row is the row of its number for entries with some bits. The
// row's segment must agree with these bits. If it is not, right returns a row that is nearer to
// the right one: the parent of a row that is not made, or a child of a row that was divided. Both
// ways end, after at most as many steps as there are levels.
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

// follow replaces the rows of a place by those to which the rows that were read lead: see right.
// true: both rows are right.
func (l *layout) follow(at *place, first, second row) bool {
	var ok1, ok2 bool
	at.first, ok1 = l.right(at.first, at.bits, first)
	at.second, ok2 = l.right(at.second, at.bits, second)
	return ok1 && ok2
}

// growthAt is where a shard's growth word lies, at the leader.
func (l *layout) growthAt(shard int) rdma.Addr { return l.at(l.growths, shard, 0) }

// growthOf returns the level in a growth word, and the cursor: how many shares of the rows of the
// level before are handed out.
func growthOf(word uint64) (level int, cursor uint64) {
	return int(word >> levelShift), word & (levelOne - 1)
}

// levels is what a client knows of how far tables have grown. Growth words only grow, so a table
// has grown at least as far.
type levels struct {
	*layout
	// words are the greatest growth words that were seen, by shard. nil if tables cannot grow.
	words []uint64
	// doubts is by shard: a guess was wrong, so the growth word is read with the next rows.
	doubts []bool
}

// newLevels returns the levels of a client that has seen no growth word yet.
func newLevels(l *layout) *levels {
	g := &levels{layout: l}
	if l.Levels > 0 {
		g.words, g.doubts = make([]uint64, l.Shards), make([]bool, l.Shards)
	}
	return g
}

// guess returns the row of a number where entries with these bits belong, if rows were divided in
// the order of their shares.
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

// forget forgets how far a table has grown, as another copy leads: its growth word may be less.
func (g *levels) forget(shard int) {
	if g.Levels > 0 {
		g.words[shard], g.doubts[shard] = 0, true
	}
}

// learn notes a growth word, which may be older than the one that is known.
func (g *levels) learn(shard int, word uint64) {
	g.words[shard] = max(g.words[shard], word)
	g.doubts[shard] = false
}

// where returns the place of a key, with the rows that are guessed.
func (s *Store) where(key []byte) place {
	at := s.place(key)
	if s.Levels > 0 {
		at.first, at.second = s.levels.guess(at.shard, at.first, at.bits), s.levels.guess(at.shard, at.second, at.bits)
	}
	return at
}

// addGrowth adds a READ of the growth word to a batch if a guess was wrong; else it returns nil.
// So a table that does not grow pays nothing.
func (s *Store) addGrowth(b *rdma.Batch, shard int) *rdma.Op {
	if s.Levels == 0 || !s.levels.doubts[shard] {
		return nil
	}
	return b.Read(s.growthAt(shard), 8)
}

// learned notes what addGrowth has read, before the batch is released.
func (s *Store) learned(shard int, read *rdma.Op) {
	if read != nil {
		s.levels.learn(shard, le.Uint64(read.Buf))
	}
}

// readGrowths reads the growth words of all shards but those on nodes that are down.
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

// commit backs with memory what a new pool needs on a node: all but slabs, and the rows of later
// segments.
func (l *layout) commit(f rdma.Fabric, n int) error {
	if l.Replicas > 1 { // the copies would have to agree on when to back more
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
