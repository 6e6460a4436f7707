package rcuckoo

import (
	"fmt"

	"github.com/farkv/farkv/client/rcuckoo/steps"
	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
)

// Mender is what a pool's master uses to repair at once what dead clients left, as other clients
// would wait for it. With replicas it also makes new leaders and fills spares: see restore.go.
// Without replicas nothing takes a dead node's place, and its shards are down. It implements
// cluster.Mender.
type Mender struct{ s *Store }

var _ cluster.Mender = (*Mender)(nil)

// NewMender returns a mender that works through ep, which the caller owns. It has no cache, as it
// inserts nothing.
func NewMender(ep rdma.Endpoint) (*Mender, error) {
	s, err := Open(ep, Options{CacheBytes: new(0)})
	if err != nil {
		return nil, err
	}
	return &Mender{s}, nil
}

// Sweep has nothing to do: the hands of a dead client name all extents that it owned, so Recover
// leaves none without an owner.
func (m *Mender) Sweep(rdma.View) error { return nil }

// Recover completes, in each shard, what the client had begun, frees its locks, and completes the
// repairs that it was at. Then it frees the extents in the client's hands. Afterwards no intent,
// no lease and no extent belongs to the identity, so another client may have it. The client must
// be fenced off. A crash leaves a part of this undone; the identity is not given out before
// Recover has succeeded, and it may be repeated. Shards without a living copy are left out.
func (m *Mender) Recover(v rdma.View, c rdma.ClientID) error {
	s := m.s
	if int(c) > s.table.Clients {
		return nil
	}
	s.view.Enter(v)
	s.condemned = c
	defer func() { s.condemned = 0 }()
	for shard := range s.table.Shards {
		if s.table.Orphan[shard] {
			continue
		}
		s.begin()
		s.until = s.ep.Now() + s.opt.Timeout/recoverShare // repeat, and the waits of a repair, end then
		if err := s.repeat(func() error { return s.recoverOnce(shard, c) }); err != nil {
			return fmt.Errorf("recover client %d in shard %d: %w", c, shard, err)
		}
		if _, err := s.extents.Leave(shard, c); err != nil {
			return fmt.Errorf("recover client %d: %w", c, err)
		}
	}
	return nil
}

// recoverShare is the part of an operation's timeout for which recovery waits for other clients
// that hold or repair the locks, before the master does other work: those clients may wait for a
// node that only the master can remove.
const recoverShare = 8

// recoverOnce is one try to recover a client in a shard: it repairs all words that the client's
// intent names, and those of its leases, and makes sure that its intent is idle then. The error
// wraps errAgain when another try is needed.
func (s *Store) recoverOnce(shard int, c rdma.ClientID) error {
	// First comes what an earlier repair of the master left, or the last holder of its identity.
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
	if !table.Idle(t.State) && !t.Torn {
		words = t.AddWords(words)
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
	case table.Idle(t.State):
		return nil
	case !t.Torn: // the repair has not completed its operation
		return errAgain
	}
	// Only the master ends a torn intent. Repair ends intents under the leases of their words,
	// and a torn intent does not say which words these are. Without leases a slow client could
	// end the intent of the identity's next holder.
	return s.end(shard, c, t.State)
}

// leasesOf returns the words with leases that a client holds, in ascending order.
func (s *Store) leasesOf(shard int, c rdma.ClientID) (words []uint32, err error) {
	for from := 0; from < s.table.LockWords; from += walkBytes / 8 {
		n := min(walkBytes/8, s.table.LockWords-from)
		b := s.ep.Batch()
		op := b.Read(s.table.LeaseAt(shard, from), 8*n)
		if err := s.do(steps.TakeLeases, b); err != nil {
			return nil, s.unread(shard, b, fmt.Errorf("read the repair leases: %w", err))
		}
		for i := range n {
			if table.LeaseHolder(le.Uint64(op.Buf[8*i:])) == c {
				words = append(words, uint32(from+i))
			}
		}
		b.Release()
	}
	return words, nil
}
