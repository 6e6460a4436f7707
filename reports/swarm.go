package reports

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/ops"
	"github.com/farkv/farkv/workloads/simulate"
)

// swarmSize is how large the simulations of SWARM's report are.
type swarmSize struct {
	seed                 uint64
	records, ops, warmUp int64
	manyKeys, manyWarmUp int64 // of caches that are too small
	crowdKeys            int64 // of parts with many clients, each of which knows them all
	bigKeys              int64 // of parts with large values
	resourceOps          int64
	inFlight, clients    []int
	values, words        []int
	window, lease        time.Duration // of a crash's timeline, and of FUSEE's master
	calm, troubled       int           // windows before the crash and behind it
}

func newSwarmSize(quick bool, seed uint64) *swarmSize {
	if quick {
		return &swarmSize{
			seed: seed, records: 2000, ops: 20_000, warmUp: 20_000, manyKeys: 20_000, manyWarmUp: 160_000, crowdKeys: 1000, bigKeys: 1000,
			inFlight: []int{1, 2, 3, 6}, clients: []int{1, 8, 32, 64}, values: []int{64, 8192}, words: []int{1, 64}, resourceOps: 20_000,
			window: 500 * time.Microsecond, lease: 2 * time.Millisecond, calm: 2, troubled: 6,
		}
	}
	return &swarmSize{
		seed: seed, records: 100_000, ops: 1_000_000, warmUp: 1_000_000, manyKeys: 1_000_000, manyWarmUp: 8_000_000,
		crowdKeys: 20_000, bigKeys: 10_000, inFlight: []int{1, 2, 3, 4, 5, 6, 7, 8}, clients: []int{1, 8, 16, 24, 32, 40, 48, 56, 64},
		values: []int{16, 64, 256, 1024, 4096, 8192}, words: []int{1, 4, 16, 64}, resourceOps: 800_000,
		window: 5 * time.Millisecond, lease: 20 * time.Millisecond, calm: 3, troubled: 9,
	}
}

// system is one of those that SWARM's paper compares.
type system struct {
	store, name string
	replicas    int // that outlive one failure
	trips       int // of a GET that finds its location cached
}

var allSystems = []system{{"raw", "RAW", 1, 1}, {"swarm", "SWARM-KV", 3, 1}, {"dm-abd", "DM-ABD", 3, 2}, {"fusee", "FUSEE", 2, 1}}

// systems are those that there are stores for, but for some.
func systems(except ...string) []system {
	return slices.DeleteFunc(slices.Clone(allSystems), func(x system) bool {
		_, err := stores.Lookup(x.store)
		return err != nil || slices.Contains(except, x.store)
	})
}

// quorums are the two that replicate to majorities.
func quorums() []system { return systems("raw", "fusee") }

// key names a trial.
func key(parts ...any) string { return strings.TrimSpace(fmt.Sprintln(parts...)) }

// trial names a simulation that differs from the paper's set-up of a mix (SWARM 7).
func (s *swarmSize) trial(x system, mix, name string, differ func(*ops.Simulation)) trial {
	o := ops.Simulation{
		Store: x.store, Profile: "swarm-testbed", Workload: simulate.Workload{Name: "ycsb-" + mix, Records: s.records},
		Nodes: 4, Clients: 4, IndexReplicas: x.replicas, DataReplicas: x.replicas,
		Ops: s.ops, WarmUp: s.warmUp, Known: true, Seed: s.seed,
	}
	sized(&o, 64)
	if differ != nil {
		differ(&o)
	}
	if o.CacheBytes == 0 {
		const entry = 64 // more than any store's
		o.CacheBytes = int(entry * o.Records)
	}
	return trial{name: name, Simulation: o}
}

// sized makes keys of 24 bytes and values of so many.
func sized(o *ops.Simulation, value int) {
	o.Properties = []string{"zeropadding=20", "fieldcount=1", fmt.Sprintf("fieldlength=%d", value)}
}

// us writes a latency in microseconds.
func us(v float64) Cell { return Cell{Text: fmt.Sprintf("%.2f", v), Value: v, number: true} }

// share is a part of all, in percent.
func share(v float64) Cell { return Cell{Text: fmt.Sprintf("%.1f %%", v), Value: v, number: true} }

// near claims that a number is the paper's, give or take a part of it; of shares, so many hundredths.
func (p *Part) near(about string, ours, within float64, why string) {
	f := p.figure(about)
	holds := math.Abs(ours-f.Value) <= within*math.Abs(f.Value)
	text := fmt.Sprintf("%.2f %s", ours, f.Unit)
	if f.Unit == "%" {
		holds, text = math.Abs(ours-f.Value) <= 100*within, fmt.Sprintf("%.1f %%", ours)
	}
	p.claim(about, holds, text, why)
}

const (
	whyWork  = "Clients compute nothing here beside posting and polling."
	whyStale = "Our clients have used each record less often since they read it first, and fewer of their addresses are stale."
	whyFew   = "YCSB scatters its popular keys, and of so few records more than half of the accesses are uniform."
)

// Swarm is SWARM's paper.
var Swarm = newPaper(&Paper{
	Name: "SWARM", Source: "Murat et al., SOSP 2024", Section: "section 7", Figures: swarmFigures,
}, plan[*swarmSize]{newSwarmSize, swarmSetUp, swarmExperiments})

func swarmSetUp(s *swarmSize) string {
	return fmt.Sprintf("Profile swarm-testbed, %d records, %d operations a run behind a warm-up of %d, seed %d. Unless a part\n"+
		"says otherwise: 4 memory nodes, 4 clients on 4 compute nodes with one operation in flight, keys of 24 B and values\n"+
		"of 64 B, zipfian, caches in which every client knows all records; 3 replicas (FUSEE: 2, RAW: 1). Latencies in\n"+
		"microseconds. What the paper says is read off its words and tables, not its plots.", s.records, s.ops, s.warmUp, s.seed)
}

var swarmExperiments = []experiment[*swarmSize]{
	{"trips", "round trips of GETs and UPDATEs (Table 2)", "YCSB B.", systemCases, tripTable},
	{"latency", "distributions of the latencies (Figure 5)", "YCSB B.", systemCases, cdfTable},
	{"caches", "with caches that are too small (Figure 6)", "YCSB B.", cacheMissCases, cacheMissTable},
	{"resources", "what 200 thousand operations a second of each client take (Table 3)", "YCSB B, values of 1 KiB.", resourceCases, resourceTable},
}
