// Package rtx does rTX's evaluation again (Wei et al., arXiv).
package rtx

import (
	"cmp"
	_ "embed" // for published
	"fmt"
	"strings"
	"time"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/ops/virtual"
	"github.com/farkv/farkv/reports/eval"
	"github.com/farkv/farkv/workloads"
	"github.com/farkv/farkv/workloads/simulate"
)

// size is how large the simulations of rTX's report are.
type size struct {
	seed    uint64
	records int64         // instead of the paper's 100 million
	warmUp  int64         // operations of each operation that is in flight
	during  time.Duration // of a run, in virtual time
	flights []int         // operations that a client has in flight: see loads
	crowds  []int         // clients of Figure 13
	crash   crashSize     // of Figure 14
	rehash  rehashSize    // of Figure 15
	lease   leaseSize     // of Figure 18
}

func newSize(quick bool, seed uint64) *size {
	if quick {
		return &size{seed: seed, records: 20_000, warmUp: 100, during: time.Millisecond, flights: []int{2},
			crowds: []int{1, 120},
			crash:  newCrashSize(true), rehash: newRehashSize(true), lease: newLeaseSize(true)}
	}
	return &size{
		seed: seed, records: 200_000, warmUp: 300, during: 4 * time.Millisecond, flights: []int{1, 3},
		crowds: []int{1, 5, 10, 20, 40, 80, 120},
		crash:  newCrashSize(false), rehash: newRehashSize(false), lease: newLeaseSize(false),
	}
}

// The paper's compute nodes, and the threads of each (section 6).
const (
	rtxNodes   = 5
	rtxThreads = 24
)

// implementation is one of the indexes that the paper compares (section 6), by its name for it.
type implementation struct {
	name, store string
	own         stores.Values  // options of the store
	less        stores.Without // what its protocol is without
}

// The paper's names for what it compares.
const (
	optimal = "Optimal"
	dtxName = "DTX"
	rtxName = "rTX"
)

// forgetful stores are as the paper's, which remember nothing of a leaf; ours do unless told
// otherwise.
var forgetful = stores.Values{"forgetful": true}

// rtxTrees and rtxTables are the implementations of Sherman and of RACE. DTX locks when it commits:
// rTX is faster "thanks to the reduced transaction aborts due to no logging and pre-locking" (6.1).
var (
	rtxTrees = []implementation{
		{name: optimal, store: "sherman"},
		{name: dtxName, store: "sherman-dtx", own: forgetful, less: stores.EarlyLocks},
		{name: rtxName, store: "sherman-rtx", own: forgetful},
	}
	rtxTables = []implementation{{name: optimal, store: "race"}, {name: dtxName, store: "race-dtx"},
		{name: rtxName, store: "race-rtx"}}
)

// intervals of a run: the second half of them tells its throughput. In the first one locks get
// their waiters, and at the end some clients have an operation to end, which may have waited for
// long.
const intervals = 8

// settled returns the operations a second of the second half of a run.
func settled(r *simulate.Result) float64 {
	sum := 0.0
	for _, p := range r.Points[intervals/2 : intervals] {
		sum += p.Throughput
	}
	return sum / (intervals / 2)
}

// treeMemory is a node's, of which trees need a hundredth. (The paper's has 128 GB.) In a pool that
// is sized by its records rTX's clients look for free buffers three times as often.
const treeMemory = 1 << 30

// leastWarmUp are the operations of a warm-up in which one client comes to cache all internal
// nodes.
const leastWarmUp = 5000

// trial names a simulation that differs from the paper's set-up of a mix (section 6): workload
// rtx-a, say, zipfian.
func (s *size) trial(x implementation, mix, name string, differ func(*virtual.Simulation)) eval.Trial {
	o := virtual.Simulation{
		Config: simulate.Config{
			Store: x.store, Profile: "rtx-testbed", Pool: stores.Params{Nodes: 1, IndexReplicas: 1, DataReplicas: 1},
			Clients: rtxNodes * rtxThreads, Duration: s.during, Processes: true, Seed: s.seed,
		},
		Workload: simulate.Workload{Name: "rtx-" + mix, Records: s.records, ShortKeys: workloads.HashBytes},
		Own:      x.own,
	}
	o.Options.Without = x.less
	if differ != nil {
		differ(&o)
	}
	o.Interval = cmp.Or(o.Interval, o.Duration/intervals)
	if o.WarmUp == 0 {
		o.WarmUp = max(s.warmUp*int64(o.Clients*max(o.InFlight, 1)), leastWarmUp)
	}
	if strings.HasPrefix(x.store, "sherman") {
		// room for all internal nodes in a half, and for all metadata in the other one
		const entry, least = 4, 128 << 10
		o.Own = stores.Values{stores.CacheBytes: int(max(entry*o.Records, least)), "key-bytes": 8,
			"value-bytes": 8}.With(o.Own)
		o.Pool.Memory = cmp.Or(o.Pool.Memory, treeMemory)
	}
	return eval.Trial{Name: name, Simulation: o}
}

