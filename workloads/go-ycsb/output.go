package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/magiconair/properties"

	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/ops/table"
	"github.com/farkv/farkv/workloads"
	"github.com/farkv/farkv/workloads/runner"
)

// output prints what upstream prints, in its three styles.
type output struct {
	info       io.Writer // properties and status lines
	out        io.Writer // standard output
	lines      io.Writer // result lines
	style      string
	pool       string      // as hints name it
	failing    bool        // operations failed in the last interval, and why was said
	file       string      // for the result lines, instead of out
	results    string      // file of the results as JSON; "" for none
	percentile string      // what the names of percentile files begin with; "" for none
	hidden     atomic.Bool // the monitor has the terminal: neither status lines nor failures are printed
	errors     io.Writer
	mu         sync.Mutex // guards errors
}

func newOutput(stdout, stderr io.Writer, results string, p *properties.Properties) (*output, error) {
	o := &output{
		info: stdout, out: stdout, lines: stdout, errors: stderr, results: results,
		style: p.GetString("outputstyle", "plain"),
		pool:  strings.TrimPrefix(p.GetString("farkv.pool", fabrics.UsualPool()), "shm:"),
		file:  p.GetString("measurement.output_file", ""),
	}
	switch o.style {
	case "plain", "table":
	case "json":
		o.info = stderr // so that standard output is JSON
	default:
		return nil, workloads.Usagef("property outputstyle=%s: want plain, table or json", o.style)
	}
	if p.GetBool("histogram.percentiles.export", false) {
		o.percentile = p.GetString("histogram.percentiles.export.filepath", "./")
	}
	if toStdout(o.file) {
		o.file = ""
	}
	if toStdout(results) { // so that standard output is JSON
		o.info, o.lines = stderr, stderr
	}
	if err := savable("--results", o.results); err != nil {
		return nil, err
	}
	return o, savable("property measurement.output_file", o.file)
}

// visible returns the properties without what they keep secret.
func visible(p *properties.Properties) map[string]string {
	m := p.Map()
	for name := range m {
		if low := strings.ToLower(name); strings.Contains(low, "password") || strings.Contains(low, "secret") {
			m[name] = "***"
		}
	}
	return m
}

const rule = "**********************************************"

func (o *output) properties(p *properties.Properties) {
	m := visible(p)
	fmt.Fprintln(o.info, "***************** properties *****************")
	for _, name := range slices.Sorted(maps.Keys(m)) {
		fmt.Fprintf(o.info, "%q=%q\n", name, m[name])
	}
	fmt.Fprintln(o.info, rule)
}

// progress prints a status line: throughput, and for each kind of call its percentiles, and trips
// where they are counted. Operations count when they end; the percentiles of a worker that is in a
// slow one come with a later line.
func (o *output) progress(p runner.Progress) {
	if o.hidden.Load() {
		return
	}
	if p.Interval <= 0 {
		fmt.Fprintf(o.info, "[%.0fs] warming up\n", p.Elapsed.Seconds())
		return
	}
	all, failed := p.Ended.Ended()
	line := fmt.Sprintf("[%.0fs] %d operations, %.1f ops/s", p.Elapsed.Seconds(), p.Operations,
		float64(all)/p.Interval.Seconds())
	if failed > 0 {
		line += fmt.Sprintf(", %d FAILED", failed)
	}
	for op := range workloads.Ops {
		m := &p.Calls[op]
		if m.OK == nil || m.OK.Count() == 0 {
			continue
		}
		l := runner.Summarize(m.OK)
		line += fmt.Sprintf("; %s 50th %.3f 90th %.3f 99th %.3f 99.9th %.3f us", op, l.P50, l.P90, l.P99, l.P999)
		if m.Trips > 0 {
			line += fmt.Sprintf(", %.2f trips", float64(m.Trips)/float64(l.Count))
		}
	}
	fmt.Fprintln(o.info, line)
	o.reason(p, failed > 0)
}

// reason says why operations fail, when they begin to: it may be long until the end. A failure may
// be told of later than it is counted.
func (o *output) reason(p runner.Progress, failed bool) {
	if !failed {
		o.failing = false
	}
	for op := range workloads.Ops {
		if err := p.Calls[op].Err; err != nil && !o.failing {
			o.failing = true
			why := explain(fmt.Errorf("%s: %w", op, err), o.pool)
			fmt.Fprintln(o.info, "The first to fail:", strings.Join(strings.Fields(why), " "))
		}
	}
}

