package measure

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/ops/format"
	"github.com/farkv/farkv/ops/table"
	"github.com/farkv/farkv/workloads/runner"
)

// Performance is what a Perf measured.
type Performance struct {
	Seconds float64           `json:"seconds"` // Seconds and Ops bound each number, at the most
	Ops     int               `json:"operations"`
	Memory  uint64            `json:"memory"` // bytes that verbs went over
	Batches []int             `json:"batches"`
	Fabrics []FabricPerf      `json:"fabrics"`
	Skipped map[string]string `json:"skipped,omitempty"` // fabrics that are not there, and why
}

// FabricPerf is one fabric's part.
type FabricPerf struct {
	Fabric  string     `json:"fabric"`
	Pool    string     `json:"pool"`
	Nodes   int        `json:"nodes"`
	Virtual bool       `json:"virtual,omitempty"`  // its times are a model's
	Clock   float64    `json:"clock_ns,omitempty"` // what one look at the clock takes, which each latency has in it
	Verbs   []VerbPerf `json:"verbs"`
}

// VerbPerf is one verb's, of one size.
type VerbPerf struct {
	Verb    string         `json:"verb"`
	Bytes   int            `json:"bytes,omitempty"`
	Missing string         `json:"missing,omitempty"`   // why the fabric does not have it
	Latency runner.Latency `json:"latency_us,omitzero"` // of one at a time
	Cost    VerbCost       `json:"cost,omitzero"`       // likewise
	Rates   []Rate         `json:"rates,omitempty"`
}

// VerbCost is what a verb takes beside time: an emulated one may need several.
type VerbCost struct {
	Verbs     float64 `json:"verbs"`
	Doorbells float64 `json:"doorbells"`
	Trips     float64 `json:"trips"`
	Library   float64 `json:"libibverbs_calls,omitempty"`
	// Packets of this machine's device: a memory node at the same device sends and receives some of
	// them.
	PacketsOut float64 `json:"packets_sent,omitempty"`
	PacketsIn  float64 `json:"packets_received,omitempty"`
}

// cells are the doorbells and trips, and what a device did where there is one.
func (c *VerbCost) cells(device bool) []string {
	cells := []string{fmt.Sprintf("%.2f", c.Doorbells), fmt.Sprintf("%.2f", c.Trips)}
	if device {
		cells = append(cells, fmt.Sprintf("%.2f", c.Library), fmt.Sprintf("%.1f/%.1f", c.PacketsOut, c.PacketsIn))
	}
	return cells
}

// device reports whether verbs went by an RDMA device.
func (f *FabricPerf) device() bool {
	return slices.ContainsFunc(f.Verbs, func(v VerbPerf) bool { return v.Cost.Library > 0 })
}

// Rate is how many verbs there are in a second, so many in flight.
type Rate struct {
	Batch      int      `json:"in_flight"`
	Operations int      `json:"operations"`
	Seconds    float64  `json:"seconds"`
	PerSecond  float64  `json:"operations_per_second"`
	MB         float64  `json:"mb_per_second,omitempty"` // 10^6 bytes of payload
	Cost       VerbCost `json:"cost"`                    // of one verb
}

func newRate(batch, bytes, done int, took time.Duration, used rdma.Counters) Rate {
	n := float64(done)
	r := Rate{
		Batch: batch, Operations: done, Seconds: took.Seconds(),
		Cost: VerbCost{Verbs: float64(used.Verbs()+used.Calls) / n, Doorbells: float64(used.Doorbells) / n,
			Trips: float64(used.Trips) / n},
	}
	if took > 0 {
		r.PerSecond = n / took.Seconds()
		r.MB = r.PerSecond * float64(bytes) / 1e6
	}
	return r
}

func (p *Performance) add(f *FabricPerf) *Performance {
	if f != nil && len(f.Verbs) > 0 {
		p.Fabrics = append(p.Fabrics, *f)
	}
	return p
}

// nothing tells why nothing was measured.
func (p *Performance) nothing() error {
	err := errors.New("nothing was measured")
	for _, name := range slices.Sorted(maps.Keys(p.Skipped)) {
		err = fmt.Errorf("%w: %s: %s", err, name, p.Skipped[name])
	}
	return err
}

// Print implements Result.
func (p *Performance) Print(w io.Writer) {
	if len(p.Fabrics) == 1 {
		p.printFabric(w, &p.Fabrics[0])
	} else if len(p.Fabrics) > 1 {
		p.printAll(w)
	}
	for _, name := range slices.Sorted(maps.Keys(p.Skipped)) {
		fmt.Fprintf(w, "%s: skipped: %s\n", name, p.Skipped[name])
	}
}