//go:embed published.json
var published []byte

// Paper is rTX's paper.
var Paper = eval.NewPaper(&eval.Paper{
	Name: "rTX", Source: "Wei et al., arXiv", Section: "section 6", Small: small,
}, published, eval.Plan[*size]{Size: newSize, SetUp: setUp, Experiments: experiments})

// small tells for which statements of the quick size its few records and short runs are too
// small.
var small = map[string]string{
	"trees-a-uniform": fewNodes, "trees-b-uniform": fewNodes,
	"crash-before": fewerClients, "crash-after": fewerClients,
	"crash-rtx": fewerLeaves, "crash-dtx": fewerLeaves, "crash-optimal": fewerLeaves,
	"rehash-optimal": smallSubtable, "rehash-recovers": smallSubtable,
	"leases-5": fewerStalls, "leases-fixed": fewerStalls, "leases-regulated": fewerStalls,
}

const (
	fewNodes      = "Of the quick size's few leaves more are wanted by two clients at a time."
	fewerClients  = "The quick size has a sixth of the clients."
	fewerLeaves   = "Of the quick size's few leaves the dead have locked a large share."
	smallSubtable = "The quick size's subtable is not the one whose rehash takes rTX 200 ms."
	fewerStalls   = "The quick size's runs are short."
)

func setUp(s *size) string {
	return fmt.Sprintf("Profile rtx-testbed, seed %d. Unless a part says otherwise: 1 memory node, %d clients on %d "+
		"compute nodes, %d\n"+
		"records instead of 100 million, with keys and values of 8 B, for %v behind a warm-up. Keys are hashes, so "+
		"that neighbors in\n"+
		"a tree are not of one time. Zipfian requests are YCSB's: those of 10 billion items, folded, the first of "+
		"which is asked for\n"+
		"by 3.8 %% of all. rTX reads a node's metadata before its data, as in the paper, and remembers none. What "+
		"the paper says is\n"+
		"read off its words and tables, not its plots.", s.seed, rtxNodes*rtxThreads, rtxNodes, s.records, s.during)
}

// aboutOf names a statement.
func aboutOf(parts ...any) string {
	return strings.ReplaceAll(strings.ToLower(eval.Key(parts...)), " ", "-")
}

// The parts, in the paper's order.
var experiments = []eval.Experiment[*size]{
	{Name: "verbs", Title: "verbs of an INSERT into Sherman (Table 2)",
		SetUp: "One client, which has cached all internal nodes.",
		Cases: verbCases, Evaluate: verbTable},
	{Name: "trees", Title: "peak throughput of Sherman's implementations (Figure 11)", SetUp: "YCSB A to E.",
		Cases: treeCases, Evaluate: treeTable},
	{Name: "choices", Title: "what the trees here do otherwise", SetUp: "YCSB A and C.",
		Cases: choiceCases, Evaluate: choiceTable},
	{Name: "tables", Title: "peak throughput of RACE's implementations (Figure 12)", SetUp: "YCSB A to D.",
		Cases: tableCases, Evaluate: tableTable},
	{Name: "latency", Title: "mean latency over throughput of Sherman's implementations (Figure 13)",
		SetUp: "YCSB A, for 1 to 120 clients.", Cases: treeLatencyCases, Evaluate: treeLatencyTable},
	{Name: "crash", Title: "clients that die while they INSERT into Sherman (Figure 14)",
		Cases: clientCrashCases, Evaluate: clientCrashTable},
	{Name: "rehash", Title: "a client that dies while it splits a subtable of RACE (Figure 15)",
		Cases: rehashCases, Evaluate: rehashTable},
	{Name: "steps", Title: "steps from the original to rTX (Figures 16 and 17)", SetUp: "INSERTs alone.",
		Cases: stepCases, Evaluate: stepTable},
	{Name: "lease", Title: "locks of the living that are taken for those of the dead (Figure 18)",
		Cases: leaseCases, Evaluate: leaseTable},
}
