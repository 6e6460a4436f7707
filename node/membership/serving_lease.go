package membership

import (
	"slices"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// rounds is how many requests for leases may be under way. A grant for an older round is ignored,
// which only makes the lease end earlier.
const rounds = 16

// ServingLease is a memory node's right to serve its pool, and its part in the right of the others.
// It only computes. Its caller locks it, gives it times of the node's own clock, and carries its
// requests and grants. The package comment says why it is safe.
type ServingLease struct {
	// self is the number of this node.
	self int
	// lease is how long a grant lasts, from the moment at which it was asked for.
	lease time.Duration
	// expelled has, by node, whether this node has promised to grant no lease any more. A flag is
	// never reset.
	expelled []bool
	// asked are the last rounds, at index round%rounds.
	asked [rounds]request
	// round is the number of the last round; 0: none yet.
	round uint64
	// granted has, by voter, the latest round that the voter granted; round 0: none.
	granted []request
}

// request is one round of asking all nodes for a lease.
type request struct {
	round uint64
	// at is when the round began, on this node's clock: before its first request was sent.
	at time.Duration
}

// NewServingLease returns the ServingLease of node self in a pool of the given number of nodes. The
// first voters nodes are voters: only their grants count. It holds no lease yet. The lease is the
// same on all nodes of the pool: expelling relies on it.
func NewServingLease(self, nodes, voters int, lease time.Duration) *ServingLease {
	return &ServingLease{self: self, lease: lease, expelled: make([]bool, nodes), granted: make([]request, voters)}
}

// Ask begins a round, and the caller then sends its number to every other node. now was read before
// the first request is sent, since leases of this round count from it: an earlier time is safe, and
// only makes them shorter. A voter grants itself.
func (g *ServingLease) Ask(now time.Duration) (round uint64) {
	g.round++
	r := request{g.round, now}
	g.asked[g.round%rounds] = r
	if g.self < len(g.granted) {
		g.granted[g.self] = r
	}
	return g.round
}

// Granted notes that peer granted a lease in that round. Grants may come late, twice, or out of
// order. Those of nodes without a vote, of unknown rounds, and of this node itself are ignored.
func (g *ServingLease) Granted(peer int, round uint64) {
	r := g.asked[round%rounds]
	if uint(peer) < uint(len(g.granted)) && peer != g.self && r.round == round && round > g.granted[peer].round {
		g.granted[peer] = r
	}
}

// Grant reports whether this node grants peer the lease that it asks for. It keeps no record of it:
// a promise not to grant is followed by an ExpelWait, which every earlier grant's lease fits in.
func (g *ServingLease) Grant(peer int) bool {
	return uint(peer) < uint(len(g.expelled)) && !g.expelled[peer]
}

// Expel promises that this node will never again grant node a lease. A master calls for it, in the
// given epoch, after it has marked the node as down on the registry. A node that is expelled itself
// stops serving at once. Expel returns false, and promises nothing, for a node that the pool does
// not have, and for epoch 0, which was never busy.
func (g *ServingLease) Expel(node int, epoch uint64) bool {
	if uint(node) >= uint(len(g.expelled)) || epoch == 0 {
		return false
	}
	g.expelled[node] = true
	return true
}

// Until returns when the node's right to serve ends, on its own clock: a majority of voters has
// granted leases that last until then or longer. It is rdma.Forever for the only node of a pool,
// and 0 for a node that is expelled or has no majority.
func (g *ServingLease) Until() time.Duration {
	n := len(g.granted)
	switch {
	case g.expelled[g.self]:
		return 0
	case n == 1 && g.self == 0:
		return rdma.Forever
	}
	at := make([]time.Duration, 0, n)
	for _, r := range g.granted {
		if r.round > 0 {
			at = append(at, r.at)
		}
	}
	if len(at) < n/2+1 {
		return 0
	}
	slices.Sort(at)
	return at[len(at)-(n/2+1)] + g.lease
}
