package reports

import (
	"fmt"
	"time"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/ops"
	"github.com/farkv/farkv/workloads"
	"github.com/farkv/farkv/workloads/simulate"
)

// rtxSize is how large the simulations of rTX's report are.
type rtxSize struct {
	seed    uint64
	records int64         // instead of the paper's 100 million
	warmUp  int64         // operations
	during  time.Duration // of a run, in virtual time
	clients []int         // of Figure 13
}

func newRTXSize(quick bool, seed uint64) *rtxSize {
	if quick {
		return &rtxSize{seed: seed, records: 20_000, warmUp: 24_000, during: time.Millisecond, clients: []int{1, 24, 120}}
	}
	return &rtxSize{
		seed: seed, records: 200_000, warmUp: 240_000, during: 10 * time.Millisecond, clients: []int{1, 5, 10, 20, 40, 80, 120},
	}
}

// The paper's compute nodes, and the threads of each (section 6).
const (
	rtxNodes   = 5
	rtxThreads = 24
)

// rtxTrees and rtxTables are what the paper compares, by its names for them (section 6).
var (
	rtxTrees  = known(system{store: "sherman", name: "Optimal"}, system{store: "sherman-dtx", name: "DTX"}, system{store: "sherman-rtx", name: "rTX"})
	rtxTables = known(system{store: "race", name: "Optimal"}, system{store: "race-dtx", name: "DTX"}, system{store: "race-rtx", name: "rTX"})
)

// known are the systems that there are stores for.
func known(all ...system) (list []system) {
	for _, x := range all {
		if _, err := stores.Lookup(x.store); err == nil {
			list = append(list, x)
		}
	}
	return list
}

// trial names a simulation that differs from the paper's set-up of a mix (section 6): workload rtx-a, say, zipfian.
func (s *rtxSize) trial(store, mix, name string, differ func(*ops.Simulation)) trial {
	o := ops.Simulation{
		Config: simulate.Config{
			Store: store, Profile: "rtx-testbed", Pool: stores.Params{Nodes: 1, IndexReplicas: 1, DataReplicas: 1},
			Clients: rtxNodes * rtxThreads, Duration: s.during, WarmUp: s.warmUp, Processes: true, Seed: s.seed,
		},
		Workload: simulate.Workload{Name: "rtx-" + mix, Records: s.records, ShortKeys: workloads.HashBytes},
	}
	if differ != nil {
		differ(&o)
	}
	return trial{name: name, Simulation: o}
}

// uniform makes all records equally popular.
func uniform(o *ops.Simulation) { o.Properties = append(o.Properties, "requestdistribution=uniform") }

// RTX is rTX's paper.
var RTX = newPaper(&Paper{
	Name: "rTX", Source: "Wei et al., \"Transactional Indexes on Disaggregated Memory with Repairable Transaction\"", Section: "section 6",
	Small: rtxSmall,
}, plan[*rtxSize]{newRTXSize, rtxSetUp, rtxExperiments})

// rtxSmall tells for which statements of the quick size its few records and short runs are too small.
var rtxSmall = map[string]string{"trees-a": unproven}

func rtxSetUp(s *rtxSize) string {
	return fmt.Sprintf("Profile rtx-testbed, seed %d. Unless a part says otherwise: 1 memory node, %d clients on %d compute nodes, %d\n"+
		"records (the paper: 100 million) with keys and values of 8 B, %v behind a warm-up of %d operations. Zipfian requests are\n"+
		"YCSB's: those of 10 billion items, folded. What the paper says is read off its words and tables, not its plots.",
		s.seed, rtxNodes*rtxThreads, rtxNodes, s.records, s.during, s.warmUp)
}

// The parts, in the paper's order.
var rtxExperiments = []experiment[*rtxSize]{
	{"verbs", "verbs of an INSERT into Sherman (Table 2)", "One client, which has cached all internal nodes.", verbCases, verbTable},
	{"trees", "throughput of Sherman's implementations (Figure 11)", "YCSB A to E.", treeCases, treeTable},
}
