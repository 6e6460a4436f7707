package stores

import "github.com/farkv/farkv/client/rcuckoo"

// Cuckoo shapes the pools of RCuckoo, as far as users choose it. Nodes, Records, Clients and Timeout are the pool's own.
type Cuckoo = rcuckoo.Shape

// MaxLevels is how many times tables may double at most.
const MaxLevels = rcuckoo.MaxLevels

// CuckooDistances, CuckooFill and CuckooSpans are the curves of RCuckoo's Figure 4, for those who draw them: what its hashing and
// its search do in a table that nobody shares.
var (
	CuckooDistances = rcuckoo.Distances
	CuckooFill      = rcuckoo.MaxFill
	CuckooSpans     = rcuckoo.Spans
)
