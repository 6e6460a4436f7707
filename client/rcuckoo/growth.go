package rcuckoo

import (
	"github.com/farkv/farkv/client/rcuckoo/steps"
	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node/rdma"
)

// where returns the place of a key, with the rows that are guessed.
func (s *Store) where(key []byte) table.Place {
	at := s.table.Place(key)
	if s.table.Levels > 0 {
		at.First, at.Second = s.levels.Guess(at.Shard, at.First, at.Bits), s.levels.Guess(at.Shard, at.Second, at.Bits)
	}
	return at
}

// addGrowth adds a READ of the growth word to a batch if a guess was wrong; else it returns nil.
// So a table that does not grow pays nothing.
func (s *Store) addGrowth(b *rdma.Batch, shard int) *rdma.Op {
	if s.table.Levels == 0 || !s.levels.Doubts[shard] {
		return nil
	}
	return b.Read(s.table.GrowthAt(shard), 8)
}

// learned notes what addGrowth has read, before the batch is released.
func (s *Store) learned(shard int, read *rdma.Op) {
	if read != nil {
		s.levels.Learn(shard, le.Uint64(read.Buf))
	}
}

// readGrowths reads the growth words of all shards but those on nodes that are down.
func (s *Store) readGrowths() error {
	if s.table.Levels == 0 {
		return nil
	}
	b := s.ep.Batch()
	defer b.Release()
	for shard := range s.table.Shards {
		b.Read(s.table.GrowthAt(shard), 8)
	}
	if err := s.ep.Post(b.As(steps.ReadGrowth)); err != nil {
		return err
	}
	if err := s.ep.Wait(b, rdma.All, s.each); err != nil {
		return err
	}
	for shard := range s.table.Shards {
		if op := b.Op(shard); op.Err == nil { // of a node that is down nothing is needed now
			s.levels.Learn(shard, le.Uint64(op.Buf))
		}
	}
	return nil
}
