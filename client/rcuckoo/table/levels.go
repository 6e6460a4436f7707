package table

import (
	"math/bits"

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

	// LevelShift is the first bit of the level, in a version word and in a growth word.
	LevelShift = 56
	LevelOne   = 1 << LevelShift
	// Divided is by how much a division increases the version word of a row: one level, and one
	// version.
	Divided = LevelOne + 1

	// A growth is two words, changed by atomics: level and cursor, see grow.go of package rcuckoo;
	// and, at GrowthSegments, how many segments behind the first have memory.
	growthBytes    = 16
	GrowthSegments = 8
)

// segmentBits mixes a key's hashes once more, so that its segment does not depend on its shard
// and its row numbers.
func (l *Layout) segmentBits(h1, h2, h3 uint64) uint32 {
	return uint32(Spread(h1^Spread(h2^Spread(h3)))) & (1<<l.Levels - 1)
}

// AllRows is how many rows a shard has when it has grown as far as it may. Ids of rows are below
// it.
func (l *Layout) AllRows() int { return l.Rows << l.Levels }

// Number returns the number of a row, which one row of each segment has.
func (l *Layout) Number(id uint32) uint32 {
	if id < uint32(l.Rows) {
		return id
	}
	return id % uint32(l.Rows)
}

// Segment returns the segment of a row.
func (l *Layout) Segment(id uint32) uint32 { return id / uint32(l.Rows) }

// Birth returns the level at which a row is made; 0: it is there from the beginning.
func (l *Layout) Birth(id uint32) int { return bits.Len32(l.Segment(id)) }

// Parent returns the row that is divided to make a row. The row's birth must not be 0.
func (l *Layout) Parent(id uint32) uint32 {
	return id - uint32(l.Rows)<<(l.Birth(id)-1)
}

// Child returns the row that the next division of a row of a level makes.
func (l *Layout) Child(id uint32, level int) uint32 { return id + uint32(l.Rows)<<level }

// Made reports whether a valid row is part of the table.
func (l *Layout) Made(id uint32, r Row) bool { return l.Level(r) >= l.Birth(id) }

// Belongs reports whether entries with these bits belong into a valid row of their number. None
// belong into a row that is not made: its segment has a bit above its level.
func (l *Layout) Belongs(id, bits uint32, r Row) bool {
	return bits&(1<<l.Level(r)-1) == l.Segment(id)
}

// Right reports whether a valid row is the row of its number for entries with some bits. The
// row's segment must agree with these bits. If it is not, right returns a row that is nearer to
// the right one: the parent of a row that is not made, or a child of a row that was divided. Both
// ways end, after at most as many steps as there are levels.
func (l *Layout) Right(id, segment uint32, r Row) (next uint32, ok bool) {
	if l.Levels == 0 {
		return id, true
	}
	if !l.Made(id, r) {
		return l.Parent(id), false
	}
	birth := l.Birth(id)
	rest := segment & (1<<l.Level(r) - 1) >> birth << birth
	if rest == 0 {
		return id, true
	}
	return l.Child(id, bits.TrailingZeros32(rest)), false
}

// Follow replaces the rows of a place by those to which the rows that were read lead: see Right.
// true: both rows are right.
func (l *Layout) Follow(at *Place, first, second Row) bool {
	var ok1, ok2 bool
	at.First, ok1 = l.Right(at.First, at.Bits, first)
	at.Second, ok2 = l.Right(at.Second, at.Bits, second)
	return ok1 && ok2
}

// GrowthAt is where a shard's growth word lies, at the leader.
func (l *Layout) GrowthAt(shard int) rdma.Addr { return l.At(l.Areas.Growths, shard, 0) }

// GrowthOf returns the level in a growth word, and the cursor: how many shares of the rows of the
// level before are handed out.
func GrowthOf(word uint64) (level int, cursor uint64) {
	return int(word >> LevelShift), word & (LevelOne - 1)
}

// Levels is what a client knows of how far tables have grown. Growth words only grow, so a table
// has grown at least as far.
type Levels struct {
	l *Layout
	// Words are the greatest growth words that were seen, by shard. nil if tables cannot grow.
	Words []uint64
	// Doubts is by shard: a guess was wrong, so the growth word is read with the next rows.
	Doubts []bool
}

// NewLevels returns the levels of a client that has seen no growth word yet.
func NewLevels(l *Layout) *Levels {
	g := &Levels{l: l}
	if l.Levels > 0 {
		g.Words, g.Doubts = make([]uint64, l.Shards), make([]bool, l.Shards)
	}
	return g
}

// Guess returns the row of a number where entries with these bits belong, if rows were divided in
// the order of their shares.
func (g *Levels) Guess(shard int, number, bits uint32) uint32 {
	if g.l.Levels == 0 {
		return number
	}
	level, cursor := GrowthOf(g.Words[shard])
	if level == 0 {
		return number
	}
	id := number + uint32(g.l.Rows)*(bits&(1<<(level-1)-1))
	if g.l.shareOf(id) < cursor {
		id = number + uint32(g.l.Rows)*(bits&(1<<level-1))
	}
	return id
}

// Forget forgets how far a table has grown, as another copy leads: its growth word may be less.
func (g *Levels) Forget(shard int) {
	if g.l.Levels > 0 {
		g.Words[shard], g.Doubts[shard] = 0, true
	}
}

// Learn notes a growth word, which may be older than the one that is known.
func (g *Levels) Learn(shard int, word uint64) {
	g.Words[shard] = max(g.Words[shard], word)
	g.Doubts[shard] = false
}
