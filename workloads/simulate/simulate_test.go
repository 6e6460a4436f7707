package simulate

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/workloads"
	"github.com/farkv/farkv/workloads/check/teeth"
	"github.com/farkv/farkv/workloads/runner"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// config is a small run of a workload.
func config(t testing.TB, name string, clients int, ops int64, props ...string) Config {
	t.Helper()
	w := Workload{Name: name, Records: 2000, Properties: props}
	p, err := w.Read()
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := p.Set("operationcount", "50000"); err != nil {
		t.Fatal(err)
	}
	spec, err := runner.ReadSpec(p)
	if err != nil {
		t.Fatal(err)
	}
	return Config{
		Store: "fusee", Profile: "fusee-testbed", Spec: spec, Clients: clients, Ops: ops, WarmUp: ops, Seed: 1,
		Pool: stores.Params{Nodes: 2, Records: uint64(spec.RecordCount + spec.ExpectedInserts())},
	}
}

func simulated(t testing.TB, c Config) *Result {
	t.Helper()
	r, err := Run(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func text(t *testing.T, r *Result) string {
	t.Helper()
	b, err := json.Marshal(r)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestSameSeedSameResult(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	for _, name := range []string{"ycsb-a", "ycsb-b", "ycsb-c", "ycsb-d", "ycsb-f"} {
		c := config(t, name, 16, 8000)
		c.Interval, c.Changes = time.Millisecond, []Change{{time.Millisecond / 2, 8}, {time.Millisecond, -8}}
		one, other := text(t, simulated(t, c)), text(t, simulated(t, c))
		if one != other {
			t.Errorf("%s: the same seed gives\n%s\nand\n%s", name, one, other)
		}
		c.Seed++
		if text(t, simulated(t, c)) == strings.Replace(one, `"seed":1`, `"seed":2`, 1) {
			t.Errorf("%s: another seed gives the same", name)
		}
	}
}

// TestResultAddsUp compares figures that have to agree with each other.
func TestResultAddsUp(t *testing.T) {
	c := config(t, "ycsb-a", 32, 20_000)
	r := simulated(t, c)
	if r.Operations != 20_000 || r.Failed != 0 || r.Error != "" {
		t.Fatalf("%d operations, %d failed: %s", r.Operations, r.Failed, r.Error)
	}
	near := func(what string, got, want, within float64) {
		t.Helper()
		if math.Abs(got-want) > within*math.Abs(want) {
			t.Errorf("%s: %v, want about %v", what, got, want)
		}
	}
	near("throughput", r.Throughput, 20_000/r.Seconds, 1e-9)
	read, update, total := r.Call("READ"), r.Call("UPDATE"), r.Call("TOTAL")
	if read == nil || update == nil || total == nil || r.Call("INSERT") != nil {
		t.Fatalf("calls: %+v", r.Calls)
	}
	near("share of reads", float64(read.Latency.Count), 10_000, 0.03)
	near("total", float64(total.Latency.Count), float64(read.Latency.Count+update.Latency.Count), 0)
	// Closed loops: clients are always in a call.
	near("clients", r.Throughput*total.Latency.Mean/1e6, 32, 0.02)
	for _, call := range r.Calls {
		last := call.CDF[len(call.CDF)-1]
		if last != [2]float64{call.Latency.Max, 1} {
			t.Errorf("%s: the distribution ends at %v, the longest took %v", call.Name, last, call.Latency.Max)
		}
		if !slices.IsSortedFunc(call.CDF, func(a, b [2]float64) int {
			if a[0] < b[0] && a[1] <= b[1] {
				return -1
			}
			return 1
		}) {
			t.Errorf("%s: the distribution falls", call.Name)
		}
		near(call.Name+": median", call.At(0.5), call.Latency.P50, 0.02)
	}
	// FUSEE 4.3 and 4.6: a pair of 1,024 bytes and its log go to two nodes.
	if got := update.Cost.BytesWrote; got < 2*1024 || got > 2*1200 {
		t.Errorf("an update writes %v bytes", got)
	}
	if len(r.Machines) != 2+4 {
		t.Fatalf("%d machines", len(r.Machines))
	}
	verbs, served, sent := 20_000*(total.Cost.Verbs()+total.Cost.Calls)/r.Seconds, 0.0, 0.0
	for _, m := range r.Machines {
		for _, p := range m.Parts() {
			if p.Busy < 0 || p.Busy > 1.001 {
				t.Errorf("%+v: %s is busy for %v of the time", m, p.Name, p.Busy)
			}
		}
		if m.Compute {
			sent += m.Messages
		} else {
			served += m.Messages
		}
	}
	near("verbs sent", sent, verbs, 0.01)
	near("verbs served", served, verbs, 0.01)
}

// TestTripsInVirtualTime finds the paper's trips (FUSEE 4.3, 4.6), and latencies in their
// proportion.
func TestTripsInVirtualTime(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	c := config(t, "ycsb-c", 1, 1)
	r, err := Micro(context.Background(), c, 500)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]float64{"UPDATE": 4, "SEARCH": 1, "DELETE": 4} {
		if call := r.Call(name); call == nil || math.Abs(call.Trips-want) > 0.15 {
			t.Errorf("%s: %+v, want %v trips", name, call, want)
		}
	}
	for _, call := range r.Calls { // INSERT's trips are package fusee's to assert
		if us := call.Latency.P50 / call.Trips; us < 1.5 || us > 4 || call.Latency.Count != 500 {
			t.Errorf("%s: %d calls of %v µs a trip", call.Name, call.Latency.Count, us)
		}
	}
}

func TestPaceIsKept(t *testing.T) {
	c := config(t, "ycsb-b", 8, 2000)
	c.Target = 200_000
	r := simulated(t, c)
	if r.Operations != 2000 || math.Abs(r.Throughput/c.Target-1) > 0.02 {
		t.Errorf("%d operations, %v a second instead of %v", r.Operations, r.Throughput, c.Target)
	}
}

// TestThinking finds the time that clients think between their operations.
func TestThinking(t *testing.T) {
	c := config(t, "ycsb-c", 4, 4000)
	for _, c.Think = range []time.Duration{0, 10 * time.Microsecond} {
		r := simulated(t, c)
		cycle := r.Call("TOTAL").Latency.Mean + runner.Microseconds(c.Think)
		if got := 4e6 / r.Throughput; math.Abs(got/cycle-1) > 0.02 {
			t.Errorf("thinking for %v, a client begins every %v µs, want every %v", c.Think, got, cycle)
		}
	}
}

func TestClientsComeAndGo(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	c := config(t, "ycsb-c", 8, 0)
	c.Duration, c.WarmUp, c.Interval = 9*time.Millisecond, 40_000, time.Millisecond
	c.Changes = []Change{{3 * time.Millisecond, 8}, {6 * time.Millisecond, -8}}
	r := simulated(t, c)
	if len(r.Points) != 9 || r.Failed > 0 {
		t.Fatalf("%d intervals, %d failed", len(r.Points), r.Failed)
	}
	before, during, after := r.Points[1].Throughput, r.Points[4].Throughput, r.Points[7].Throughput
	if during < 1.3*before || math.Abs(after/before-1) > 0.05 {
		t.Errorf("throughput %v, then %v with twice the clients, then %v", before, during, after)
	}
}

// TestFaultsHappenWhenTheyShould slows a node down for a while, and crashes a client.
func TestFaultsHappenWhenTheyShould(t *testing.T) {
	c := config(t, "ycsb-c", 4, 0)
	c.Duration, c.WarmUp, c.Interval = 6*time.Millisecond, 20_000, time.Millisecond
	c.Faults = `slow node=0 factor=20 at=2ms for=2ms; crash client="client 3" at=5ms`
	r := simulated(t, c)
	if len(r.Points) != 6 {
		t.Fatalf("%d intervals", len(r.Points))
	}
	fast, slow, fast2 := r.Points[1].Throughput, r.Points[2].Throughput, r.Points[4].Throughput
	if slow > fast/2 || math.Abs(fast2/fast-1) > 0.1 {
		t.Errorf("throughput %v, %v while a node is slow, and then %v", fast, slow, fast2)
	}
	if last := r.Points[5].Throughput; math.Abs(last/fast2-3.0/4) > 0.05 {
		t.Errorf("%v a second without one of 4 clients, %v with it", last, fast2)
	}
}

// TestPoolIsMended crashes a memory node and a client under writes: the others go on without a
// failure, a spare takes the node's place, and the master tells what it did.
func TestPoolIsMended(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	c := config(t, "ycsb-a", 16, 0)
	c.Pool.Nodes, c.Pool.Spares, c.Pool.IndexReplicas, c.Pool.DataReplicas = 3, 1, 2, 2
	c.Duration, c.WarmUp, c.Interval, c.Lease = 30*time.Millisecond, 8000, 5*time.Millisecond, time.Millisecond
	c.Faults = `crash node=1 at=6ms; crash client="client 5" at=16ms`
	r := simulated(t, c)
	if r.Failed > 0 {
		t.Errorf("%d operations failed: %s", r.Failed, r.Error)
	}
	told := ""
	for _, e := range r.Events {
		told += fmt.Sprintf("%.4f %s\n", e.Seconds, e.What)
	}
	for _, want := range []string{"node 1 is gone", "node 2 stands for node 1", `"client 5" recovered`} {
		if !strings.Contains(told, want) {
			t.Errorf("the master does not tell that %s:\n%s", want, told)
		}
	}
	before, after := r.Points[0].Throughput, r.Points[5].Throughput
	if after < 0.8*before {
		t.Errorf("%v operations a second before anything goes wrong, %v in the end", before, after)
	}
	if again := text(t, simulated(t, c)); again != text(t, r) {
		t.Error("the same seed gives another result")
	}
}

func TestMisuse(t *testing.T) {
	for want, change := range map[string]func(*Config){
		`unknown store "nosuch"`:                 func(c *Config) { c.Store = "nosuch" },
		`no hardware profile "nosuch"`:           func(c *Config) { c.Profile = "nosuch" },
		"nodes 0 to 1":                           func(c *Config) { c.Faults = "crash node=2 at=1s" },
		"is none of crash":                       func(c *Config) { c.Faults = "melt" },
		"3 clients cannot leave":                 func(c *Config) { c.Changes = []Change{{0, -3}} },
		"in the order of their times":            func(c *Config) { c.Changes = []Change{{2, 1}, {1, 1}} },
		"neither a number of operations nor a d": func(c *Config) { c.Ops = 0 },
		"more than 16384":                        func(c *Config) { c.Clients = 1 << 20 },
		"index replicas need":                    func(c *Config) { c.Pool.IndexReplicas = 3 },
	} {
		c := config(t, "ycsb-c", 2, 10)
		change(&c)
		_, err := Run(context.Background(), c)
		if use := (*workloads.UsageError)(nil); !errors.As(err, &use) || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

// TestFailuresTakeTime is about operations that fail at once: clients would do nothing else for
// ever.
func TestFailuresTakeTime(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	c := config(t, "ycsb-a", 2, 0)
	c.Duration, c.WarmUp = time.Millisecond, 0
	c.Faults = "crash node=0 at=200µs; crash node=1 at=200µs"
	r := simulated(t, c)
	if r.Failed == 0 || r.Error == "" || r.Operations > 4000 {
		t.Errorf("%d of %d operations failed: %q", r.Failed, r.Operations, r.Error)
	}
}

// TestInterrupt ends simulations that would take for ever, wherever they are.
func TestInterrupt(t *testing.T) {
	for _, after := range []time.Duration{0, 10 * time.Millisecond, 100 * time.Millisecond} {
		c := config(t, "ycsb-a", 8, 1<<40)
		c.WarmUp = 20_000
		ctx, cancel := context.WithTimeout(context.Background(), after)
		if r, err := Run(ctx, c); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("after %v: %v, %v", after, r, err)
		}
		cancel()
	}
}

func BenchmarkRun(b *testing.B) {
	c := config(b, "ycsb-c", 128, int64(b.N))
	c.WarmUp = 100_000
	b.ResetTimer()
	simulated(b, c)
}
