package swarm

import (
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/client/buffers"
	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
)

// Recoverer is what a pool's master uses. When nodes die nothing has to be restored, and no client
// waits for what a dead client left. So a Recoverer only sweeps: see package kit, and sweep.go. It
// implements cluster.QuorumRecoverer.
type Recoverer struct {
	// s is the view of the pool of the master itself. It is alone: see StoreOptions.
	s *Store
	// index and values sweep the buffers of the directory and of values.
	index, values *buffers.Sweeper
	// handed are the objects of each region that were handed out before the next epoch begins. A
	// sweep examines no others.
	handed []uint64
	// rest is until when no sweep is begun for clients that ask for one, and pause is how long
	// the last rest was.
	rest  time.Duration
	pause time.Duration
}

var _ cluster.QuorumRecoverer = (*Recoverer)(nil)

// NewRecoverer returns a recoverer that works through ep, of a SWARM, DM-ABD or RAW pool.
func NewRecoverer(ep rdma.Endpoint) (*Recoverer, error) {
	s, err := OpenStore(ep, StoreOptions{any: true, alone: true, CacheBytes: new(0)})
	if err != nil {
		return nil, err
	}
	m := &Recoverer{s: s, handed: make([]uint64, s.Regions)}
	m.index = s.plan.index.Sweeper(ep, s.nodes, s.Timeout)
	m.values = s.plan.values.Sweeper(ep, s.nodes, s.Timeout)
	return m, m.count(rdma.View{Members: make([]rdma.Member, s.nodes)})
}

// Spares lists none: no node takes a dead one's place.
func (m *Recoverer) Spares() []int { return nil }

// Mend has nothing to do.
func (m *Recoverer) Mend(rdma.View) error { return nil }

// Restore is never asked for.
func (m *Recoverer) Restore(_ rdma.View, node, spare int) error {
	return fmt.Errorf("restore node %d on node %d: %w", node, spare, rdma.ErrNotSupported)
}

// Recover only prepares the sweep that follows: other clients complete what the dead one began when
// they meet it.
func (m *Recoverer) Recover(v rdma.View, _ rdma.ClientID) error { return m.count(v) }

// count notes what was handed out so far, for the sweep of the next epoch. It must come before that
// epoch begins: what is handed out later may belong to a client of that epoch. For a node that does
// not answer it keeps what it knew. A count that is too low is safe: it leaves garbage to a later
// sweep.
func (m *Recoverer) count(v rdma.View) error {
	for n, member := range v.Members {
		if member.Gone {
			continue
		}
		err := errors.Join(m.index.Count(n), m.values.Count(n))
		if err != nil && !silent(err) {
			return err
		}
	}
	for region := range m.handed {
		if v.Members[m.s.regions[region][0].Node()].Gone {
			continue
		}
		n, err := m.s.plan.handed(m.s.ep, region)
		if err != nil && !silent(err) {
			return err
		}
		m.handed[region] = max(m.handed[region], uint64(n))
	}
	return nil
}

// silent reports whether a node failed to answer.
func silent(err error) bool {
	return errors.Is(err, rdma.ErrNodeDown) || errors.Is(err, rdma.ErrTimeout)
}

// A client that finds no memory asks for a sweep. If a sweep frees nothing, the pool is full:
// then there is a rest of restShare times what the sweep took. The rest doubles each time, up to
// mostRest.
const (
	restShare = 8
	mostRest  = 10 * time.Second
)

// Need implements cluster.QuorumRecoverer: a sweep, unless there is a rest, or else an epoch, if
// some client asks for it.
func (m *Recoverer) Need(v rdma.View) (cluster.Need, error) {
	asked, err := m.asked(v)
	switch {
	case err != nil:
		return cluster.NeedNothing, err
	case asked&buffers.AskSweep != 0 && m.s.ep.Now() >= m.rest:
		// The keeper begins the epoch next: what is handed out in between is not swept.
		return cluster.NeedSweep, m.count(v)
	case asked&buffers.AskFence != 0:
		return cluster.NeedFence, m.hear(v)
	}
	return cluster.NeedNothing, nil
}

// asked returns all that clients ask for, on any node and in both spaces of buffers.
func (m *Recoverer) asked(v rdma.View) (all uint64, err error) {
	for n, member := range v.Members {
		if member.Gone {
			continue
		}
		for _, space := range []*buffers.Sweeper{m.index, m.values} {
			asked, err := space.Asked(n)
			all |= asked
			if err != nil && !silent(err) {
				return 0, err
			}
			if err != nil {
				break // clients ask on all nodes, so another one tells
			}
		}
	}
	return all, nil
}

// hear clears the words in which clients ask for an epoch. It comes before the epoch begins: a
// request in between only costs one more epoch. In the other order the request of a client that is
// in the new epoch, and needs the next, would be lost.
func (m *Recoverer) hear(v rdma.View) error {
	for n, member := range v.Members {
		if err := m.values.Heard(n); !member.Gone && err != nil && !silent(err) {
			return err
		}
	}
	return nil
}

// unreadable reports whether so many nodes are gone that some buckets may have no majority. What
// those name is not known, so nothing can be swept any more.
func (m *Recoverer) unreadable(v rdma.View) bool {
	gone := 0
	for _, member := range v.Members {
		if member.Gone {
			gone++
		}
	}
	return gone > m.s.Replicas-m.s.layout.Majority()
}

// Sweep frees what no client owns and nothing names. It is called under a busy view, behind the
// fence of its epoch. If it has freed something, or retired objects will be claimable soon, there
// is no rest until the next sweep.
func (m *Recoverer) Sweep(v rdma.View) error {
	began := m.s.ep.Now()
	var w *sweep
	var err error
	if m.unreadable(v) {
		// What some buckets name is not known, so nothing is freed.
		w = new(sweep)
	} else if w, err = m.sweep(v); err != nil {
		return err
	}
	now := m.s.ep.Now()
	m.pause = min(max(2*m.pause, restShare*(now-began)), mostRest)
	if w.freed > 0 || w.young > 0 {
		m.pause = 0
	}
	m.rest = now + m.pause
	return m.count(v)
}
