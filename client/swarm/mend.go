package swarm

import (
	"cmp"
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/client/buffers"
	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
)

// Mender is what a pool's master uses. Nothing is to be mended when nodes die, and no client waits
// for what a dead one left; so all that it does is to sweep: see package kit, and sweep.go. It
// implements cluster.Enduring.
type Mender struct {
	s             *Store
	index, values *buffers.Sweeper
	handed        []uint64 // objects of each region that were handed out before the next epoch
	marked        []mark   // objects that are garbage, by location
	isMarked      map[uint64]bool
	left          int           // sweeps that the last one needs behind it
	rest          time.Duration // until when no client is heard that asks for one
	pause         time.Duration // the last such rest
}

// mark is an object that was found to be garbage in an epoch.
type mark struct{ location, epoch uint64 }

var _ cluster.Enduring = (*Mender)(nil)

// NewMender returns a mender that works through ep, of a SWARM, DM-ABD or RAW pool.
func NewMender(ep rdma.Endpoint) (*Mender, error) {
	s, err := OpenStore(ep, StoreOptions{any: true, alone: true, CacheBytes: new(0)})
	if err != nil {
		return nil, err
	}
	m := &Mender{s: s, handed: make([]uint64, s.Regions), isMarked: map[uint64]bool{}}
	m.index = s.plan.index.Sweeper(ep, s.nodes, s.Timeout)
	m.values = s.plan.values.Sweeper(ep, s.nodes, s.Timeout)
	return m, m.count(rdma.View{Members: make([]rdma.Member, s.nodes)})
}

// Spares lists none: no node takes a dead one's place.
func (m *Mender) Spares() []int { return nil }

// Mend has nothing to do.
func (m *Mender) Mend(rdma.View) error { return nil }

// Restore is never asked for.
func (m *Mender) Restore(_ rdma.View, node, spare int) error {
	return fmt.Errorf("restore node %d on node %d: %w", node, spare, rdma.ErrNotSupported)
}

// Recover has nothing to do, but to prepare the sweep behind it: what the client began others
// finish when they meet it.
func (m *Mender) Recover(v rdma.View, _ rdma.ClientID) error { return m.count(v) }

// count notes what was handed out, which only a later epoch's sweep may look at. Of a node that
// does not answer it keeps what it knew.
func (m *Mender) count(v rdma.View) error {
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

// A client that finds no memory asks for a sweep. Where one frees nothing the pool is full: then
// there is a rest of some times what it took, and a longer one the next time.
const (
	restShare = 8
	mostRest  = 10 * time.Second
)

// Littered implements cluster.Enduring.
func (m *Mender) Littered(v rdma.View) (bool, error) {
	littered := m.left > 0 && len(m.marked) > 0
	if !littered && m.s.ep.Now() >= m.rest {
		var err error
		if littered, err = m.asked(v); err != nil {
			return false, err
		}
	}
	if !littered {
		return false, nil
	}
	return true, m.count(v)
}

// asked reports whether some client finds no memory.
func (m *Mender) asked(v rdma.View) (bool, error) {
	for n, member := range v.Members {
		if member.Gone {
			continue
		}
		for _, space := range []*buffers.Sweeper{m.index, m.values} {
			asked, err := space.Asked(n)
			if asked || err != nil && !silent(err) {
				return asked, err
			}
			if err != nil {
				break
			}
		}
	}
	return false, nil
}

// unreadable reports whether so many nodes are gone that some buckets have no majority. What these
// name is not known, so that nothing can be swept any more.
func (m *Mender) unreadable(v rdma.View) bool {
	gone := 0
	for _, member := range v.Members {
		if member.Gone {
			gone++
		}
	}
	return gone > m.s.Replicas-m.s.layout.Majority()
}

// Sweep frees what no client owns and nothing names. It is called under a busy view, behind the
// fence of its epoch.
func (m *Mender) Sweep(v rdma.View) error {
	began := m.s.ep.Now()
	var w *sweep
	var err error
	if m.unreadable(v) {
		w, m.marked = new(sweep), nil
	} else if w, err = m.sweep(v); err != nil {
		return err
	}
	m.left = cmp.Or(m.left, mostSweeps)
	m.left--
	now := m.s.ep.Now()
	m.pause = min(max(2*m.pause, restShare*(now-began)), mostRest)
	if w.freed > 0 || len(m.marked) > 0 {
		m.pause = 0
	}
	m.rest = now + m.pause
	return m.count(v)
}
