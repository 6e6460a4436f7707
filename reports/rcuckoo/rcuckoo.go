// Package rcuckoo does RCuckoo's evaluation again (Grant and Snoeren, ATC 2025).
package rcuckoo

import (
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

// size is how large the simulations of RCuckoo's report are.
type size struct {
	seed    uint64
	rows    int   // of the table of Figure 4
	tables  []int // rows, of those that are filled
	fills   int   // how many of each
	keys    int   // that are hashed
	factors []float64

	table, ops, warmUp int64 // entries of the simulated table, and operations of a run
	clients            []int
	filled             []int64 // percent
	lockRows, lockBits []int   // of Figure 5
	lockRuns           int
	grains             []int // rows a lock, of Figure 8b
	smaller            int64 // entries, of tables with larger values
	values, entries    []int // bytes
	failRows           int   // of the table in which clients die
	failures           []float64
	failFor, failTimer time.Duration
	timers             []time.Duration
}

func newSize(quick bool, seed uint64) *size {
	if quick {
		return &size{
			seed: seed, rows: 10_000, tables: []int{1000, 4000}, fills: 2, keys: 100_000,
			factors: []float64{1.9, 2.3, 2.5},
			table:   10_000, ops: 8000, warmUp: 4000, clients: []int{8, 320}, filled: []int64{10, 90},
			lockRows: []int{1, 4, 16, 512}, lockBits: []int{1, 4, 63}, lockRuns: 1, grains: []int{4, 16},
			smaller: 10_000, values: []int{8, 1024}, entries: []int{8, 64},
			failRows: 100_000, failures: []float64{0, 500, 5000}, failFor: 10 * time.Millisecond,
			failTimer: 2 * time.Millisecond, timers: stranding[:2],
		}
	}
	return &size{
		seed: seed, rows: 100_000, tables: []int{1000, 10_000, 100_000}, fills: 10, keys: 10_000_000,
		factors: []float64{1.5, 1.9, 2.1, 2.3, 2.5, 2.7, 3},
		table:   500_000, ops: 300_000, warmUp: 60_000, clients: []int{8, 80, 160, 240, 320},
		filled:   []int64{10, 30, 50, 70, 90},
		lockRows: []int{1, 2, 4, 8, 16, 32, 64, 128, 256, 512}, lockBits: []int{1, 2, 4, 8, 16, 32, 63}, lockRuns: 2,
		grains:  []int{1, 4, 16, 64},
		smaller: 200_000, values: []int{8, 16, 32, 64, 128, 256, 512, 1024}, entries: []int{8, 16, 32, 64, 128},
		failRows: 12_500_000, failures: []float64{0, 500, 1000, 2000}, failFor: 100 * time.Millisecond,
		failTimer: paperTimer, timers: stranding,
	}
}

//go:embed published.json
var published []byte

// Paper is RCuckoo's paper.
var Paper = eval.NewPaper(&eval.Paper{
	Name: "RCuckoo", Source: "Grant and Snoeren, ATC 2025", Section: "sections 3 and 5", Small: small,
}, published, eval.Plan[*size]{Size: newSize, SetUp: setUp, Experiments: experiments})

// They tell for which statements of the quick size its small tables are too small.
const (
	fewLocks = "320 clients meet at the 78 locks of the quick size's table."
	fewRows  = "The quick size's table has few rows."
)

var small = map[string]string{
	"fill-most": fewRows, "spans-far": fewRows,
	"locality-p99": fewRows, "locks-sweet": "The quick size leaves out 2 and 8 rows a lock.",
	"load-c": fewLocks, "load-b": fewLocks, "load-a": fewLocks, "load-scales": fewLocks,
	"inserts-empty": fewLocks, "inserts-full": fewLocks, "inserts-drop": fewLocks, "inserts-mixes": fewLocks,
	"inserts-bytes": fewLocks,
	"inserts-verbs": fewLocks, "inserts-fusee": fewLocks, "entries-insert": fewLocks, "extents-a": fewLocks,
	"extents-b":      fewLocks,
	"failures-500":   "Of the quick size's short run a failure timer is a large part.",
	"failures-grain": "The quick size has more failures than the full one.",
}

// Of the paper's set-up (sections 4.1, 5.1, 5.3).
const (
	paperCrowd   = 320
	paperLocked  = 16 // rows a lock
	paperFull    = 90 // percent of the table's entries
	paperCache   = 64 << 10
	paperTimer   = 100 * time.Millisecond
	paperPairing = 4 // bytes of a key, and of a value

	fuseeCache = 1 << 20
	roomyNode  = 1 << 30 // so that each of FUSEE's clients finds blocks of its own
)

// Options of RCuckoo that the parts choose.
const (
	failureTimer = "failure-timer"
	tableRows    = "rows"
	rowsPerLock  = "rows-per-lock"
	valueBytes   = "value-bytes"
	inlineBytes  = "inline-bytes"
)

// trial names a simulation that differs from the paper's set-up of a mix (sections 5.2 and 5.3).
func (s *size) trial(store, mix, name string, differ func(*virtual.Simulation)) eval.Trial {
	o := virtual.Simulation{
		Config: simulate.Config{
			Store: store, Profile: "rcuckoo-testbed", Pool: stores.Params{Nodes: 1, IndexReplicas: 1, DataReplicas: 1},
			Clients: paperCrowd, Ops: s.ops, WarmUp: s.warmUp, Seed: s.seed,
		},
		Workload: simulate.Workload{Name: "rcuckoo-" + mix, Records: s.table * paperFull / 100,
			ShortKeys: workloads.NumberBytes},
	}
	if store == "rcuckoo" {
		o.Own = stores.Values{stores.CacheBytes: paperCache, failureTimer: paperTimer, "ticketless": true,
			tableRows:   int(s.table) / paperRow,
			"key-bytes": paperPairing, valueBytes: paperPairing, inlineBytes: paperPairing}
	}
	if strings.HasPrefix(store, "fusee") {
		o.Pool.Memory = roomyNode
	}
	if store == "fusee" {
		o.Set(stores.CacheBytes, fuseeCache)
	}
	if differ != nil {
		differ(&o)
	}
	return eval.Trial{Name: name, Simulation: o}
}

func setUp(s *size) string {
	return fmt.Sprintf("Seed %d. What the paper says is read off its words, not its plots.", s.seed)
}

var experiments = []eval.Experiment[*size]{
	{Name: "distances", Title: "how far apart a key's two rows lie (Figure 4a)",
		SetUp: "The paper's formula, no table: keys are hashed.",
		Cases: distanceCases, Evaluate: distanceTable},
	{Name: "fill", Title: "how full a table is when the first INSERT fails (Figure 4b)",
		SetUp: "A table in a client's own memory, paths of up to 5 moves.", Cases: fillCases, Evaluate: fillTable},
	{Name: "spans", Title: "how many rows a cuckoo path spans (Figure 4c)",
		SetUp: "A table in a client's own memory, filled to 95 %, 8 entries a row.",
		Cases: spanCases, Evaluate: spanTable},
	{Name: "locks", Title: "trips to get an INSERT's locks (Figure 5)",
		SetUp: fmt.Sprintf("8 clients fill a table of %d rows to 95 %%.", smallTable),
		Cases: lockCases, Evaluate: lockTable},
	{Name: "locality", Title: "trips to get an INSERT's locks, with dependent and independent hashing (Figure 8b)",
		SetUp: fmt.Sprintf("8 clients fill a table from %d to %d %%.", localityFrom, localityTo),
		Cases: localityCases, Evaluate: localityTable},
	{Name: "load", Title: "throughput for 8 to 320 clients, against FUSEE (Figure 6)", SetUp: "YCSB A, B and C.",
		Cases: loadCases, Evaluate: loadTable},
	{Name: "inserts", Title: "INSERTs into tables that are more or less full (Figure 7)",
		SetUp: "320 clients. W inserts only; A, B and C are reads with 50, 5 and no % of INSERTs.",
		Cases: fillingCases, Evaluate: fillingTable},
	{Name: "entries", Title: "entries of 8 to 128 B (Figure 8c)", SetUp: "320 clients.",
		Cases: entryCases, Evaluate: entryTable},
	{Name: "extents", Title: "values of up to 1 KB in extents (Figure 8d)", SetUp: "YCSB A, B and C.",
		Cases: extentCases, Evaluate: extentTable},
	{Name: "device", Title: "the lock table in the NIC's memory, or in the node's (sections 2.2 and 3.4.2)",
		SetUp: "320 clients unless it says otherwise. Latencies in microseconds.",
		Cases: deviceCases, Evaluate: deviceTable},
	{Name: "failures", Title: "clients that die while they insert (Figure 8a)", SetUp: "YCSB A, 320 clients.",
		Cases: failureCases, Evaluate: failureTable},
}
