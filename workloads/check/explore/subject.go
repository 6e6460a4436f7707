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
	MaxValue int      // bytes of the largest value that is tried in most pools; 900 by default
	// Few pools have Wide replicas of all, or are made for values of up to Large bytes; 0: none.
	Wide, Large int
	// Timeout is what the pools of Format are made for: the longest that an operation may wait.
	Timeout time.Duration

	// Memory returns the bytes that each node of a pool needs.
	Memory func(s Shape) (uint64, error)
	// Format writes an empty store into a new pool of that shape.
	Format func(f rdma.Fabric, s Shape) error
	// Serve starts the servers beside the nodes of a new pool, before any worker begins; nil: the
	// store has none.
	Serve func(f rdma.Fabric) (Servers, error)
	// Open returns a worker's view of the store. OpenOn does the same with the pool's fabric, for
	// stores in which workers repair what others left. One of the two is set.
	Open   func(ep rdma.Endpoint, cache bool) (client.Store, error)
	OpenOn func(f rdma.Fabric, ep rdma.Endpoint, cache bool) (client.Store, error)
	// Check walks the structure of a pool without active workers.
	Check func(f rdma.Fabric) (client.Report, error)
	// Recoverer returns a constructor of the store's recovery, for one keeper of a pool. nil:
	// there is no recovery. Then operations that depend on crashed clients may end at their
	// timeouts, and no node dies unless Majority is set.
	Recoverer func(f rdma.Configs) cluster.NewRecoverer
	// Majority: the pool tolerates dead nodes, which stay in its view; see
	// cluster.QuorumRecoverer. No operation has to wait for another client or a node that
	// crashed, recovered or not.
	Majority bool
	// Scans reports whether its views are client.Scanners: some operations are scans then.
	Scans bool
	// Durable reports whether a pool survives losses of power, and restarts of nodes. Some plans
	// have these then, and persistent memory.
	Durable bool
	// NoSpares: dead nodes of its pools are never replaced. Lone: they are not replaced in pools
	// with one replica.
	NoSpares, Lone bool
	// Search bounds the search for an order of a run's operations, in wall time; DefaultSearch by
	// default.
	Search time.Duration
	// Levels is how many times tables may double, in pools that grow; 0: pools do not grow.
	Levels int
}

// spared reports whether pools with that many replicas may have spares.
func (s *Subject) spared(replicas int) bool {
	return s.Recoverer != nil && !s.Majority && !s.NoSpares && (replicas > 1 || !s.Lone)
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

// expendable returns how many nodes may die, or be taken for dead, with that many replicas: all but
// one with recovery, a minority in stores of majorities, and none otherwise.
func (s *Subject) expendable(replicas int) int {
	switch {
	case s.Majority:
		return (replicas - 1) / 2
	case s.Recoverer != nil:
		return replicas - 1
	}
	return 0
}

// withDefaults returns s with defaults for the fields that are zero.
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
