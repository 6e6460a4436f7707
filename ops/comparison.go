package ops

import (
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/farkv/farkv/workloads/runner"
)

// Comparison is what a Bench measured. Its numbers come from one machine in one sitting: ratios mean something,
// absolute values only there.
type Comparison struct {
	Workload   string            `json:"workload"`
	Title      string            `json:"title"`
	Records    int64             `json:"records"`
	Operations int64             `json:"operations"`
	Threads    int               `json:"threads"`
	Nodes      int               `json:"nodes"`
	Replicas   int               `json:"replicas"`
	PairBytes  int               `json:"pair_bytes"`
	Seed       uint64            `json:"seed"`
	Shared     bool              `json:"shared"`
	Rows       []Row             `json:"rows"`
	Skipped    map[string]string `json:"skipped,omitempty"` // peers that are not there, and why
}

// Row is one store, or a peer.
type Row struct {
	Name         string  `json:"name"`
	Load         float64 `json:"load_ops_per_second"`
	Run          float64 `json:"run_ops_per_second"`
	P50          float64 `json:"p50_us"` // of all calls of the run
	P99          float64 `json:"p99_us"`
	Trips        float64 `json:"trips_per_call,omitempty"`
	BytesPerByte float64 `json:"pool_bytes_per_user_byte,omitempty"`
	Get          *Cost   `json:"get,omitempty"` // of one worker alone
	Update       *Cost   `json:"update,omitempty"`
	Cut          []Cut   `json:"cut,omitempty"` // what its time limit ended early; rates are of what was done
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
}

// Print implements Result.
func (c *Comparison) Print(w io.Writer) {
	where := "private memory"
	if c.Shared {
		where = "shared memory"
	}
	fmt.Fprintf(w, "%s\n", c.Title)
	fmt.Fprintf(w, "%s records of %s, %s operations, %s, %s of %s, %s, seed %d\n\n",
		count(c.Records), size(uint64(c.PairBytes)), count(c.Operations), plural(c.Threads, "thread", "threads"),
		plural(c.Nodes, "memory node", "memory nodes"), where, plural(c.Replicas, "replica", "replicas"), c.Seed)
	rows := [][]string{
		{"", "load", "run", "p50", "p99", "trips", "memory", "Get", "over", "Update", "over"},
		{"", "ops/s", "ops/s", "", "", "/call", "/byte", "alone", "floor", "alone", "floor"},
	}
	for _, r := range c.Rows {
		rows = append(rows, r.cells())
	}
	if get, update, ok := c.floor(); ok {
		rows = append(rows, []string{"floor", "", "", "", "", "", "", latency(get / 1e3), "1.0x", latency(update / 1e3), "1.0x"})
	}
	table(w, rows)
	fmt.Fprintf(w, "memory/byte counts %s\n", plural(c.Replicas, "replica", "replicas"))
	for _, r := range c.Rows {
		if r.Get != nil && r.Update != nil {
			fmt.Fprintf(w, "%s over floor: half of the rounds from %.1fx to %.1fx for Get, and from %.1fx to %.1fx for Update\n",
				r.Name, r.Get.Low, r.Get.High, r.Update.Low, r.Update.High)
		}
		for _, cut := range r.Cut {
			fmt.Fprintf(w, "* %s: cut off while %s after %g s: %s of %s done\n", r.Name, cut.What, cut.Seconds,
				count(cut.Done), count(cut.Of))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(c.Skipped)) {
		fmt.Fprintf(w, "%s: skipped: %s\n", name, c.Skipped[name])
	}
}

// floor returns the least that the bare batches took beside a store.
func (c *Comparison) floor() (get, update float64, ok bool) {
	var gets, updates []float64
	for _, r := range c.Rows {
		if r.Get != nil && r.Update != nil {
			gets, updates = append(gets, r.Get.Floor), append(updates, r.Update.Floor)
		}
	}
	if len(gets) == 0 {
		return 0, 0, false
	}
	return slices.Min(gets), slices.Min(updates), true
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
	run := []string{count(int64(r.Run)), latency(r.P50), latency(r.P99)}
	if r.Run == 0 {
		run = []string{"-", "-", "-"} // its load was cut off
	}
	cells := append([]string{name, count(int64(r.Load))}, run...)
	cells = append(cells,
		number(r.Trips, "%.2f"), number(r.BytesPerByte, "%.1f"))
	for _, c := range []*Cost{r.Get, r.Update} {
		if c == nil {
			cells = append(cells, "-", "-")
		} else {
			cells = append(cells, latency(c.Store/1e3), fmt.Sprintf("%.1fx", c.Ratio()))
		}
	}
	return cells
}
