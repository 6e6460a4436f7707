package rcuckoo

import (
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/client/rcuckoo/session"
	"github.com/farkv/farkv/client/rcuckoo/steps"
	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node/rdma"
)

var errNotFound = fmt.Errorf("neither of its rows has it: %w", client.ErrNotFound)

// Get returns the value of a key (section 3.2.1). The Store owns the value, which is valid until
// the next call. Get takes no lock. The error wraps client.ErrNotFound, rdma.ErrTimeout, or
// client.ErrDamaged when an entry is one that no client can have written.
//
// The trips of a GET, each one batch to the shard's leader:
//
//	READ of both rows, which is one READ if they are neighbours
//	READ of the extent that a row names, if the value is not inline
//	READ of both rows once more, if neither has the key
//
// A GET that finds no torn row writes nothing of its own, so a crash leaves nothing of it.
//
// A valid row is as it was at one moment of its READ. A key that is moved is always in one of its
// rows, and for a moment in both. Yet two READs may miss it, if it moves between them from the
// row that is read second to the one that is read first. So the key is not there only if a second
// look finds the same versions: then neither row changed between the two looks.
func (s *Store) Get(key []byte) ([]byte, error) {
	if len(key) > s.session.Table.KeyBytes {
		return nil, fmt.Errorf("get: %w", errNotFound)
	}
	o := s.op.Begin()
	at := s.where(key)
	var v []byte
	for range session.Joins {
		// Others may wait for what earlier operations of the worker left, however long it only
		// reads.
		s.settler.RunCleanup(o)
		// Under a busy view a copy that did not lead before is not read (C5).
		err := o.AwaitLeader(at.Shard)
		if err == nil {
			if v, err = s.get(o, at, key); err == nil {
				return v, nil
			}
		}
		o.DeferCleanup(at.Shard)
		switch {
		case !o.Retryable(at.Shard, err):
			return nil, fmt.Errorf("get: %w", err)
		case o.Left() == 0:
			return nil, fmt.Errorf("get: %w", late(err))
		}
	}
	return nil, fmt.Errorf("get: %w", session.ErrEpochs)
}

// rowVersions is what two looks at a place are compared by. known: both rows were valid, and had
// these versions.
type rowVersions struct {
	known         bool
	first, second uint64
}

// get looks at the rows of a place until the answer is sure. A look is one trip. It looks again
// without a pause after a first look without the key, and at other rows if the rows lead there.
// After a torn row it pauses.
func (s *Store) get(o *session.Op, at table.Place, key []byte) ([]byte, error) {
	s.locks.Start(at.Shard)
	s.locks.ReadPlace(o, at)
	var before rowVersions
	for r := o.Pace; ; {
		b := o.EP.Batch()
		// No fence: no atomic is ahead of the READs.
		s.locks.AddReads(o, b, false)
		growth := s.addGrowth(o, b, at.Shard)
		step := steps.ReadRows
		if before.known {
			step = steps.ReadRowsAgain
		}
		if err := o.Do(step, b); err != nil {
			return nil, s.locks.Unread(o, at.Shard, b, err)
		}
		was := at
		// The batch has the rows' memory: answer copies the value, and the ref, out of them.
		value, far, sure, err := s.answer(o, &at, key, &before)
		s.learned(at.Shard, growth)
		b.Release()
		s.locks.EndReads()
		if far.Stamp != 0 {
			value, sure, err = s.fetch(o, at.Shard, far, key)
		}
		if sure || err != nil {
			return value, err
		}
		if at != was && o.Left() > 0 { // the key belongs into other rows
			s.locks.Start(at.Shard)
			s.locks.ReadPlace(o, at)
			continue
		}
		if before.known && o.Left() > 0 { // both rows were whole: the second look decides
			continue
		}
		if err := s.tornRow(o, at, &r); err != nil {
			return nil, err
		}
	}
}

