package rcuckoo

import (
	"bytes"
	"fmt"

	"github.com/cespare/xxhash/v2"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node"
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
	redoSum   = 8
	redoSteps = 16
	redoFreed = 24

	stepSlot    = 8
	stepMeta    = 16
	stepVersion = 24
	stepSum     = 32
)

// change is what an operation does to a row: to one slot of it, or to all when the row is divided.
type change struct {
	kind changing
	row  uint32
	slot int // of putting
	// entry is the new content of the slot. Its meta is 0 when the slot becomes free. It may
	// share the memory of the row that it is copied from.
	entry entry
	slots uint64 // a bit for each slot that moves in a division
}

// changing is a kind of change, as redos encode it: above the bits of a slot's number.
type changing uint8

const (
	putting changing = iota // puts an entry into a slot
	filling                 // makes the new row of a division, with the entries that move there
	leaving                 // clears the slots of these entries in the old row

	kindShift = 32
)

// redone applies a change to a row, and seals it with a version. parent is the row from which a
// new row is filled; other kinds of changes need none. The result depends on nothing else, so
// that a repair makes the same row as the client.
func (l *layout) redone(r, parent row, shard int, c change, version uint64) {
	if c.kind == putting {
		l.put(r, c.slot, c.entry)
	}
	if c.kind == filling {
		clear(r)
	}
	for slot := range l.entries {
		switch {
		case c.slots>>slot&1 == 0:
		case c.kind == filling:
			l.put(r, slot, l.entry(parent, slot))
		case c.kind == leaving:
			l.drop(r, slot)
		}
	}
	l.seal(r, shard, c.row, version)
}

// write carries out changes of rows that are locked and were read, in their order, ends the use
// of an extent that they replace, if any, and releases the locks: all in one trip, behind the one
// to the backups. No two changes may be of one row. If it fails, the outcome is unknown: see
// settle.
//
// What a crash leaves: before the redo is whole, nothing has begun. From then on repair completes
// the changes, marks the extent and frees the locks. All of these may have been done already.
func (s *Store) write(changes []change, freed ref) error {
	l := &s.locks
	l.sent = true // from here on the operation may have begun, on some copy
	if err := s.writeBackups(changes, freed); err != nil {
		return err
	}
	b := s.ep.Batch()
	s.addChanges(b, changes, freed, s.copies[l.shard][:1])
	// The mark comes behind the rows: while a row names the use, the extent must not be claimed
	// again.
	if freed.stamp != 0 {
		s.addMark(b, l.shard, freed)
	}
	// The locks come last: a client that gets them finds whole rows.
	s.addReleases(b)
	if err := s.do(stepWriteRows, b); err != nil {
		return s.lost(b, fmt.Errorf("write %d rows of shard %d: %w", len(changes), l.shard, err))
	}
	s.endReads()
	err := s.released(b)
	b.Release()
	if err != nil {
		return err
	}
	s.finish()
	if freed.stamp != 0 {
		s.extents.ended(l.shard, freed)
	}
	return nil
}

// addChanges adds the redo and the rows of changes, a chain for each of some copies, so that on
// each copy they land in this order (C1).
func (s *Store) addChanges(b *rdma.Batch, changes []change, freed ref, copies []node.Replica) {
	l := &s.locks
	var rows [maxSteps]row
	p := b.Alloc(redoHeader + len(changes)*(redoStep+s.entryBytes))
	clear(p[:redoHeader])
	le.PutUint64(p, s.shards[l.shard].seq)
	le.PutUint64(p[redoSteps:], uint64(len(changes)))
	freed.encode(p[redoFreed:])
	for i, c := range changes {
		r := row(b.Alloc(s.rowBytes))
		s.changed(r, c)
		rows[i] = r
		s.cache.put(l.shard, c.row, r)
		s.encodeStep(p[redoHeader+i*(redoStep+s.entryBytes):], c, r)
	}
	le.PutUint64(p[redoSum:], redoSumOf(p, l.shard, s.id))
	// All copies share the encoded bytes, which belong to the batch.
	for _, at := range copies {
		b.Chain()
		b.Write(s.redoAt(at, s.id), p)
		for i, c := range changes {
			b.Write(s.rowAt(at, c.row), rows[i])
		}
	}
}

