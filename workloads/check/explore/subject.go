package explore

import (
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
)

// Subject is a store as the explorer sees it.
type Subject struct {
	Name     string
	Handler  rdma.Handler
	Clients  int      // identities of a pool; 24 by default
	Servers  int      // how many of them its servers have at most
	Replicas [][2]int // of index and data, that pools may have; one of each by default
	MaxValue int      // bytes of the largest value that is tried; 900 by default
	// Timeout is what the pools of Format are made for: the longest that an operation may wait.
	Timeout time.Duration

	// Memory returns the bytes that each node of a pool needs.
	Memory func(s Shape) (uint64, error)
	// Format writes an empty store into a new pool of that shape.
	Format func(f rdma.Fabric, s Shape) error
	// Serve starts what runs beside the nodes of a new pool, before any worker begins; nil: nothing
	// does.
	Serve func(f rdma.Fabric) (Servers, error)
	// Open returns a worker's view of the store. OpenOn does the same, with
	// the pool's fabric, for stores in which workers repair what others left. One of the two is
	// set.
	Open   func(ep rdma.Endpoint, cache bool) (client.Store, error)
	OpenOn func(f rdma.Fabric, ep rdma.Endpoint, cache bool) (client.Store, error)
	// Check walks the structure of a pool without active workers.
	Check func(f rdma.Fabric) (client.Report, error)
	// Mender returns what makes the menders of one keeper of a pool. Without it there are none:
	// what depends on crashed clients may end at its timeout, and no node dies, but for Majority.
	Mender func(f rdma.Configs) cluster.NewMender
	// Majority: the pool tolerates dead nodes, which stay in its view; see cluster.Enduring. No
	// operation has to wait for another client or a node that crashed, recovered or not.
	Majority bool
	// Scans tells that its views are client.Scanners: some operations are scans.
	Scans bool
	// Durable tells that the pool outlives losses of power, and restarts: some plans have them, and
	// persistent memory.
	Durable bool
	// NoSpares tells that no node of its pools takes a dead one's place, and Lone that none does
	// where there is one replica of everything.
	NoSpares, Lone bool
	// Search bounds the search for an order of a run's operations, in wall time; DefaultSearch by
	// default.
	Search time.Duration
	// Levels is how many times tables double in its pools that do so; 0: none does.
	Levels int
}

// spared reports whether its pools with so many replicas may have spares.
func (s *Subject) spared(replicas int) bool {
	return s.Mender != nil && !s.Majority && !s.NoSpares && (replicas > 1 || !s.Lone)
}

// open returns a worker's view.
func (s *Subject) open(f rdma.Fabric, ep rdma.Endpoint, cache bool) (client.Store, error) {
	if s.OpenOn != nil {
		return s.OpenOn(f, ep, cache)
	}
	return s.Open(ep, cache)
}

const (
	defaultClients = 24
	defaultValue   = 900
)

// expendable is how many nodes may die, or be taken for dead, of as many replicas. A pool that is
// mended outlives the loss of all but one, and one of majorities that of a minority; any other,
// none.
func (s *Subject) expendable(replicas int) int {
	switch {
	case s.Majority:
		return (replicas - 1) / 2
	case s.Mender != nil:
		return replicas - 1
	}
	return 0
}

// withDefaults returns s with what it leaves open.
func (s *Subject) withDefaults() *Subject {
	t := *s
	if t.Clients == 0 {
		t.Clients = defaultClients
	}
	if len(t.Replicas) == 0 {
		t.Replicas = [][2]int{{1, 1}}
	}
	if t.MaxValue == 0 {
		t.MaxValue = defaultValue
	}
	if t.Search == 0 {
		t.Search = DefaultSearch
	}
	return &t
}
