package board

import (
	"slices"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// rounds is how many requests for leases may be under way; one that is older counts for nothing.
const rounds = 16

// Guard is a memory node's right to serve its pool, and its part in that of the others. It only
// computes; its caller locks it, gives it the node's own clock, and carries its requests and
// grants. See the package comment for why it is safe.
type Guard struct {
	self     int
	lease    time.Duration
	expelled []bool // by node
	asked    [rounds]request
	round    uint64
	granted  []request // by node: the latest of this node's requests that it granted; round 0: none
}

// request is one round of asking all nodes for a lease.
type request struct {
	round uint64
	at    time.Duration // when it was begun
}

// NewGuard returns that of node self in a pool of so many nodes. The first of them are voters: only
// their leases count. It holds no lease yet.
func NewGuard(self, nodes, voters int, lease time.Duration) *Guard {
	return &Guard{self: self, lease: lease, expelled: make([]bool, nodes), granted: make([]request, voters)}
}

// Ask begins a round: the caller sends its number to every other node. It must be called before the
// first is sent, with a time that was not read earlier than needed: leases of this round count from
// now. A voter grants itself.
func (g *Guard) Ask(now time.Duration) (round uint64) {
	g.round++
	r := request{g.round, now}
	g.asked[g.round%rounds] = r
	if g.self < len(g.granted) {
		g.granted[g.self] = r
	}
	return g.round
}

// Granted notes that peer granted a lease in that round. It may come late, twice, or out of order.
func (g *Guard) Granted(peer int, round uint64) {
	r := g.asked[round%rounds]
	if uint(peer) < uint(len(g.granted)) && peer != g.self && r.round == round && round > g.granted[peer].round {
		g.granted[peer] = r
	}
}

// Grant reports whether this node grants peer the lease that it asks for.
func (g *Guard) Grant(peer int) bool {
	return uint(peer) < uint(len(g.expelled)) && !g.expelled[peer]
}

// Expel promises to grant node no lease any more, since the board says that it is down, by a master
// in the given epoch. Expelled itself, a node stops serving. It returns false, and promises
// nothing, for a node that the pool does not have, and for epoch 0, which never was busy.
func (g *Guard) Expel(node int, epoch uint64) bool {
	if uint(node) >= uint(len(g.expelled)) || epoch == 0 {
		return false
	}
	g.expelled[node] = true
	return true
}

// Until returns when the node's right to serve ends, on its own clock: a majority of voters has
// granted leases that last so long. It is rdma.Forever for the only node of a pool, and 0 for one
// that is expelled.
func (g *Guard) Until() time.Duration {
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