// changed sets r to the row that results from a change. The rows that the change needs must be
// locked and read.
func (s *Store) changed(r row, c change) {
	l := &s.locks
	if c.kind == filling { // the new row goes on from its parent's version word, and gets the same level
		parent := l.row(s.parent(c.row), s.rowBytes)
		s.redone(r, parent, l.shard, c, s.version(parent)+divided)
		return
	}
	copy(r, l.row(c.row, s.rowBytes))
	behind := uint64(1) // how far the version advances
	if c.kind == leaving {
		behind = divided
	}
	s.redone(r, nil, l.shard, c, s.version(r)+behind)
}

// encodeStep encodes a change and the row that results from it into p.
func (l *layout) encodeStep(p []byte, c change, r row) {
	le.PutUint64(p, uint64(c.row))
	le.PutUint64(p[stepVersion:], l.version(r))
	le.PutUint64(p[stepSum:], l.sum(r))
	if c.kind != putting {
		le.PutUint64(p[stepSlot:], uint64(c.kind)<<kindShift)
		le.PutUint64(p[stepMeta:], c.slots)
		clear(p[redoStep : redoStep+l.entryBytes])
		return
	}
	le.PutUint64(p[stepSlot:], uint64(c.slot))
	le.PutUint64(p[stepMeta:], uint64(c.entry.meta))
	copy(p[redoStep:], l.entry(r, c.slot).body)
}

// decodeStep returns the change of a step; its entry shares p. false: no client can have written
// it.
func (l *layout) decodeStep(p []byte) (c change, ok bool) {
	n, slot, meaning := le.Uint64(p), le.Uint64(p[stepSlot:]), le.Uint64(p[stepMeta:])
	c = change{kind: changing(min(slot>>kindShift, 1<<8-1)), row: uint32(n)}
	ok = n < uint64(l.allRows())
	switch c.kind {
	case putting:
		c.slot, c.entry = int(slot), entry{p[redoStep : redoStep+l.entryBytes], meta(meaning)}
		return c, ok && slot < uint64(l.Entries)
	case filling:
		ok = ok && l.birth(c.row) > 0
	case leaving:
	default:
		return c, false
	}
	c.slots = meaning
	return c, ok
}

// redoSumOf is the checksum of a redo. It includes the shard and the client, so that no record is
// taken for another's.
func redoSumOf(p []byte, shard int, c rdma.ClientID) uint64 {
	return xxhash.Sum64(p[redoSteps:]) ^ spread(le.Uint64(p)) ^ spread(spread(uint64(shard)<<16|uint64(c)))
}

// redoOf returns how many steps a redo has. ok: it is whole, and has the given sequence.
func (l *layout) redoOf(p []byte, shard int, c rdma.ClientID, seq uint64) (steps int, ok bool) {
	n := le.Uint64(p[redoSteps:])
	if le.Uint64(p) != seq || n > maxSteps {
		return 0, false
	}
	end := redoHeader + int(n)*(redoStep+l.entryBytes) // within the record, as n is at most maxSteps
	return int(n), le.Uint64(p[redoSum:]) == redoSumOf(p[:end], shard, c)
}

// rollForward completes a client's operation. No verb of the operation may land any more, and the
// caller must have the leases of its lock words, so that no other client writes the rows. It does
// nothing for an operation that has not begun. It may be repeated, by any client, and changes
// nothing then.
func (s *Store) rollForward(shard int, c rdma.ClientID, seq uint64) error {
	p, steps, begun, err := s.findRedo(shard, c, seq)
	if err != nil || !begun {
		return err
	}
	if err := s.carryForward(shard, c, p, steps); err != nil {
		return err
	}
	if freed := decodeRef(p[redoFreed:]); freed.stamp != 0 {
		return s.markAgain(shard, freed)
	}
	return nil
}

