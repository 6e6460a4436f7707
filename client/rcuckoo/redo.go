package rcuckoo

import (
	"bytes"
	"fmt"

	"github.com/cespare/xxhash/v2"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// A redo says what an operation is about to write. Each client has one in each shard; it lands
// before the first of the rows:
//
//	sequence  8 bytes: the intent's
//	sum       8 bytes: of all of it, of the shard and the client
//	steps     8 bytes: how many
//	freed     16 bytes: the ref whose use the operation ends, see extent.go; zero: none
//	...
//	step      in the order of writing: row (8 bytes), slot (8), meta (8), and the row's version and checksum behind it (8 each);
//	          then the slot's new entry. One of a division has its kind instead of the slot, and slots that move instead of the meta.
//
// So a crash leaves an operation either not begun, as its redo is not whole, or such that any
// client can bring it to its end: a row that was not written has the version before, and one that
// is torn has only words of before and behind, which differ where the redo tells what is behind.
// Made anew it must have the redo's checksum, so that no torn value is ever blessed (the paper's
// repair computes a new checksum of what it finds). Rows that have the version, or a later one,
// were written: since a client lets go of its locks behind all of its rows, it still has all of
// them as long as one row is missing.
//
// The paper's four states (section 4.3) are what a prefix of these writes looks like: a path's end
// written and torn (1), or whole (2), next to the entry that it duplicates; an entry's old place
// torn (3); nothing half done (4). All end in 4, and the INSERT is not lost.
const (
	redoSum   = 8
	redoSteps = 16
	redoFreed = 24

	stepSlot    = 8
	stepMeta    = 16
	stepVersion = 24
	stepSum     = 32
)

// change is what happens to a row: to a slot of it, or to all, when it is divided.
type change struct {
	kind  changing
	row   uint32
	slot  int
	entry entry  // its meta is 0 when the slot becomes free
	slots uint64 // a bit for each slot that moves in a division
}

// changing is a kind of changes, as redos name them; they have it above a slot's bits.
type changing uint8

const (
	putting changing = iota // an entry into a slot
	filling                 // a new row with what moves there
	leaving                 // an old row without that

	kindShift = 32
)

// redone changes a row, and gives it a version; parent is the row of which a new one is filled.
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

// write carries out changes of rows that are locked and were read, in their order, marks the use of
// an extent that ends with them, if any, and lets go of the locks: all in one trip. No row is in
// two of them. When it fails it is not known what became of them.
func (s *Store) write(changes []change, freed ref) error {
	l := &s.locks
	l.sent = true
	if err := s.writeBackups(changes, freed); err != nil {
		return err
	}
	b := s.ep.Batch()
	s.addChanges(b, changes, freed, s.copies[l.shard][:1])
	if freed.stamp != 0 {
		s.addMark(b, l.shard, freed)
	}
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

// addChanges adds the redo and the rows of changes, a chain for each of some copies.
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
	for _, at := range copies {
		b.Chain()
		b.Write(s.redoAt(at, s.id), p)
		for i, c := range changes {
			b.Write(s.rowAt(at, c.row), rows[i])
		}
	}
}

// changed makes r what a change makes of a row that was read.
func (s *Store) changed(r row, c change) {
	l := &s.locks
	if c.kind == filling {
		parent := l.row(s.parent(c.row), s.rowBytes)
		s.redone(r, parent, l.shard, c, s.version(parent)+divided)
		return
	}
	copy(r, l.row(c.row, s.rowBytes))
	behind := uint64(1)
	if c.kind == leaving {
		behind = divided
	}
	s.redone(r, nil, l.shard, c, s.version(r)+behind)
}

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

// decodeStep returns the change of a step; false: no client can have written it.
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

func redoSumOf(p []byte, shard int, c rdma.ClientID) uint64 {
	return xxhash.Sum64(p[redoSteps:]) ^ spread(le.Uint64(p)) ^ spread(spread(uint64(shard)<<16|uint64(c)))
}

// redoOf returns the steps of a redo, if it is whole and of a sequence.
func (l *layout) redoOf(p []byte, shard int, c rdma.ClientID, seq uint64) (steps int, ok bool) {
	n := le.Uint64(p[redoSteps:])
	if le.Uint64(p) != seq || n > maxSteps {
		return 0, false
	}
	end := redoHeader + int(n)*(redoStep+l.entryBytes)
	return int(n), le.Uint64(p[redoSum:]) == redoSumOf(p[:end], shard, c)
}

// rollForward brings the operation of a client to its end, of which nothing lands any more and
// which may hold its locks still. One that was not begun stays so. Done again, by any client, it
// changes nothing.
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

// redoRows writes the rows of a redo that were not written on a copy.
func (s *Store) redoRows(shard int, at node.Replica, c rdma.ClientID, p []byte, steps int) error {
	for i := range steps {
		step := p[redoHeader+i*(redoStep+s.entryBytes):]
		if err := s.redoStep(shard, at, step[:redoStep+s.entryBytes]); err != nil {
			return fmt.Errorf("step %d of the redo of client %d: %w", i+1, c, err)
		}
	}
	return nil
}

// markAgain ends the use that a redo ends, unless that was done.
func (s *Store) markAgain(shard int, freed ref) error {
	if !s.names(freed, 0) {
		return fmt.Errorf("a redo names extent %d: %w", freed.extent, client.ErrDamaged)
	}
	b := s.ep.Batch()
	s.addMark(b, shard, freed)
	return s.carry(stepRollForward, shard, b, "mark extent %d of shard %d", freed.extent, shard)
}

// readRedo reads a client's on a copy; begun: it is whole, and of an operation.
func (s *Store) readRedo(shard int, at node.Replica, c rdma.ClientID, seq uint64) (p []byte, steps int, begun bool, err error) {
	b := s.ep.Batch()
	op := b.Read(s.redoAt(at, c), int(s.redo))
	if err := s.do(stepReadRedo, b); err != nil {
		return nil, 0, false, s.unread(shard, b, fmt.Errorf("read the redo of client %d in shard %d: %w", c, shard, err))
	}
	p = bytes.Clone(op.Buf)
	b.Release()
	steps, begun = s.redoOf(p, shard, c, seq)
	return p, steps, begun, nil
}

// redoStep writes a row as a step says on a copy, unless it was written there.
func (s *Store) redoStep(shard int, at node.Replica, p []byte) error {
	c, ok := s.decodeStep(p)
	version, sum := le.Uint64(p[stepVersion:]), le.Uint64(p[stepSum:])
	if !ok {
		return fmt.Errorf("it names slot %d of row %d: %w", le.Uint64(p[stepSlot:]), le.Uint64(p), client.ErrDamaged)
	}
	b := s.ep.Batch()
	defer b.Release()
	read := b.Read(s.rowAt(at, c.row), s.rowBytes)
	var parent row
	if c.kind == filling {
		parent = b.Read(s.rowAt(at, s.parent(c.row)), s.rowBytes).Buf
	}
	if err := s.do(stepRollForward, b); err != nil {
		return fmt.Errorf("read row %d of shard %d: %w", c.row, shard, err)
	}
	r := row(read.Buf)
	whole := s.valid(r, shard, c.row)
	// Of a row that is torn the version is that of before, or of behind: one that is later was torn by
	// a later client, which may have written that one slot as it was before, while what others have
	// changed meanwhile is where this redo would write.
	if v := s.version(r); v > version || whole && v == version {
		return nil
	}
	// A new row that is missing is made of the old one, which is not written yet then; of one that was
	// it would not have the sum.
	s.redone(r, parent, shard, c, version)
	if s.sum(r) != sum {
		if whole {
			return fmt.Errorf("row %d of shard %d has version %d, which it does not follow on: %w", c.row, shard, version, client.ErrDamaged)
		}
		return nil // another client, which got the locks, tore it; its redo is whole, too
	}
	w := s.ep.Batch()
	defer w.Release()
	w.WriteCopy(s.rowAt(at, c.row), r)
	if err := s.do(stepRollForward, w); err != nil {
		return fmt.Errorf("write row %d of shard %d: %w", c.row, shard, err)
	}
	s.stats.Rolled++
	return nil
}
