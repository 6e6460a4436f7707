package membership

import (
	"math/rand/v2"
	"sync"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// Options describe the pool of a registry and the process that reads it.
type Options struct {
	// Nodes is the number of the pool's memory nodes, spares included. Records that list another
	// number are damaged.
	Nodes int
	// Clients is the number of identities, which are 1 to Clients.
	Clients int
	// Process names this Registry. It differs from that of every other Registry that is or was open
	// on the pool, in the same process too: isMine relies on it to recognize its own claims.
	Process string
	// Machine and PID are shown to operators. No decision depends on them.
	Machine string
	PID     int
	// Now is Env.Now. It is compared only with values of its own.
	Now func() time.Duration
	// Glance returns the master's record as a watch of the Store saw it last, and when the watch
	// first saw that version, on Now's clock. It reports false if the watch has seen no record. The
	// record may be stale. So it only spares a candidate the question whether there is a master: a
	// stale record delays a candidate, and never makes one master. Nil: there is no watch.
	Glance func() (r Record, since time.Duration, ok bool)
	// Revoke fences a client's life off, as Fabric.RevokeLife does, before another client becomes
	// master. That life may have ended already, which is no error. An error that wraps
	// rdma.ErrNodeDown, and not ErrUnreachable, says that some nodes did not answer, while the
	// client is marked as fenced on the registry. Then the next master begins with a barrier, see
	// rdma.Role.FenceEpoch.
	Revoke func(c rdma.Client) error
}

// Registry is a pool's control plane over a Store: it does the work of rdma.Control, and of the
// identities of clients. It is safe for concurrent use, and holds no lock while it waits for the
// Store.
//
// What it keeps itself is only knowledge of the records and of its own attempts to change them. A
// process that crashes loses nothing that another process needs.
type Registry struct {
	store Store
	o     Options

	// mu protects everything below.
	mu sync.Mutex
	// seen is the latest version of the master's record, and when this process first saw it.
	seen lastChange
	// mine has, for each client of this process, the last tenure that it began or tried to begin.
	// An entry is there before the Swap that begins the tenure is sent, so that a tenure of unknown
	// outcome is recognized when it is read later.
	mine map[rdma.ClientID]tenure

	// decoded are the records of all identities as they were read last; index: identity, less one.
	// It saves decoding the records of which the version is unchanged.
	decoded []listed
	// next is the identity, less one, at which the next Claim begins to look for a free one.
	next int
	// held has the life of each identity that Claim has handed out and Release has not given back.
	held map[rdma.ClientID]uint64
	// busy has the identities that a Claim of this Registry is about, or that are unresolved. No
	// other Claim of this Registry takes one of them.
	busy map[rdma.ClientID]bool
	// unresolved are claims of which the outcome is unknown. Settle resolves them.
	unresolved []unresolvedClaim
}

// New returns the registry of which s keeps the records. It reads and writes nothing yet: records
// that were never written mean an idle view of epoch 0, no master, and free identities.
func New(s Store, o Options) *Registry {
	return &Registry{
		store: s, o: o, mine: map[rdma.ClientID]tenure{}, decoded: make([]listed, o.Clients),
		// Random, so that processes that begin together do not compete for the lowest identity.
		next: rand.IntN(max(o.Clients, 1)),
		held: map[rdma.ClientID]uint64{}, busy: map[rdma.ClientID]bool{},
	}
}