// redoRows writes the rows of a redo that are not yet written on a copy, in the order in which
// the client would have written them.
func (s *Store) redoRows(shard int, at node.Replica, c rdma.ClientID, p []byte, steps int) error {
	for i := range steps {
		step := p[redoHeader+i*(redoStep+s.entryBytes):]
		if err := s.redoStep(shard, at, step[:redoStep+s.entryBytes]); err != nil {
			return fmt.Errorf("step %d of the redo of client %d: %w", i+1, c, err)
		}
	}
	return nil
}

// markAgain ends the use that a redo ends, unless it has ended.
func (s *Store) markAgain(shard int, freed ref) error {
	if !s.names(freed, 0) {
		return fmt.Errorf("a redo names extent %d: %w", freed.extent, client.ErrDamaged)
	}
	b := s.ep.Batch()
	s.addMark(b, shard, freed)
	return s.carry(stepRollForward, shard, b, "mark extent %d of shard %d", freed.extent, shard)
}

// readRedo reads a client's redo on a copy, into memory of its own. begun: it is whole, and of
// the operation with a sequence.
func (s *Store) readRedo(shard int, at node.Replica, c rdma.ClientID, seq uint64) (
	p []byte, steps int, begun bool, err error,
) {
	b := s.ep.Batch()
	op := b.Read(s.redoAt(at, c), int(s.redo))
	if err := s.do(stepReadRedo, b); err != nil {
		return nil, 0, false, s.unread(shard, b,
			fmt.Errorf("read the redo of client %d in shard %d: %w", c, shard, err))
	}
	p = bytes.Clone(op.Buf)
	b.Release()
	steps, begun = s.redoOf(p, shard, c, seq)
	return p, steps, begun, nil
}

// redoStep writes the row of a step on a copy, unless it was written there. The error wraps
// client.ErrDamaged if the step, or a whole row, is one that no client can have written.
func (s *Store) redoStep(shard int, at node.Replica, p []byte) error {
	c, ok := s.decodeStep(p)
	version, sum := le.Uint64(p[stepVersion:]), le.Uint64(p[stepSum:])
	if !ok {
		return fmt.Errorf("it names slot %d of row %d: %w", le.Uint64(p[stepSlot:]), le.Uint64(p), client.ErrDamaged)
	}
	b := s.ep.Batch()
	defer b.Release()
	read := b.Read(s.rowAt(at, c.row), s.rowBytes)
	// A division's new row needs the old one, which comes later in the redo and is not yet written.
	var parent row
	if c.kind == filling {
		parent = b.Read(s.rowAt(at, s.parent(c.row)), s.rowBytes).Buf
	}
	if err := s.do(stepRollForward, b); err != nil {
		return fmt.Errorf("read row %d of shard %d: %w", c.row, shard, err)
	}
	r := row(read.Buf)
	whole := s.valid(r, shard, c.row)
	// If this operation tore the row, it has the old version or the new one. If the version is
	// later, a later client tore the row. Then nothing may be written: other clients have changed
	// the row since.
	if v := s.version(r); v > version || whole && v == version {
		return nil
	}
	// A new row that is missing is made from the old one, which is not yet written then. If it
	// were, the result would not have the sum.
	s.redone(r, parent, shard, c, version)
	if s.sum(r) != sum {
		if whole {
			return fmt.Errorf("row %d of shard %d has version %d, which it does not follow on: %w",
				c.row, shard, version, client.ErrDamaged)
		}
		return nil // another client, which got the locks later, tore the row: its own redo is whole, too
	}
	// If this WRITE is torn by a crash, the redo is still there for the next client.
	w := s.ep.Batch()
	defer w.Release()
	w.WriteCopy(s.rowAt(at, c.row), r)
	if err := s.do(stepRollForward, w); err != nil {
		return fmt.Errorf("write row %d of shard %d: %w", c.row, shard, err)
	}
	s.stats.Rolled++
	return nil
}
