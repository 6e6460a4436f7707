package table

import (
	"github.com/cespare/xxhash/v2"
	"github.com/farkv/farkv/node/rdma"
)

// A redo says what an operation is about to write. Each client has one in each shard. It lands
// before the first of the rows:
//
//	sequence  8 bytes: the intent's
//	sum       8 bytes: of all of it, of the shard and the client
//	steps     8 bytes: how many
//	freed     16 bytes: the ref of the use that the operation ends, see extent.go; zero: none
//	...
//	step      in the order of writing: row (8 bytes), slot (8), meta (8), and the version and
//	          checksum that the row will have (8 each); then the slot's new entry. A step of a
//	          division has its kind instead of the slot, and the slots that move instead of the
//	          meta.
//
// So a crash leaves an operation either not begun, as its redo is not whole, or such that any
// client can complete it. A row that was not written has its old version. A torn row has only
// words of the old and the new row, and where these differ the redo has the new word, so the new
// row can be made from it. The result must have the redo's checksum, so repair never makes a torn
// value valid. (The paper's repair computes a new checksum of what it finds.) Rows with the new
// version, or a later one, were written. A client releases its locks behind all of its rows, so
// as long as one row is missing it holds all of its locks, and no other client has written the
// rows.
//
// The paper's four states (section 4.3) are the prefixes of these writes: the path's end is torn
// (1), or whole (2), and duplicates an entry; the old place of an entry is torn (3); nothing is
// half done (4). Repair leads from each of them to 4, and the INSERT is not lost.
const (
	// Offsets in a redo, and in a step of it.
	RedoSum   = 8
	RedoSteps = 16
	RedoFreed = 24

	RedoSlot    = 8
	redoMeta    = 16
	RedoVersion = 24
	RedoRowSum  = 32
)

// Change is what an operation does to a row: to one slot of it, or to all when the row is divided.
type Change struct {
	Kind changing
	Row  uint32
	Slot int // of putting
	// Entry is the new content of the slot. Its meta is 0 when the slot becomes free. It may
	// share the memory of the row that it is copied from.
	Entry Entry
	Slots uint64 // a bit for each slot that moves in a division
}

// changing is a kind of change, as redos encode it: above the bits of a slot's number.
type changing uint8

const (
	putting changing = iota // puts an entry into a slot
	Filling                 // makes the new row of a division, with the entries that move there
	Leaving                 // clears the slots of these entries in the old row

	kindShift = 32
)

// Redone applies a change to a row, and seals it with a version. parent is the row from which a
// new row is filled; other kinds of changes need none. The result depends on nothing else, so
// that a repair makes the same row as the client.
func (l *Layout) Redone(r, parent Row, shard int, c Change, version uint64) {
	if c.Kind == putting {
		l.Put(r, c.Slot, c.Entry)
	}
	if c.Kind == Filling {
		clear(r)
	}
	for slot := range l.Slots {
		switch {
		case c.Slots>>slot&1 == 0:
		case c.Kind == Filling:
			l.Put(r, slot, l.Entry(parent, slot))
		case c.Kind == Leaving:
			l.Drop(r, slot)
		}
	}
	l.Seal(r, shard, c.Row, version)
}

// EncodeStep encodes a change and the row that results from it into p.
func (l *Layout) EncodeStep(p []byte, c Change, r Row) {
	le.PutUint64(p, uint64(c.Row))
	le.PutUint64(p[RedoVersion:], l.Version(r))
	le.PutUint64(p[RedoRowSum:], l.Sum(r))
	if c.Kind != putting {
		le.PutUint64(p[RedoSlot:], uint64(c.Kind)<<kindShift)
		le.PutUint64(p[redoMeta:], c.Slots)
		clear(p[RedoStepBytes : RedoStepBytes+l.EntryBytes])
		return
	}
	le.PutUint64(p[RedoSlot:], uint64(c.Slot))
	le.PutUint64(p[redoMeta:], uint64(c.Entry.Meta))
	copy(p[RedoStepBytes:], l.Entry(r, c.Slot).Body)
}

// DecodeStep returns the change of a step; its entry shares p. false: no client can have written
// it.
func (l *Layout) DecodeStep(p []byte) (c Change, ok bool) {
	n, slot, meaning := le.Uint64(p), le.Uint64(p[RedoSlot:]), le.Uint64(p[redoMeta:])
	c = Change{Kind: changing(min(slot>>kindShift, 1<<8-1)), Row: uint32(n)}
	ok = n < uint64(l.AllRows())
	switch c.Kind {
	case putting:
		c.Slot, c.Entry = int(slot), Entry{p[RedoStepBytes : RedoStepBytes+l.EntryBytes], Meta(meaning)}
		return c, ok && slot < uint64(l.Entries)
	case Filling:
		ok = ok && l.Birth(c.Row) > 0
	case Leaving:
	default:
		return c, false
	}
	c.Slots = meaning
	return c, ok
}

// RedoSumOf is the checksum of a redo. It includes the shard and the client, so that no record is
// taken for another's.
func RedoSumOf(p []byte, shard int, c rdma.ClientID) uint64 {
	return xxhash.Sum64(p[RedoSteps:]) ^ Spread(le.Uint64(p)) ^ Spread(Spread(uint64(shard)<<16|uint64(c)))
}

// RedoOf returns how many steps a redo has. ok: it is whole, and has the given sequence.
func (l *Layout) RedoOf(p []byte, shard int, c rdma.ClientID, seq uint64) (steps int, ok bool) {
	n := le.Uint64(p[RedoSteps:])
	if le.Uint64(p) != seq || n > MaxSteps {
		return 0, false
	}
	end := RedoHeader + int(n)*(RedoStepBytes+l.EntryBytes) // within the record, as n is at most MaxSteps
	return int(n), le.Uint64(p[RedoSum:]) == RedoSumOf(p[:end], shard, c)
}
