// Package fusee does FUSEE's evaluation again (Shen et al., FAST 2023).
package fusee

import (
	_ "embed" // for published
	"fmt"
	"time"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/ops/virtual"
	"github.com/farkv/farkv/reports/eval"
	"github.com/farkv/farkv/workloads/simulate"
)

// size has the sizes of the simulations in FUSEE's report.
type size struct {
	seed           uint64
	records        int64
	ops, warmUp    int64
	micro          int64 // operations of each kind by a single client
	clients, nodes []int
	updates        []int // percent
	thresholds     []float64
	replicas       []int
	mixes          []string // of the figures that have four
	// Virtual time for a second of the paper. The one of the crash is longer, for a master that
	// mends the pool.
	second, crashSecond time.Duration
	crashWarmUp         int64 // of a run that is longer than the others
}

var mixes = []string{"a", "b", "c", "d"}

func newSize(quick bool, seed uint64) *size {
	if quick {
		return &size{
			seed: seed, records: 10_000, ops: 50_000, warmUp: 60_000, micro: 1_000,
			clients: []int{8, 32, 128}, nodes: []int{2, 3, 5}, updates: []int{0, 50, 100},
			thresholds: []float64{0.2, 0.6, 1},
			replicas:   []int{1, 3, 5}, mixes: mixes, second: time.Millisecond, crashSecond: 10 * time.Millisecond,
			crashWarmUp: 600_000,
		}
	}
	return &size{
		seed: seed, records: 100_000, ops: 1_000_000, warmUp: 1_000_000, micro: 10_000,
		clients: []int{8, 16, 32, 64, 96, 128}, nodes: []int{2, 3, 4, 5}, updates: []int{0, 25, 50, 75, 100},
		thresholds: []float64{0, 0.2, 0.4, 0.6, 0.8, 1}, replicas: []int{1, 2, 3, 4, 5}, mixes: mixes,
		second: 10 * time.Millisecond, crashSecond: 100 * time.Millisecond, crashWarmUp: 6_000_000,
	}
}

var small = map[string]string{
	"replicas-ab": eval.Unproven, "replicas-c": eval.Unproven, "replicas-d1": eval.Unproven,
	"replicas-d5": eval.Unproven,
}

//go:embed published.json
var published []byte

// Paper is FUSEE's paper.
var Paper = eval.NewPaper(&eval.Paper{
	Name: "FUSEE", Source: "Shen et al., FAST 2023", Section: "sections 6.3 and 6.4", Small: small,
}, published, eval.Plan[*size]{Size: newSize, SetUp: setUp, Experiments: experiments})

func setUp(s *size) string {
	return fmt.Sprintf("Profile fusee-testbed, %d records, %d operations a run behind a warm-up of %d, seed %d. "+
		"Unless a part\n"+
		"says otherwise: 2 memory nodes, 128 clients with 8 on a compute node, pairs of 1,024 B, one replica of "+
		"the index\n"+
		"and two of the data (FUSEE 6.1), zipfian. Throughput in Mops. What the paper says is read off its words, "+
		"not its\n"+
		"plots.", s.records, s.ops, s.warmUp, s.seed)
}

var experiments = []eval.Experiment[*size]{
	{Name: "clients", Title: "throughput for 8 to 128 clients (Figure 13)", SetUp: "YCSB A to D.",
		Cases: clientCases, Evaluate: clientTable},
	{Name: "nodes", Title: "throughput for 2 to 5 memory nodes (Figure 14)", SetUp: "YCSB A and C.",
		Cases: nodeCases, Evaluate: nodeTable},
	{Name: "pairs", Title: "throughput for smaller pairs (Figure 12)", SetUp: "YCSB C.",
		Cases: pairCases, Evaluate: pairTable},
	{Name: "ratio", Title: "throughput for ratios of SEARCH and UPDATE (Figure 15)", SetUp: "Zipfian.",
		Cases: ratioCases, Evaluate: ratioTable},
	{Name: "cache", Title: "throughput for thresholds of the adaptive index cache (Figure 16)", SetUp: "YCSB A.",
		Cases: cacheCases, Evaluate: cacheTable},
	{Name: "allocation", Title: "two-level and node-centric allocation (Figure 17)",
		SetUp: "YCSB A and C. Node-centric: every UPDATE and INSERT calls a memory node for an object.",
		Cases: allocationCases, Evaluate: allocationTable},
	{Name: "latency", Title: "median latencies for 1 to 5 replicas of index and data (Figure 19)",
		SetUp: "5 memory nodes, one client alone. Microseconds.", Cases: latencyCases, Evaluate: latencyTable},
	{Name: "replicas", Title: "throughput for 1 to 5 replicas of index and data (Figure 18)",
		SetUp: "5 memory nodes, YCSB A to D.",
		Cases: replicaCases, Evaluate: replicaTable},
	{Name: "crash", Title: "one of two memory nodes crashes at 5 s (Figure 20)",
		SetUp: "YCSB C, two replicas of the index and two of the data.", Cases: crashCases, Evaluate: crashTable},
	{Name: "recovery", Title: "a client is recovered behind 1,000 UPDATEs (Table 1)",
		SetUp: "UPDATEs alone, 2 clients, one replica of the index and two of the data. A client of the model has no " +
			"connections.",
		Cases: recoveryCases, Evaluate: recoveryTable},
	{Name: "elasticity", Title: "16 clients join and leave (Figure 21)", SetUp: "YCSB C, 16 clients at first.",
		Cases: elasticityCases, Evaluate: elasticityTable},
}

// base returns the paper's set-up of a mix (FUSEE 6.1, 6.3).
func (s *size) base(mix string) virtual.Simulation {
	return virtual.Simulation{
		Config: simulate.Config{
			Store: "fusee", Profile: "fusee-testbed", Pool: stores.Params{Nodes: 2, IndexReplicas: 1, DataReplicas: 2},
			Clients: 128, Ops: s.ops, WarmUp: s.warmUp, Seed: s.seed,
		},
		Workload: simulate.Workload{Name: "ycsb-" + mix, Records: s.records},
	}
}

// trial returns a named simulation that differs from the base.
func (s *size) trial(mix, name string, differ func(*virtual.Simulation)) eval.Trial {
	t := eval.Trial{Name: name, Simulation: s.base(mix)}
	if differ != nil {
		differ(&t.Simulation)
	}
	return t
}
