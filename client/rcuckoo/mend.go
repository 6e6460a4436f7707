package rcuckoo

import (
	"fmt"

	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/client/rcuckoo/recovery"
	"github.com/farkv/farkv/client/rcuckoo/session"
	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
)

// Recoverer is what a pool's master uses to repair at once what dead clients left, as other clients
// would wait for it. With replicas it also makes new leaders and fills spares: see restore.go of
// package recovery. Without replicas nothing takes a dead node's place, and its shards are down. It
// implements cluster.Recoverer.
type Recoverer struct{ s *Store }

var _ cluster.Recoverer = (*Recoverer)(nil)

// NewRecoverer returns a recoverer that works through ep, which the caller owns. It has no cache,
// as it inserts nothing.
func NewRecoverer(ep rdma.Endpoint) (*Recoverer, error) {
	s, err := Open(ep, session.Options{CacheBytes: new(0)})
	if err != nil {
		return nil, err
	}
	return &Recoverer{s}, nil
}

// Sweep has nothing to do: the claim lists of a dead client name all extents that it owned, so
// Recover leaves none without an owner.
func (m *Recoverer) Sweep(rdma.View) error { return nil }

// Recover completes, in each shard, what the client had begun, frees its locks, and completes the
// repairs that it was at. Then it frees the extents in the client's claim lists. Afterwards no
// intent, no lease and no extent belongs to the identity, so another client may have it. The client
// must be fenced off. A crash leaves a part of this undone; the identity is not given out before
// Recover has succeeded, and it may be repeated. Shards without a living copy are left out.
func (m *Recoverer) Recover(v rdma.View, c rdma.ClientID) error {
	s := m.s
	if int(c) > s.session.Table.Clients {
		return nil
	}
	// The endpoint has joined v: from here on the layout has the leaders of v, too.
	s.session.View.Enter(v)
	// Repair takes the client for fenced off without asking the pool, and evicts it from leases.
	// The client stays condemned when its recovery fails: else recoveries of two dead clients that
	// name the same lock word would wait for each other, as none waits for a failure timer. It is
	// fenced off until Recover has succeeded. A later master fences it off anew, with a recoverer
	// of its own.
	s.detector.Condemned[c] = true
	for shard := range s.session.Table.Shards {
		if s.session.Table.Orphan[shard] {
			continue
		}
		o := s.op.Begin()
		o.Until = s.session.EP.Now() + s.session.Opt.Timeout/recoverShare // repeat, and the waits of a repair, end then
		if err := o.Repeat(func() error { return s.settler.Recover(o, shard, c) }); err != nil {
			return fmt.Errorf("recover client %d in shard %d: %w", c, shard, err)
		}
		// Extents come after redos: then the rows say for good which extents they name.
		if _, err := s.extents.Leave(shard, c); err != nil {
			return fmt.Errorf("recover client %d: %w", c, err)
		}
	}
	delete(s.detector.Condemned, c) // the identity may be given to another client
	return nil
}

// recoverShare is the part of an operation's timeout for which recovery waits for other clients
// that hold or repair the locks, before the master does other work: those clients may wait for a
// node that only the master can remove.
const recoverShare = 8

// Spares lists the nodes that hold nothing until they take a dead node's place.
func (m *Recoverer) Spares() []int {
	return kit.Spares(m.s.session.Table.Nodes, m.s.session.Table.Params.Spares)
}

// Mend makes new leaders in shards that lost the leader's node: see takeover.go of package
// recovery. It runs under the busy view v. Other operations that the fence cut off are settled by
// their clients, or repaired. It may be repeated: shards that have a leader are left as they are.
func (m *Recoverer) Mend(v rdma.View) error {
	s := m.s
	s.session.View.Enter(v)
	if s.session.Table.Replicas == 1 {
		return nil
	}
	for shard := range s.session.Table.Shards {
		if s.session.Table.Orphan[shard] {
			continue
		}
		// The role is the last WRITE of a takeover, so without it nothing of the takeover counts
		// as done.
		role, err := s.op.ReadWord(s.session.Table.RoleAt(shard))
		if err == nil && role != table.Leading {
			err = recovery.TakeOver(s.op, shard)
		}
		if err != nil {
			return fmt.Errorf("shard %d: %w", shard, err)
		}
	}
	return nil
}

// Restore copies to the spare, from the leaders, what a backup holds of all shards of which the
// dead node had a copy. Each copy has the same offsets on the spare as on the dead node. The
// spare will be the last of a shard's copies, which leads when no other is left. Its role is
// zero, like its locks and all that only a leader uses, so a master makes it a leader then. An
// operation may have begun on backups while the leader does not have its redo yet: it is
// completed on the spare as on other backups. A crash leaves a part of the copies on the spare,
// and no view that names it; Restore writes all again. The error wraps client.ErrDamaged if the
// node had the last copy of a shard.
func (m *Recoverer) Restore(v rdma.View, dead, spare int) error {
	s := m.s
	s.session.View.Enter(v)
	// If a shard is lost, nothing is copied: the lost shard would seem to be there, and empty.
	for _, copying := range []bool{false, true} {
		for shard := range s.session.Table.Shards {
			index, ok := kit.IndexOn(s.session.Table.Originals[shard], v.Original(dead))
			if !ok {
				continue
			}
			if err := recovery.Restore(s.op, shard, node.Replica{Node: spare, Index: index}, copying); err != nil {
				return fmt.Errorf("restore node %d on node %d: shard %d: %w", dead, spare, shard, err)
			}
		}
	}
	return nil
}
