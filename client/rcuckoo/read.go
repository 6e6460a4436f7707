package rcuckoo

import (
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/node/rdma"
)

var errNotFound = fmt.Errorf("neither of its rows has it: %w", client.ErrNotFound)

// Get returns the value of a key (section 3.2.1). The Store owns the value, which is valid until
// the next call. Get takes no lock. The error wraps client.ErrNotFound, rdma.ErrTimeout, or
// client.ErrDamaged when an entry is one that no client can have written.
//
// A valid row is as it was at one moment of its READ. A key that is moved is always in one of its
// rows, and for a moment in both. Yet two READs may miss it, if it moves between them from the
// row that is read second to the one that is read first. So the key is not there only if a second
// look finds the same versions: then neither row changed between the two looks.
func (s *Store) Get(key []byte) ([]byte, error) {
	if len(key) > s.KeyBytes {
		return nil, fmt.Errorf("get: %w", errNotFound)
	}
	s.begin()
	at := s.where(key)
	var v []byte
	for range joins {
		s.runCleanup()
		err := s.awaitLeader(at.shard)
		if err == nil {
			if v, err = s.get(at, key); err == nil {
				return v, nil
			}
		}
		s.deferCleanup(at.shard)
		switch {
		case !s.retryable(at.shard, err):
			return nil, fmt.Errorf("get: %w", err)
		case s.left() == 0:
			return nil, fmt.Errorf("get: %w", late(err))
		}
	}
	return nil, fmt.Errorf("get: %w", errEpochs)
}

// look2 is what two looks at a place are compared by. known: both rows were valid, and had these
// versions.
type look2 struct {
	known         bool
	first, second uint64
}

// get looks at the rows of a place until the answer is sure. A look is one trip. It looks again
// without a pause after a first look without the key, and at other rows if the rows lead there.
// After a torn row it pauses.
func (s *Store) get(at place, key []byte) ([]byte, error) {
	s.want(at.shard)
	s.wantRows(at)
	var before look2
	for r := s.pace; ; {
		b := s.ep.Batch()
		s.addReads(b, false)
		growth := s.addGrowth(b, at.shard)
		step := stepReadRows
		if before.known {
			step = stepReadRowsAgain
		}
		if err := s.do(step, b); err != nil {
			return nil, s.unread(at.shard, b, err)
		}
		was := at
		// The batch has the rows' memory: answer copies the value, and the ref, out of them.
		value, far, sure, err := s.answer(&at, key, &before)
		s.learned(at.shard, growth)
		b.Release()
		s.endReads()
		if far.stamp != 0 {
			value, sure, err = s.fetch(at.shard, far, key)
		}
		if sure || err != nil {
			return value, err
		}
		if at != was && s.left() > 0 { // the key belongs into other rows
			s.want(at.shard)
			s.wantRows(at)
			continue
		}
		if before.known && s.left() > 0 { // both rows were whole: the second look decides
			continue
		}
		if err := s.tornRow(at, &r); err != nil {
			return nil, err
		}
	}
}

// unread takes over a batch that failed, releases the rows that were read before, and returns err.
func (s *Store) unread(shard int, b *rdma.Batch, err error) error {
	s.endReads()
	s.keepFlying(shard, b)
	return err
}

// fetch reads the value that a ref names, into s.value. false: the extent has another use by now,
// so the key's rows have to be read again.
func (s *Store) fetch(shard int, r ref, key []byte) ([]byte, bool, error) {
	b := s.ep.Batch()
	op := s.addRead(b, s.leads[shard], r, key)
	if err := s.do(stepReadExtent, b); err != nil {
		return nil, false, s.unread(shard, b,
			fmt.Errorf("read extent %d of shard %d: %w", r.extent, shard, err))
	}
	v, ok := s.valueOf(op.Buf, shard, r, key)
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
func (s *Store) answer(at *place, key []byte, before *look2) (value []byte, far ref, sure bool, err error) {
	now := look2{known: true}
	for i, n := range [2]uint32{at.first, at.second} {
		r := s.locks.row(n, s.rowBytes)
		if !s.valid(r, at.shard, n) {
			now.known = false
			continue
		}
		s.cache.put(at.shard, n, r)
		if slot := s.find(r, key); slot >= 0 {
			e := s.entry(r, slot)
			switch {
			case !s.sound(e), e.meta.extent() && !s.names(s.ref(e), len(key)):
				return nil, far, false,
					fmt.Errorf("slot %d of row %d of shard %d: %w", slot, n, at.shard, client.ErrDamaged)
			case e.meta.extent(): // if the ref is out of date by then, two looks are needed again
				*before = look2{}
				return nil, s.ref(e), false, nil
			}
			s.value = append(s.value[:0], s.form.value(e)...)
			return s.value, far, true, nil
		}
		if i == 0 {
			now.first = s.version(r)
		} else {
			now.second = s.version(r)
		}
	}
	if now.known && s.Levels > 0 &&
		!s.follow(at, s.locks.row(at.first, s.rowBytes), s.locks.row(at.second, s.rowBytes)) {
		s.levels.doubts[at.shard] = true
		now.known = false
	}
	if now.known && (now == *before || at.first == at.second) {
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
func (s *Store) tornRow(at place, r *kit.Retry) error {
	s.stats.Torn++
	s.runCleanup()
	for _, n := range [2]uint32{at.first, at.second} {
		word, _ := s.lockOf(n)
		stuck, err := s.stuck(at.shard, uint32(word))
		if err != nil {
			return err
		}
		if stuck {
			if err := s.settled(at.shard); err != nil {
				return err
			}
			r.Tries++ // the repair counts as a pause
			return s.repair(at.shard, []uint32{uint32(word)})
		}
	}
	if !r.Again() {
		return fmt.Errorf("its rows are torn: %w", rdma.ErrTimeout)
	}
	return nil
}
