package reports

import (
	"fmt"
	"slices"
	"strings"

	"github.com/farkv/farkv/reports/plot"
	"github.com/farkv/farkv/workloads/runner"
)

const total = "TOTAL"

// drawResults compares runs of go-ycsb: of one its kinds of calls, of several the databases.
func drawResults(all []*input) *plot.Page {
	page := &plot.Page{Title: "go-ycsb: " + names(all), Tables: []plot.Table{summary(all)}}
	var calls []string
	for _, in := range all {
		for _, c := range in.result.Calls {
			if !slices.Contains(calls, c.Name) {
				calls = append(calls, c.Name)
			}
		}
	}
	page.Charts = append(page.Charts, throughputBars(all, calls), overTime(all))
	if len(all) == 1 {
		var lists []plot.Series
		for _, c := range all[0].result.Calls {
			lists = append(lists, cdf(c.Name, &c.Latency))
		}
		page.Charts = append(page.Charts, percentileChart("Latency", all, calls),
			cdfChart("Latency of "+all[0].name, lists))
	} else {
		for _, name := range calls {
			var lists []plot.Series
			for _, in := range all {
				if c := in.result.Call(name); c != nil {
					lists = append(lists, cdf(in.name, &c.Latency))
				}
			}
			page.Charts = append(page.Charts, percentileChart("Latency of "+name, all, []string{name}),
				cdfChart("Latency of "+name, lists))
		}
	}
	page.Charts = drawable(page.Charts)
	return page
}

// drawable leaves out charts without a point.
func drawable(all []plot.Chart) []plot.Chart {
	return slices.DeleteFunc(all, func(c plot.Chart) bool {
		return !slices.ContainsFunc(c.Series, func(s plot.Series) bool { return len(s.Points) > 0 })
	})
}

func names(all []*input) string {
	var list []string
	for _, in := range all {
		list = append(list, in.name)
	}
	return strings.Join(list, ", ")
}

func summary(all []*input) plot.Table {
	t := plot.Table{Header: []string{"run", "phase", "threads", "operations", "failed", "operations/s", "p50 µs",
		"p99 µs", "p99.9 µs", "trips"}}
	for _, in := range all {
		r, l := in.result, runner.Call{}
		if c := in.result.Call(total); c != nil {
			l = *c
		}
		t.Rows = append(t.Rows, []string{
			in.name, r.Phase, fmt.Sprint(r.Threads), fmt.Sprint(r.Operations), fmt.Sprint(r.Failed),
			fmt.Sprintf("%.0f", r.Throughput),
			fmt.Sprintf("%.1f", l.Latency.P50), fmt.Sprintf("%.1f", l.Latency.P99), fmt.Sprintf("%.1f", l.Latency.P999),
			fmt.Sprintf("%.2f", l.Trips),
		})
	}
	return t
}

func throughputBars(all []*input, calls []string) plot.Chart {
	c := plot.Chart{Title: "Throughput", X: plot.Axis{Names: calls}, Y: plot.Axis{Unit: plot.Rate}}
	for _, in := range all {
		s := plot.Series{Name: in.name, Kind: plot.Bars}
		for i, name := range calls {
			if call := in.result.Call(name); call != nil {
				s.Points = append(s.Points, plot.Point{X: float64(i), Y: call.Throughput})
			}
		}
		c.Series = append(c.Series, s)
	}
	return c
}

// overTime draws what ended in each interval: of one run by kind, of several all of it; failures
// are series of their own.
func overTime(all []*input) plot.Chart {
	c := plot.Chart{Title: "Throughput over time", X: plot.Axis{Label: "time", Unit: plot.Seconds},
		Y: plot.Axis{Unit: plot.Rate}}
	for _, in := range all {
		series := in.result.Series
		if len(series) < 2 {
			continue
		}
		kinds := map[string]bool{}
		for _, i := range series {
			for kind := range i.OK {
				kinds[kind] = true
			}
		}
		order := []string{""} // all kinds
		if len(all) == 1 {
			order = order[:0]
			for kind := range kinds {
				order = append(order, kind)
			}
			slices.Sort(order)
		}
		for _, kind := range order {
			name := in.name
			if kind != "" {
				name = kind
			}
			c.Series = append(c.Series,
				rates(name, series, func(i runner.Interval) uint64 { return ended(i.OK, kind) }))
		}
		if in.result.Failed > 0 {
			name := "failed"
			if len(all) > 1 {
				name = in.name + ", failed"
			}
			c.Series = append(c.Series,
				rates(name, series, func(i runner.Interval) uint64 { return ended(i.Failed, "") }))
		}
	}
	return c
}

// ended counts the operations of a kind, or of all.
func ended(by map[string]uint64, kind string) (n uint64) {
	for k, v := range by {
		if kind == "" || k == kind {
			n += v
		}
	}
	return n
}

func rates(name string, series []runner.Interval, of func(runner.Interval) uint64) plot.Series {
	s := plot.Series{Name: name, Kind: plot.Line}
	for _, i := range series {
		if i.To > i.From {
			s.Points = append(s.Points, plot.Point{X: (i.From + i.To) / 2, Y: float64(of(i)) / (i.To - i.From)})
		}
	}
	return s
}

// ladder are the percentiles of a chart.
var ladder = []struct {
	name string
	of   func(*runner.Latency) float64
}{
	{"p50", func(l *runner.Latency) float64 { return l.P50 }},
	{"p90", func(l *runner.Latency) float64 { return l.P90 }},
	{"p95", func(l *runner.Latency) float64 { return l.P95 }},
	{"p99", func(l *runner.Latency) float64 { return l.P99 }},
	{"p99.9", func(l *runner.Latency) float64 { return l.P999 }},
	{"p99.99", func(l *runner.Latency) float64 { return l.P9999 }},
}

func percentileChart(title string, all []*input, calls []string) plot.Chart {
	c := plot.Chart{Title: title + ": percentiles", Y: plot.Axis{Unit: plot.Micros, Log: true}}
	for _, l := range ladder {
		c.X.Names = append(c.X.Names, l.name)
	}
	for _, in := range all {
		for _, name := range calls {
			call := in.result.Call(name)
			if call == nil {
				continue
			}
			s := plot.Series{Name: in.name, Kind: plot.Line}
			if len(all) == 1 {
				s.Name = name
			}
			for i, l := range ladder {
				s.Points = append(s.Points, plot.Point{X: float64(i), Y: l.of(&call.Latency)})
			}
			c.Series = append(c.Series, s)
		}
	}
	return c
}

// cdf is the distribution of a kind of calls, of which the results have buckets.
func cdf(name string, l *runner.Latency) plot.Series {
	s := plot.Series{Name: name, Kind: plot.Steps}
	sum, n := 0.0, 0.0
	for _, b := range l.Buckets {
		sum += b[2]
	}
	for _, b := range l.Buckets {
		n += b[2]
		s.Points = append(s.Points, plot.Point{X: b[1], Y: 100 * n / sum})
	}
	return s
}

func cdfChart(title string, series []plot.Series) plot.Chart {
	return plot.Chart{
		Title: title + ": distribution", Note: "share of the calls that took no longer",
		X: plot.Axis{Label: "latency", Unit: plot.Micros, Log: true}, Y: plot.Axis{Unit: plot.Percent, Most: 100},
		Series: slices.DeleteFunc(series, func(s plot.Series) bool { return len(s.Points) == 0 }),
	}
}
