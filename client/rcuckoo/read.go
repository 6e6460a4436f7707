package rcuckoo

import (
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/node/rdma"
)

var errNotFound = fmt.Errorf("neither of its rows has it: %w", client.ErrNotFound)

// Get returns the value of a key, valid until the next call (section 3.2.1). It takes no lock.
//
// A row that is valid is what it was at one moment of its READ. A key that is moved is in both its
// rows for a moment, and in one at least all the time, but two READs may miss it: it may go from
// its second row to its first between them. So a miss is what a second look says that finds the
// same versions: between the two looks neither row changed.
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

// look2 is what two looks at a place are compared by.
type look2 struct {
	known         bool
	first, second uint64 // versions
}

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
		if at != was && s.left() > 0 {
			s.want(at.shard)
			s.wantRows(at)
			continue
		}
		if before.known && s.left() > 0 {
			continue
		}
		if err := s.tornRow(at, &r); err != nil {
			return nil, err
		}
	}
}

// unread gives a batch back that failed, once nothing of it is in flight, and what was read before.
func (s *Store) unread(shard int, b *rdma.Batch, err error) error {
	s.endReads()
	s.keepFlying(shard, b)
	return err
}

// fetch reads the value that a ref names; false: the ref is an old one, and the key's rows have to
// be read again.
func (s *Store) fetch(shard int, r ref, key []byte) ([]byte, bool, error) {
	b := s.ep.Batch()
	op := s.addRead(b, s.leads[shard], r, key)
	if err := s.do(stepReadExtent, b); err != nil {
		return nil, false, s.unread(shard, b, fmt.Errorf("read extent %d of shard %d: %w", r.extent, shard, err))
	}
	v, ok := s.valueOf(op.Buf, shard, r, key)
	if ok {
		s.value = append(s.value[:0], v...)
	}
	b.Release()
	return s.value, ok, nil
}

// answer looks for a key in the rows that were read. sure: it is there, or is known not to be; far:
// it is there, with its value in an extent. Where it belongs into other rows, the place is changed.
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
				return nil, far, false, fmt.Errorf("slot %d of row %d of shard %d: %w", slot, n, at.shard, client.ErrDamaged)
			case e.meta.extent():
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
	if now.known && s.Levels > 0 && !s.follow(at, s.locks.row(at.first, s.rowBytes), s.locks.row(at.second, s.rowBytes)) {
		s.levels.doubts[at.shard] = true
		now.known = false
	}
	if now.known && (now == *before || at.first == at.second) {
		return nil, far, false, errNotFound
	}
	*before = now
	return nil, far, false, nil
}

// tornRow waits before a row is read again that was being written. When that takes for ever its
// writer died.
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
			r.Tries++ // it has waited
			return s.repair(at.shard, []uint32{uint32(word)})
		}
	}
	if !r.Again() {
		return fmt.Errorf("its rows are torn: %w", rdma.ErrTimeout)
	}
	return nil
}