// fetch reads the value that a ref names, into s.value. false: the extent has another use by now,
// so the key's rows have to be read again. It takes no lock: the stamp in the extent says of which
// use the content is, and the checksum that the content is whole (extent.go of package table).
func (s *Store) fetch(o *session.Op, shard int, r table.Ref, key []byte) ([]byte, bool, error) {
	b := o.EP.Batch()
	op := o.Table.AddRead(b, o.Table.Leads[shard], r, key)
	if err := o.Do(steps.ReadExtent, b); err != nil {
		return nil, false, s.locks.Unread(o, shard, b,
			fmt.Errorf("read extent %d of shard %d: %w", r.Extent, shard, err))
	}
	v, ok := o.Table.ValueOf(op.Buf, shard, r, key)
	if ok {
		s.value = append(s.value[:0], v...)
	}
	b.Release()
	return s.value, ok, nil
}

// answer looks for a key in the rows that were read. sure: value is its value. far: the key is
// there, and its value in this extent. The error wraps client.ErrNotFound if this look and the
// one before show that the key is not there. Else another look is needed; before is what to
// compare it with, and the place is corrected if the key belongs into other rows.
func (s *Store) answer(o *session.Op, at *table.Place, key []byte, before *rowVersions) (
	value []byte, far table.Ref, sure bool, err error,
) {
	now := rowVersions{known: true}
	for i, n := range [2]uint32{at.First, at.Second} {
		r := s.locks.Row(n, o.Table.RowBytes)
		if !o.Table.Valid(r, at.Shard, n) {
			// The other row may have the key. If it has not, this look proves nothing.
			now.known = false
			continue
		}
		s.cache.Put(at.Shard, n, r)
		// A whole row that has the key decides, whatever the other one is: while both have the
		// key, the client that moves it has their locks, so the value is the same.
		if slot := o.Table.Find(r, key); slot >= 0 {
			e := o.Table.Entry(r, slot)
			switch {
			case !o.Table.Sound(e), e.Meta.Extent() && !o.Table.Names(o.Table.Ref(e), len(key)):
				return nil, far, false,
					fmt.Errorf("slot %d of row %d of shard %d: %w", slot, n, at.Shard, client.ErrDamaged)
			case e.Meta.Extent(): // if the ref is out of date by then, two looks are needed again
				*before = rowVersions{}
				return nil, o.Table.Ref(e), false, nil
			}
			s.value = append(s.value[:0], o.Table.Form.Value(e)...)
			return s.value, far, true, nil
		}
		if i == 0 {
			now.first = o.Table.Version(r)
		} else {
			now.second = o.Table.Version(r)
		}
	}
	if now.known && o.Table.Levels > 0 &&
		!o.Table.Follow(at, s.locks.Row(at.First, o.Table.RowBytes), s.locks.Row(at.Second, o.Table.RowBytes)) {
		s.levels.Doubts[at.Shard] = true
		now.known = false
	}
	if now.known && (now == *before || at.First == at.Second) {
		return nil, far, false, errNotFound
	}
	*before = now
	return nil, far, false, nil
}

// tornRow pauses before rows are read again that were torn. If their writer is dead it repairs
// the words of their locks, after it has settled what the worker itself left in the shard. The
// error wraps rdma.ErrTimeout when the time is used up.
//
// A reader has no intent, so it may ask the pool and repair at once.
func (s *Store) tornRow(o *session.Op, at table.Place, r *kit.Retry) error {
	o.Stats.Torn++
	s.settler.RunCleanup(o)
	for _, n := range [2]uint32{at.First, at.Second} {
		word, _ := o.Table.LockOf(n)
		stuck, err := s.detector.Stuck(o, at.Shard, uint32(word))
		if err != nil {
			return err
		}
		if stuck {
			if err := s.settler.Settled(o, at.Shard); err != nil {
				return err
			}
			r.Tries++ // the repair counts as a pause
			return s.repairer.Repair(o, at.Shard, []uint32{uint32(word)})
		}
	}
	if !r.Again() {
		return fmt.Errorf("its rows are torn: %w", rdma.ErrTimeout)
	}
	return nil
}