// printFabric prints all that was measured of one fabric.
func (p *Performance) printFabric(w io.Writer, f *FabricPerf) {
	fmt.Fprintf(w, "%s, %s, one worker, verbs over %s", f.Pool, format.Plural(f.Nodes, "memory node", "memory nodes"),
		format.Size(p.Memory))
	if f.Virtual {
		fmt.Fprint(w, ", in virtual time")
	}
	fmt.Fprint(w, "\n\n")
	head := []string{"one at a time", "", "min", "p50", "p99", "p99.9", "max", "mean", "verbs", "doorbells", "trips"}
	if f.device() {
		head = append(head, "libibverbs", "packets")
	}
	rows := [][]string{head}
	for _, v := range f.Verbs {
		l, c := &v.Latency, &v.Cost
		row := []string{v.Verb, bytesOf(v.Bytes)}
		if v.Missing != "" {
			rows = append(rows, append(row, absent))
			continue
		}
		for _, us := range []float64{l.Min, l.P50, l.P99, l.P999, l.Max, l.Mean} {
			row = append(row, format.Latency(us))
		}
		rows = append(rows, slices.Concat(row, []string{fmt.Sprintf("%.2f", c.Verbs)}, c.cells(f.device())))
	}
	table.Print(w, rows)
	if f.Clock > 0 {
		fmt.Fprintf(w, "each latency has a look at the clock in it, which takes %s\n", format.Latency(f.Clock/1e3))
	}
	fmt.Fprintln(w)
	p.printRates(w, f)
}

// absent stands where a fabric does not have a verb.
const absent = "-"

// printRates prints verbs and megabytes a second, a column for each number in flight, and what a
// verb takes of doorbells and trips with the most.
func (p *Performance) printRates(w io.Writer, f *FabricPerf) {
	if len(p.Batches) == 0 {
		return
	}
	head, units := []string{"in flight", ""}, []string{"", ""}
	for _, n := range p.Batches {
		head, units = append(head, fmt.Sprint(n), ""), append(units, "/s", "MB/s")
	}
	head, units = append(head, "doorbells", "trips"), append(units, "each", "each")
	if f.device() {
		head, units = append(head, "libibverbs", "packets"), append(units, "calls", "out/in")
	}
	rows := [][]string{head, units}
	for _, v := range f.Verbs {
		row := []string{v.Verb, bytesOf(v.Bytes)}
		for _, n := range p.Batches {
			row = append(row, v.rate(n), v.megabytes(n))
		}
		if n := len(v.Rates); n > 0 {
			row = append(row, v.Rates[n-1].Cost.cells(f.device())...)
		}
		rows = append(rows, row)
	}
	table.Print(w, rows)
}

// printAll prints several fabrics side by side: the median of one verb at a time, and the rate of
// the most in flight.
func (p *Performance) printAll(w io.Writer) {
	fmt.Fprintf(w, "one worker, verbs over %s of a memory node\n\n", format.Size(p.Memory))
	head := func(first string) []string {
		row := []string{first, ""}
		for _, f := range p.Fabrics {
			row = append(row, f.Fabric)
		}
		return row
	}
	p.printSide(w, head("one at a time"), func(v *VerbPerf) string { return format.Latency(v.Latency.P50) })
	if len(p.Batches) > 0 {
		most := slices.Max(p.Batches)
		fmt.Fprintln(w)
		p.printSide(w, head(fmt.Sprintf("%d in flight, /s", most)), func(v *VerbPerf) string { return v.rate(most) })
		fmt.Fprintln(w)
		p.printSide(w, head(fmt.Sprintf("%d in flight, MB/s", most)),
			func(v *VerbPerf) string { return v.megabytes(most) })
	}
	fmt.Fprintln(w)
	for _, f := range p.Fabrics {
		where := ""
		switch {
		case f.Virtual:
			where = ", in virtual time"
		case f.Clock > 0:
			where = ", a look at the clock, which latencies have in them, takes " + format.Latency(f.Clock/1e3)
		}
		fmt.Fprintf(w, "%s: %s%s\n", f.Fabric, f.Pool, where)
	}
}

// printSide prints a cell of each verb that any fabric has one for.
func (p *Performance) printSide(w io.Writer, head []string, cell func(*VerbPerf) string) {
	rows := [][]string{head}
	for i := range p.Fabrics[0].Verbs {
		v := &p.Fabrics[0].Verbs[i]
		row, some := []string{v.Verb, bytesOf(v.Bytes)}, false
		for k := range p.Fabrics {
			text := ""
			if all := p.Fabrics[k].Verbs; i < len(all) { // the last one may have been cut off
				text = absent
				if all[i].Missing == "" {
					text = cell(&all[i])
				}
			}
			some = some || text != ""
			row = append(row, text)
		}
		if some {
			rows = append(rows, row)
		}
	}
	table.Print(w, rows)
}

func bytesOf(n int) string {
	if n == 0 {
		return ""
	}
	return format.Size(uint64(n))
}

// at returns what was measured with so many in flight.
func (v *VerbPerf) at(batch int) *Rate {
	for i := range v.Rates {
		if v.Rates[i].Batch == batch {
			return &v.Rates[i]
		}
	}
	return nil
}

func (v *VerbPerf) rate(batch int) string {
	if r := v.at(batch); r != nil {
		return format.PerSecond(r.PerSecond)
	}
	return ""
}

func (v *VerbPerf) megabytes(batch int) string {
	r := v.at(batch)
	if r == nil || v.Bytes == 0 {
		return ""
	}
	return format.Significant(r.MB)
}
