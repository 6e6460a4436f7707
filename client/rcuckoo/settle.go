package rcuckoo

import (
	"errors"
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
)

// An operation may fail in the midst: a node does not answer, or the pool's view changes and fences off what was in flight. Then
// the worker's own intent stays as it is, and the shard is dirty. Before anything else there, or at once, the worker repairs
// what it left itself, as others would (see repair.go): behind its last verb nothing of the ones before can land, so that it
// need not be fenced off. Then it is known what became of the operation: whether its redo was whole.

// again tells whether an operation that failed, without having changed anything, is to begin again.
func (s *Store) again(shard int, err error) bool {
	switch {
	case errors.Is(err, errAgain):
		return true
	case errors.Is(err, rdma.ErrStale):
		_, joined := s.ep.Join()
		return joined == nil
	}
	return false
}

// outcome finds out what became of a change that failed. done: it took effect; again: it did not, and may begin again.
func (s *Store) outcome(shard int, err *error) (done, again bool) {
	st := &s.shards[shard]
	switch e := *err; {
	case errors.Is(e, errAgain):
		return false, true
	case errors.Is(e, client.ErrNotFound), errors.Is(e, client.ErrExists), errors.Is(e, client.ErrFull):
		return false, false
	case errors.Is(e, rdma.ErrStale):
		if _, joined := s.ep.Join(); joined != nil {
			*err = s.uncertain(fmt.Errorf("%w: %w", e, joined))
			return false, false
		}
	case !st.dirty && !s.locks.sent || errors.Is(e, rdma.ErrAccess) || errors.Is(e, rdma.ErrClosed) || errors.Is(e, client.ErrDamaged):
		*err = s.uncertain(e)
		return false, false
	}
	sent := s.locks.sent
	begun, failed := s.settle(shard)
	if errors.Is(failed, rdma.ErrStale) { // again: the next round settles it, if nothing was sent
		if _, joined := s.ep.Join(); joined == nil {
			begun, failed = s.settle(shard)
		}
	}
	s.locks.sent = sent
	switch {
	case failed != nil:
		*err = s.uncertain(fmt.Errorf("%w: %w", *err, failed))
		return false, false
	case begun && sent:
		return true, false
	}
	s.locks.sent = false
	return false, s.left() > 0 // its node answers
}

// settled settles a shard that is dirty.
func (s *Store) settled(shard int) error {
	st := &s.shards[shard]
	if !st.dirty && len(st.leased) == 0 && st.flying == nil {
		return nil
	}
	if _, err := s.settle(shard); err != nil {
		return fmt.Errorf("settle what an earlier operation left in shard %d: %w", shard, err)
	}
	return nil
}

// settle brings the worker's own operation in a shard to its end, or makes sure that it never began.
func (s *Store) settle(shard int) (begun bool, err error) {
	st := &s.shards[shard]
	if st.flying != nil {
		if err := s.ep.Wait(st.flying, rdma.All, s.opt.Timeout); err != nil && !st.flying.Finished() {
			return false, fmt.Errorf("verbs are in flight: %w", err)
		}
		st.flying.Release()
		st.flying = nil
	}
	for tries := 0; ; tries++ {
		begun, err = s.settleOnce(shard)
		if !errors.Is(err, errAgain) {
			return begun, err
		}
		if s.left() == 0 {
			return false, errWaited
		}
		s.pause(tries)
	}
}

func (s *Store) settleOnce(shard int) (begun bool, err error) {
	st := &s.shards[shard]
	b := s.ep.Batch()
	op := b.Read(s.intentAt(shard, s.id), intentBytes)
	if err := s.do("read intents", b); err != nil {
		b.Release()
		return false, fmt.Errorf("read the worker's own intent: %w", err)
	}
	own := decodeIntent(op.Buf, shard, s.id)
	words := append([]uint32(nil), st.leased...)
	if !idle(own.state) && !own.torn {
		for i := range own.words() {
			words = append(words, own.word(i))
		}
	}
	b.Release()
	if own.torn { // nothing was taken, and its WRITE does not land any more
		return false, s.endOwn(shard, own.state)
	}
	m := &s.mending
	m.applied = false
	if len(words) > 0 {
		if err := s.repair(shard, words); err != nil {
			return false, err
		}
	}
	st.dirty, st.leased = false, st.leased[:0]
	return m.applied && own.state>>1 == st.seq, nil
}

// endOwn ends the worker's own intent, of which nothing came.
func (s *Store) endOwn(shard int, state uint64) error {
	b := s.ep.Batch()
	defer b.Release()
	p := b.Alloc(8)
	le.PutUint64(p, state|idleBit)
	b.Write(s.intentAt(shard, s.id), p)
	if err := s.do("done", b); err != nil {
		return fmt.Errorf("end the worker's own intent: %w", err)
	}
	st := &s.shards[shard]
	st.dirty = false
	return nil
}

// readWord reads a word of pool memory.
func (s *Store) readWord(a rdma.Addr) (uint64, error) {
	b := s.ep.Batch()
	defer b.Release()
	op := b.Read(a, 8)
	if err := s.do("read rows", b); err != nil {
		return 0, err
	}
	return le.Uint64(op.Buf), nil
}
