package rcuckoo

import (
	"fmt"

	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
)

// Mender is what a pool's master uses: it repairs at once what dead clients left, for which others
// would wait. Nothing takes a dead node's place, unless there are replicas: its shards are down. It
// implements cluster.Mender.
type Mender struct{ s *Store }

var _ cluster.Mender = (*Mender)(nil)

// NewMender returns a mender that works through ep.
func NewMender(ep rdma.Endpoint) (*Mender, error) {
	s, err := Open(ep, Options{CacheBytes: new(0)})
	if err != nil {
		return nil, err
	}
	return &Mender{s}, nil
}

// Sweep has nothing to do.
func (m *Mender) Sweep(rdma.View) error { return nil }

// Recover brings to its end, in each shard, what the client had begun, lets go of its locks, and
// brings repairs to their end that it was at. Then it frees the extents that the client had in
// hand. Behind it no intent, no lease and no extent is the identity's any more, so that another may
// have it. The client is fenced off.
func (m *Mender) Recover(v rdma.View, c rdma.ClientID) error {
	s := m.s
	if int(c) > s.Clients {
		return nil
	}
	s.view.Enter(v)
	s.condemned = c
	defer func() { s.condemned = 0 }()
	for shard := range s.Shards {
		if s.orphan[shard] {
			continue
		}
		s.begin()
		s.until = s.ep.Now() + s.opt.Timeout/recoverShare
		if err := s.repeat(func() error { return s.recoverOnce(shard, c) }); err != nil {
			return fmt.Errorf("recover client %d in shard %d: %w", c, shard, err)
		}
		if _, err := s.extents.leave(shard, c); err != nil {
			return fmt.Errorf("recover client %d: %w", c, err)
		}
	}
	return nil
}

// recoverShare is the part of an operation's timeout for which recovery waits for other clients
// that hold its locks or repair them, before the keeper sees to other things: what they wait for
// may be a node that only the keeper can give up.
const recoverShare = 8

func (s *Store) recoverOnce(shard int, c rdma.ClientID) error {
	if err := s.settled(shard); err != nil {
		return err
	}
	words, err := s.leasesOf(shard, c)
	if err != nil {
		return err
	}
	t, err := s.readIntent(shard, c)
	if err != nil {
		return err
	}
	if !idle(t.state) && !t.torn {
		words = t.addWords(words)
	}
	if len(words) > 0 {
		if err := s.repair(shard, words); err != nil {
			return err
		}
		if t, err = s.readIntent(shard, c); err != nil {
			return err
		}
	}
	switch {
	case idle(t.state):
		return nil
	case !t.torn:
		return errAgain
	}
	// No other client ends a torn intent. The leases that this would need cannot be read from the
	// intent; a client without them might be slow, and end the next holder's intent.
	return s.end(shard, c, t.state)
}

// leasesOf returns the words, in order, that a client repairs.
func (s *Store) leasesOf(shard int, c rdma.ClientID) (words []uint32, err error) {
	for from := 0; from < s.LockWords; from += walkBytes / 8 {
		n := min(walkBytes/8, s.LockWords-from)
		b := s.ep.Batch()
		op := b.Read(s.leaseAt(shard, from), 8*n)
		if err := s.do(stepTakeLeases, b); err != nil {
			return nil, s.unread(shard, b, fmt.Errorf("read the repair leases: %w", err))
		}
		for i := range n {
			if leaseHolder(le.Uint64(op.Buf[8*i:])) == c {
				words = append(words, uint32(from+i))
			}
		}
		b.Release()
	}
	return words, nil
}
