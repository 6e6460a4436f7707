package rcuckoo

import (
	"github.com/farkv/farkv/client/rcuckoo/session"
	"github.com/farkv/farkv/client/rcuckoo/steps"
	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node/rdma"
)

// where returns the place of a key, with the rows that are guessed.
func (s *Store) where(key []byte) table.Place {
	at := s.session.Table.Place(key)
	if s.session.Table.Levels > 0 {
		at.First, at.Second = s.levels.Guess(at.Shard, at.First, at.Bits), s.levels.Guess(at.Shard, at.Second, at.Bits)
	}
	return at
}

// addGrowth adds a READ of the growth word to a batch if a guess was wrong; else it returns nil.
// So a table that does not grow pays nothing.
func (s *Store) addGrowth(o *session.Op, b *rdma.Batch, shard int) *rdma.Op {
	if o.Table.Levels == 0 || !s.levels.Doubts[shard] {
		return nil
	}
	return b.Read(o.Table.GrowthAt(shard), 8)
}

// learned notes what addGrowth has read, before the batch is released.
func (s *Store) learned(shard int, read *rdma.Op) {
	if read != nil {
		s.levels.Learn(shard, le.Uint64(read.Buf))
	}
}

// readGrowths reads the growth words of all shards but those on nodes that are down.
func (s *Store) readGrowths(o *session.Op) error {
	if o.Table.Levels == 0 {
		return nil
	}
	b := o.EP.Batch()
	defer b.Release()
	for shard := range o.Table.Shards {
		b.Read(o.Table.GrowthAt(shard), 8)
	}
	if err := o.EP.Post(b.As(steps.ReadGrowth)); err != nil {
		return err
	}
	if err := o.EP.Wait(b, rdma.All, o.Each); err != nil {
		return err
	}
	for shard := range o.Table.Shards {
		if op := b.Op(shard); op.Err == nil { // of a node that is down nothing is needed now
			s.levels.Learn(shard, le.Uint64(op.Buf))
		}
	}
	return nil
}
