package swarm

import (
	"fmt"
	"strings"
	"time"

	"github.com/farkv/farkv/ops/virtual"
	"github.com/farkv/farkv/reports/eval"
	"github.com/farkv/farkv/workloads/simulate"
)

func nodeCrashCases(s *size) (list []eval.Trial) {
	at := time.Duration(s.calm) * s.window
	for _, x := range systems("raw") {
		list = append(list, s.trial(x, "a", x.store, func(o *virtual.Simulation) {
			o.Ops, o.Duration, o.Interval = 0, at+time.Duration(s.troubled)*s.window, s.window
			o.Crashes, o.Lease = []string{fmt.Sprintf("node 1@%v", at)}, s.lease
			if x.store == "fusee" { // which has to notice first
				o.Duration, o.Interval = at+2*s.lease, 0
			}
		}))
		if x.store == swarmKV.store {
			few := list[len(list)-1]
			few.Name, few.Records = "few", s.crowdKeys
			list = append(list, few)
		}
	}
	return list
}

func nodeCrashTable(s *size, r eval.Results, p *eval.Part) {
	p.Header = []string{"µs"}
	for _, x := range quorums() {
		p.Header = append(p.Header, x.name+": Mops", "mean")
	}
	x, f := r["swarm"], r["fusee"]
	for i, next := s.calm-3, 1; i < len(x.Points); i += next {
		row := []eval.Cell{eval.Text("%+d", int64(i-s.calm)*s.window.Microseconds())}
		for _, system := range quorums() {
			point := r[system.store].Points[i]
			row = append(row, eval.Mops(point.Throughput), eval.FineMicros(point.Latency))
		}
		p.Rows = append(p.Rows, row)
		if i >= s.calm+4 {
			next = (i - s.calm) / 2
		}
	}
	p.Notes = append(p.Notes,
		fmt.Sprintf("Times count from the crash of one of four memory nodes; rows are %v from there on.", s.window))
	p.Claim("crash-available", eval.All(eval.Is(x.Failed == 0), eval.Less(x.LongestGap, 200)),
		fmt.Sprintf("%d operations failed, and no client was without one that ended for more than %.1f µs", x.Failed,
			x.LongestGap), eval.Unknown(""))
	before, after := meanLatency(x.Points[:s.calm]), meanLatency(x.Points[len(x.Points)-s.calm:])
	worst := 0.0
	for _, point := range x.Points[s.calm:] {
		worst = max(worst, point.Latency)
	}
	few := r["few"].Points
	again := eval.All(eval.More(worst, 1.05*before),
		eval.Less(meanLatency(few[len(few)-s.calm:]), 1.1*meanLatency(few[:s.calm])))
	p.Claim("crash-recovers", eval.All(eval.More(worst, 1.05*before), eval.Less(after, 1.1*before)),
		fmt.Sprintf("from %.2f to %.2f µs, and %.2f in the end", before, worst, after),
		eval.Because(fmt.Sprintf("with %d records", s.crowdKeys),
			fmt.Sprintf("from %.2f µs to %.2f in the end", meanLatency(few[:s.calm]),
				meanLatency(few[len(few)-s.calm:])),
			again).And("What lay in place at the node that is gone is read out of place until it is written again, "+
			"which takes longer of more records."))
	p.Claim("crash-fusee", eval.More(f.LongestGap, 10_000),
		fmt.Sprintf("no operation of a client ended for %.0f µs, and %d operations failed", f.LongestGap, f.Failed),
		eval.Unknown("The lease of FUSEE's master is %v.", s.lease))
}

// meanLatency is that of the operations of some intervals.
func meanLatency(points []simulate.Point) float64 {
	sum, n := 0.0, 0.0
	for _, point := range points {
		sum, n = sum+point.Latency*point.Throughput, n+point.Throughput
	}
	return sum / n
}

var contenders = []int{16, 32}

func oneKeyCases(s *size) []eval.Trial {
	return eval.Each(quorums(), contenders, func(x system, n int) eval.Trial {
		return s.trial(x, "a", eval.Key(x.store, n), func(o *virtual.Simulation) {
			o.Records, o.Clients = 1, n
			o.Properties = append(o.Properties, "requestdistribution=uniform")
			o.Ops = min(o.Ops, 200_000)
		})
	})
}

// split writes the shares of 1, 2, 3, 4 and more trips.
func split(c *simulate.Call) (list [5]float64, text string) {
	for n, part := range c.ByTrips {
		list[min(max(n, 1), 5)-1] += 100 * part
	}
	var each []string
	for _, part := range list {
		each = append(each, fmt.Sprintf("%.0f", part))
	}
	return list, strings.Join(each, ", ") + " %"
}

func oneKeyTable(_ *size, r eval.Results, p *eval.Part) {
	cdfs(p, quorums(), func(x system) []any { return []any{x.store, 16} }, r)
	for _, call := range []string{"READ", "UPDATE"} {
		for _, n := range contenders {
			for _, x := range quorums() {
				c := r[eval.Key(x.store, n)].Call(call)
				_, text := split(c)
				p.Notes = append(p.Notes,
					fmt.Sprintf("%s %s with %d clients: %s in 1, 2, 3, 4 and more trips; %.1f µs at the median, %.1f "+
						"at the 99th percentile, %d trips at the most.", x.name, call, n, text, c.At(0.5), c.At(0.99),
						c.TripsAt(1)))
			}
		}
	}
	g, u := r.Gets("swarm", 16), r.Updates("swarm", 16)
	gets, text := split(g)
	p.Claim("one-get", eval.Percents(gets[:2], "14", "8"), text+" in 1, 2, 3, 4 and more", whyHot)
	p.Same("one-get-p99", g.At(0.99), whyHot)
	updates, text := split(u)
	p.Claim("one-update", eval.All(eval.Percents(updates[:4], "73", "7", "14", "6"), eval.Is(u.TripsAt(1) <= 4)),
		fmt.Sprintf("%s in 1, 2, 3, 4 and more; at most %d", text, u.TripsAt(1)), whyHot)
	p.Same("one-put-p99", u.At(0.99), whyHot)
	p.Same("one-32-get", r.Gets("swarm", 32).At(0.5)-g.At(0.5), whyHot)
	longer := r.Updates("swarm", 32).At(0.5) / u.At(0.5)
	p.Claim("one-32-update", eval.Less(longer, 1.2), fmt.Sprintf("%+.0f %% at the median", 100*(longer-1)), whyHot)
	get, put := r.Gets("dm-abd", 32).At(0.5), r.Updates("dm-abd", 32).At(0.5)
	p.Claim("one-32-dm", eval.All(eval.Printed(get, "47", "µs"), eval.Printed(put, "47", "µs")),
		fmt.Sprintf("%.1f and %.1f µs", get, put),
		eval.Unknown("For how long clients that meet step back is not in the paper."))
}
