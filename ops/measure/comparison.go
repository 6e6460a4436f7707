package measure

import (
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/farkv/farkv/ops/format"
	"github.com/farkv/farkv/ops/table"
	"github.com/farkv/farkv/workloads"
	"github.com/farkv/farkv/workloads/runner"
)

// Comparison is what a Bench measured. Its numbers come from one machine in one sitting: ratios
// mean something, absolute values only there.
type Comparison struct {
	Workload   string `json:"workload"`
	Title      string `json:"title"`
	Records    int64  `json:"records"`
	Operations int64  `json:"operations"`
	Threads    int    `json:"threads"`
	Nodes      int    `json:"nodes"`
	Replicas   int    `json:"replicas,omitempty"` // that all stores were to have; 0: each has its own default
	PairBytes  int    `json:"pair_bytes"`         // of the largest
	// ObjectSizes are those of workloads.Spec.
	ObjectSizes string            `json:"object_sizes,omitempty"`
	Seed        uint64            `json:"seed"`
	Shared      bool              `json:"shared"`
	Commit      string            `json:"commit"` // that this program was built from
	Rows        []Row             `json:"rows"`
	Skipped     map[string]string `json:"skipped,omitempty"` // peers that are not there, and why
}

// Row is one store, or a peer.
type Row struct {
	Name         string  `json:"name"`
	Replicas     int     `json:"replicas,omitempty"` // of index and data; 0: it is a peer
	Load         float64 `json:"load_ops_per_second"`
	Run          float64 `json:"run_ops_per_second"`
	P50          float64 `json:"p50_us"` // of all calls of the run
	P99          float64 `json:"p99_us"`
	Trips        float64 `json:"trips_per_call,omitempty"`
	BytesPerByte float64 `json:"pool_bytes_per_user_byte,omitempty"`
	Get          *Cost   `json:"get,omitempty"` // of one worker alone
	Update       *Cost   `json:"update,omitempty"`
	Cut          []Cut   `json:"cut,omitempty"` // what its time limit ended early; rates are of what was done

	inserted int64 // records, by the run
}

// Cut is a load or a run that did not do all of its operations.
type Cut struct {
	What    string  `json:"what"` // loading or running
	Done    uint64  `json:"done"`
	Of      int64   `json:"of"`
	Seconds float64 `json:"limit_seconds"`
}

func (r *Row) fill(res *runner.Result) {
	r.Run = res.Throughput
	if total := res.Call("TOTAL"); total != nil {
		r.P50, r.P99, r.Trips = total.Latency.P50, total.Latency.P99, total.Trips
	}
	if inserts := res.Call(workloads.OpInsert.String()); inserts != nil {
		r.inserted = int64(inserts.Latency.Count)
	}
}

// Print implements Result.
func (c *Comparison) Print(w io.Writer) {
	where, replicas := "private memory", "each store with its own replicas"
	if c.Shared {
		where = "shared memory"
	}
	if c.Replicas > 0 {
		replicas = format.Plural(c.Replicas, "replica", "replicas")
	}
	fmt.Fprintf(w, "%s\n", c.Title)
	fmt.Fprintf(w, "%s records of %s, %s operations, %s,\n%s of %s, %s, seed %d\n\n",
		format.Count(c.Records), format.UpTo(c.ObjectSizes, format.Size(uint64(c.PairBytes))),
		format.Count(c.Operations), format.Plural(c.Threads, "thread", "threads"),
		format.Plural(c.Nodes, "memory node", "memory nodes"), where, replicas, c.Seed)
	rows := [][]string{
		{"", "repli-", "load", "run", "p50", "p99", "trips", "memory"},
		{"", "cas", "ops/s", "ops/s", "", "", "/call", "/byte"},
	}
	for _, r := range c.Rows {
		rows = append(rows, r.cells())
	}
	table.Print(w, rows)
	c.printCosts(w)
	for _, r := range c.Rows {
		for _, cut := range r.Cut {
			fmt.Fprintf(w, "* %s: cut off while %s after %g s: %s of %s done\n", r.Name, cut.What, cut.Seconds,
				format.Count(cut.Done), format.Count(cut.Of))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Skipped)) {
		fmt.Fprintf(w, "%s: skipped: %s\n", name, c.Skipped[name])
	}
}

// printCosts prints what one worker alone takes, where that was measured.
func (c *Comparison) printCosts(w io.Writer) {
	rows := [][]string{
		{"one worker", "Get", "floor", "over", "half of", "Update", "floor", "over", "half of"},
		{"alone", "", "", "floor", "rounds", "", "", "floor", "rounds"},
	}
	for _, r := range c.Rows {
		if r.Get != nil && r.Update != nil {
			rows = append(rows, slices.Concat([]string{r.Name}, r.Get.cells(), r.Update.cells()))
		}
	}
	if len(rows) > 2 {
		fmt.Fprintln(w)
		table.Print(w, rows)
	}
}

func (c *Cost) cells() []string {
	return []string{format.Latency(c.Store / 1e3), format.Latency(c.Floor / 1e3), fmt.Sprintf("%.1fx", c.Ratio()),
		fmt.Sprintf("%.1f-%.1f", c.Low, c.High)}
}

func (r *Row) cells() []string {
	number := func(v float64, format string) string {
		if v == 0 {
			return "-"
		}
		return fmt.Sprintf(format, v)
	}
	name := r.Name
	if len(r.Cut) > 0 {
		name += "*"
	}
	run := []string{format.Count(int64(r.Run)), format.Latency(r.P50), format.Latency(r.P99)}
	if r.Run == 0 {
		run = []string{"-", "-", "-"} // its load was cut off
	}
	cells := append([]string{name, number(float64(r.Replicas), "%.0f"), format.Count(int64(r.Load))}, run...)
	return append(cells, number(r.Trips, "%.2f"), number(r.BytesPerByte, "%.2f"))
}
