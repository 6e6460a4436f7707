package board

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// Options describe the pool of a board and the process that reads it.
type Options struct {
	Nodes   int // of the pool
	Clients int // identities: 1 to Clients
	// Process names this Board among all that are or were open on the pool, those of the same
	// process too.
	Process string
	Machine string // for people
	PID     int
	Now     func() time.Duration // Env.Now
	// Glance returns the master's record as some watch of the Store saw it last, and when, on Now's
	// clock, that version was first there; false: it knows nothing. It may be stale: it spares
	// candidates the question whether there is a master, and never makes one. Nil: there is none.
	Glance func() (r Record, since time.Duration, ok bool)
	// Revoke fences a client's life off, as Fabric.RevokeLife does, before another client becomes
	// master. That life may have ended already. An error that wraps rdma.ErrNodeDown is one of
	// nodes that do not answer, while the board says that the client was fenced off: then the next
	// master begins with a barrier, see rdma.Role.Beyond.
	Revoke func(c rdma.Client) error
}

// Board is a pool's control plane over a Store: what rdma.Control, and the identities of clients,
// need. It is safe for concurrent use, and holds no lock while it waits for the Store.
type Board struct {
	store Store
	o     Options

	mu   sync.Mutex
	seen sighting
	mine map[rdma.ClientID]tenure // the latest of each client of this process

	decoded    []listed                 // of all identities, less one, what was read last
	next       int                      // identity, less one, at which the next Claim begins to look
	held       map[rdma.ClientID]uint64 // lives that Claim has handed out
	busy       map[rdma.ClientID]bool   // identities that a Claim is about, or that are unresolved
	unresolved []unresolvedClaim
}

// New returns the board that s keeps.
func New(s Store, o Options) *Board {
	return &Board{
		store: s, o: o, mine: map[rdma.ClientID]tenure{}, decoded: make([]listed, o.Clients),
		next: rand.IntN(max(o.Clients, 1)), // so that processes that begin together do not compete for the lowest
		held: map[rdma.ClientID]uint64{}, busy: map[rdma.ClientID]bool{},
	}
}