// failed prints a failure; workers call it at the same time.
func (o *output) failed(op workloads.Op, err error) {
	if o.hidden.Load() {
		return
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	fmt.Fprintf(o.errors, "operation err: %s: %v\n", op, err)
}

var header = []string{"Operation", "Takes(s)", "Count", "OPS", "Avg(us)", "Min(us)", "Max(us)",
	"50th(us)", "90th(us)", "95th(us)", "99th(us)", "99.9th(us)", "99.99th(us)"}

// rows are upstream's result lines: a row for each kind of call, another for those that failed, and
// TOTAL. Where trips are counted there is a column more.
func rows(r *runner.Result) (head []string, lines [][]string) {
	head = header
	if r.Counters != nil {
		head = append(append([]string{}, header...), "Trips")
	}
	for _, c := range r.Calls {
		if c.Latency.Count > 0 {
			lines = append(lines, row(r, c.Name, c.Latency, c.Trips))
		}
		if c.Failed != nil {
			lines = append(lines, row(r, c.Name+"_ERROR", *c.Failed, c.FailedTrips))
		}
	}
	return head, lines
}

func row(r *runner.Result, name string, l runner.Latency, trips float64) []string {
	line := []string{name, fmt.Sprintf("%.1f", r.Seconds), fmt.Sprint(l.Count),
		fmt.Sprintf("%.1f", float64(l.Count)/r.Seconds)}
	for _, us := range []float64{l.Mean, l.Min, l.Max, l.P50, l.P90, l.P95, l.P99, l.P999, l.P9999} {
		line = append(line, fmt.Sprintf("%.3f", us))
	}
	if r.Counters != nil {
		line = append(line, fmt.Sprintf("%.2f", trips))
	}
	return line
}

// verbs returns what an operation cost on the fabric; "" if verbs were not counted.
func verbs(r *runner.Result) string {
	c := r.Counters
	if c == nil || r.Operations == 0 {
		return ""
	}
	per := func(n uint64) float64 { return float64(n) / float64(r.Operations) }
	text := fmt.Sprintf("Of the fabric an operation took: %.2f trips, %.2f doorbells, %.2f verbs, %.2f calls of nodes",
		per(c.Trips), per(c.Doorbells), per(c.Reads+c.Writes+c.Atomics), per(c.Calls))
	if d := r.Device; d != nil {
		text += fmt.Sprintf("; of %s %.2f calls into libibverbs and %.2f sleeps", d.Name, per(d.Calls), per(d.Waits))
		if d.Sent > 0 {
			text += fmt.Sprintf("; its port %d, for all processes, sent %.2f packets and received %.2f", d.Port,
				per(d.Sent), per(d.Received))
		}
	}
	return text
}

// result prints the result lines.
func (o *output) result(r *runner.Result) error {
	fmt.Fprintln(o.info, rule)
	fmt.Fprintf(o.info, "Run finished, takes %.3fs: %d operations, %.1f ops/s, %d failed\n",
		r.Seconds, r.Operations, r.Throughput, r.Failed)
	if r.CPU != nil {
		fmt.Fprintf(o.info, "Processor time of an operation: %.1f us here, %.1f us in the memory nodes\n", r.CPU.Client,
			r.CPU.Nodes)
	}
	if text := verbs(r); text != "" {
		fmt.Fprintln(o.info, text)
	}
	var b bytes.Buffer
	head, lines := rows(r)
	switch o.style {
	case "plain":
		for _, line := range lines {
			cells := make([]string, len(line)-1)
			for i, cell := range line[1:] {
				cells[i] = head[i+1] + ": " + cell
			}
			fmt.Fprintf(&b, "%-6s - %s\n", line[0], strings.Join(cells, ", "))
		}
	case "table":
		table.Print(&b, append([][]string{head}, lines...))
	case "json":
		all := make([]map[string]string, len(lines))
		for i, line := range lines {
			all[i] = map[string]string{}
			for j, cell := range line {
				all[i][head[j]] = cell
			}
		}
		if err := json.NewEncoder(&b).Encode(all); err != nil {
			return err
		}
	}
	if err := o.exportPercentiles(r); err != nil {
		return err
	}
	if o.file != "" {
		return runner.Save(o.file, b.Bytes())
	}
	_, err := o.lines.Write(b.Bytes())
	return err
}

// save writes the results as JSON where that is wanted.
func (o *output) save(r *runner.Result) error {
	if !toStdout(o.results) {
		if o.results == "" {
			return nil
		}
		return r.WriteFile(o.results)
	}
	b, err := r.Encode()
	if err == nil {
		_, err = o.out.Write(b)
	}
	return err
}

// exportPercentiles writes a file for each kind of call in the columns of HdrHistogram's percentile
// output.
func (o *output) exportPercentiles(r *runner.Result) error {
	if o.percentile == "" {
		return nil
	}
	for _, c := range r.Calls {
		if len(c.Latency.Buckets) == 0 {
			continue
		}
		var b bytes.Buffer
		fmt.Fprintf(&b, "%12s %14s %12s %16s\n\n", "Value(us)", "Percentile", "TotalCount", "1/(1-Percentile)")
		seen := 0.0
		for _, bucket := range c.Latency.Buckets {
			seen += bucket[2]
			below := seen / float64(c.Latency.Count)
			fmt.Fprintf(&b, "%12.3f %14.12f %12.0f %16.2f\n", bucket[1], below, seen, 1/(1-below))
		}
		name := o.percentile + c.Name + "-percentiles.txt"
		if err := os.WriteFile(name, b.Bytes(), 0o644); err != nil {
			return err
		}
		fmt.Fprintf(o.info, "Exported the latencies of %s to %s\n", c.Name, name)
	}
	return nil
}
