package fusee

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/farkv/farkv/ops/virtual"
	"github.com/farkv/farkv/reports/eval"
	"github.com/farkv/farkv/workloads/simulate"
)

var (
	variants   = []string{"fusee", "fusee-cr", "fusee-nc"}
	operations = []string{"INSERT", "UPDATE", "SEARCH", "DELETE"}
)

// replicated is the set-up of section 6.4: as many replicas of the index as of the data.
func replicated(o *virtual.Simulation, r int) {
	o.Pool.Nodes, o.Pool.IndexReplicas, o.Pool.DataReplicas = 5, r, r
}

func latencyCases(s *size) []eval.Trial {
	return eval.Each(variants, s.replicas, func(v string, n int) eval.Trial {
		t := s.trial("c", mixed(v, n), func(o *virtual.Simulation) {
			replicated(o, n)
			o.Store, o.Clients, o.WarmUp, o.Records = v, 1, 0, s.micro
		})
		t.Micro = s.micro
		return t
	})
}

func latencyTable(s *size, r eval.Results, p *eval.Part) {
	median := func(v string, n int, op string) float64 { return r[mixed(v, n)].Call(op).Latency.P50 }
	var g eval.Grid[int]
	for _, op := range operations {
		for _, v := range variants {
			g.Column(op+strings.ToUpper(strings.TrimPrefix(v, "fusee")),
				func(n int) eval.Cell { return eval.Micros(median(v, n, op)) })
		}
	}
	g.Show(p, "replicas", "%d", s.replicas)
	few, many := s.replicas[1], s.replicas[len(s.replicas)-1]
	grows := func(v string) (least, most float64, text string) {
		least = math.Inf(1)
		var each []string
		for _, op := range []string{"INSERT", "UPDATE", "DELETE"} {
			per := (median(v, many, op) - median(v, few, op)) / float64(many-few)
			least, most = min(least, per), max(most, per)
			each = append(each, fmt.Sprintf("%s %+.2f µs", op, per))
		}
		return least, most, strings.Join(each, ", ") + " for each replica"
	}
	trip := median("fusee", few, "SEARCH")
	least, _, text := grows("fusee-cr")
	p.Claim("latency-cr", eval.More(least, 0.7*trip), text, eval.Unknown(""))
	_, most, text := grows("fusee")
	p.Claim("latency-snapshot", eval.Less(most, 0.6*least), text, eval.Unknown(""))
	own, other := median("fusee", many, "SEARCH"), median("fusee-cr", many, "SEARCH")
	p.Claim("latency-search", eval.Similar(other, own, 0.1),
		fmt.Sprintf("FUSEE-CR %+.0f %% with %d", eval.Change(own, other), many), eval.Unknown(""))
	slower := func(op string) float64 { return median("fusee-nc", few, op) / median("fusee", few, op) }
	u, d, q := slower("UPDATE"), slower("DELETE"), slower("SEARCH")
	p.Claim("latency-nc", eval.All(eval.More(u, 1), eval.More(d, 1), eval.More(q, 1)),
		fmt.Sprintf("FUSEE-NC takes %.2f, %.2f and %.2f times as long with %d replicas", u, d, q, few),
		eval.Unknown(""))
	i := slower("INSERT")
	p.Claim("latency-insert", eval.Is(i < 1 && i > 0.9),
		fmt.Sprintf("FUSEE-NC takes %.2f times as long with %d replicas", i, few),
		eval.Unknown("What a cache costs the client's CPU takes no virtual time: the model charges CPUs for verbs "+
			"alone."))
}

func replicaCases(s *size) []eval.Trial {
	return eval.Each(s.mixes, s.replicas, func(mix string, n int) eval.Trial {
		return s.trial(mix, mixed(mix, n), func(o *virtual.Simulation) { replicated(o, n) })
	})
}

func replicaTable(s *size, r eval.Results, p *eval.Part) {
	g := s.rates(r)
	g.Column("busiest under A", func(n int) eval.Cell { return eval.Text("%s", eval.Busiest(r[mixed("a", n)])) })
	g.Column("busiest under D", func(n int) eval.Cell { return eval.Text("%s", eval.Busiest(r[mixed("d", n)])) })
	g.Show(p, "replicas", "%d", s.replicas)
	least, most := s.replicas[0], s.replicas[len(s.replicas)-1]
	times := func(mix string) float64 { return r[mixed(mix, most)].Throughput / r[mixed(mix, least)].Throughput }
	a, b, c := times("a"), times("b"), times("c")
	p.Claim("replicas-ab", eval.All(eval.Less(a, 0.95), eval.Less(b, 0.99)),
		fmt.Sprintf("A %+.1f %%, B %+.1f %% from %d to %d", 100*(a-1), 100*(b-1), least, most),
		eval.Unknown("What limits B with %d is %s.", most, eval.Busiest(r[mixed("b", most)])))
	p.Claim("replicas-c", eval.Inside(c, 0.95, 1.05), fmt.Sprintf("%+.1f %%", 100*(c-1)),
		eval.Unknown("Where its slots and pairs lie, and so which memory node is asked most, changes with the number "+
			"of replicas."))
	one, five := r[mixed("d", least)].Throughput/1e6, r[mixed("d", most)].Throughput/1e6
	why := eval.Unknown("8.8 Mops are 14.5 µs for each operation of 128 clients, ours take %.1f µs.",
		r[mixed("d", least)].Call("TOTAL").Latency.Mean)
	p.Same("replicas-d1", one, why)
	p.Claim("replicas-d5", eval.All(eval.Printed(one, "8.8", ""), eval.Printed(five, "8.6", "")),
		fmt.Sprintf("%+.1f %%, from %.2f to %.2f Mops", eval.Change(one, five), one, five), why)
}

// timed sets up a figure over nine seconds of the paper. second is the virtual time for one of
// them.
func timed(o *virtual.Simulation, second time.Duration) {
	o.Ops, o.Duration, o.Interval = 0, figureSeconds*second, second
}

const figureSeconds = 9

func scaled(second time.Duration) string {
	return fmt.Sprintf("A second of the paper is %v of virtual time here: nothing in this figure needs longer to "+
		"settle.", second)
}

func crashCases(s *size) []eval.Trial {
	return []eval.Trial{s.trial("c", "crash", func(o *virtual.Simulation) {
		timed(o, s.crashSecond)
		o.WarmUp = s.crashWarmUp
		o.Pool.IndexReplicas, o.Lease = 2, s.crashSecond/4 // one replica of the index alone would not outlive a node
		o.Crashes = []string{fmt.Sprintf("node 1@%v", 5*s.crashSecond)}
	})}
}

// timeline prints a throughput over time.
func timeline(p *eval.Part, r *simulate.Result, failures bool) {
	p.Header = []string{"second", "throughput"}
	if failures {
		p.Header = append(p.Header, "failed")
	}
	for i, point := range r.Points {
		row := []eval.Cell{eval.Text("%d", i+1), eval.Mops(point.Throughput)}
		if failures {
			row = append(row, eval.Mops(point.Failed))
		}
		p.Rows = append(p.Rows, row)
	}
}

func crashTable(s *size, r eval.Results, p *eval.Part) {
	x := r["crash"]
	timeline(p, x, true)
	p.Notes = append(p.Notes, scaled(s.crashSecond)+fmt.Sprintf(" The master's lease is %v.", s.crashSecond/4))
	for _, e := range x.Events {
		p.Notes = append(p.Notes, fmt.Sprintf("At second %.2f: %s.", e.Seconds/s.crashSecond.Seconds(), e.What))
	}
	before, after := eval.MeanThroughput(x, 1, 5), eval.MeanThroughput(x, figureSeconds-1, figureSeconds)
	drop := eval.Change(before, after)
	why := eval.Unknown("")
	if x.Failed > 0 {
		why = why.And("%d operations failed; the first: %s.", x.Failed, x.Error)
	}
	p.Claim("crash", eval.Inside(after/before, 0.45, 0.55),
		fmt.Sprintf("from %.2f to %.2f Mops in the last second, %+.0f %%", before/1e6, after/1e6, drop), why)
}

// table1 has the paper's steps of a client's recovery, and how many milliseconds each took there.
var table1 = []struct {
	step string
	ms   float64
}{
	{"recover connection & MR", 163.1}, {"get metadata", 0.3}, {traverseLog, 3.5}, {recoverRequests, 3.5},
	{freeList, 6.6},
}

const (
	traverseLog     = "traverse log"
	recoverRequests = "recover KV requests"
	freeList        = "construct free list"
)

// recoverAt is when the client dies: behind more than 1,000 UPDATEs, which take 15 µs each.
const recoverAt = 20 * time.Millisecond

func recoveryCases(s *size) []eval.Trial {
	return []eval.Trial{s.trial("a", "recovery", func(o *virtual.Simulation) {
		o.Properties = []string{"readproportion=0", "updateproportion=1"}
		o.Clients, o.WarmUp, o.Ops, o.Duration, o.Lease = 2, 0, 0, 3*recoverAt, recoverAt/4
		o.Crashes = []string{fmt.Sprintf("client 1@%v", recoverAt)}
	})}
}

func recoveryTable(_ *size, r eval.Results, p *eval.Part) {
	took := map[string]float64{} // in milliseconds
	p.Header = []string{"step", "paper, ms", "here, µs"}
	for _, e := range r["recovery"].Events {
		for line := range strings.Lines(e.Report) {
			for _, row := range table1 {
				rest, ok := strings.CutPrefix(line, row.step+" ")
				if !ok {
					continue
				}
				var ms float64
				if _, err := fmt.Sscan(rest, &ms); err != nil {
					panic(fmt.Sprintf("reports: a recovery says %q: %v", line, err))
				}
				took[row.step] = ms
			}
		}
	}
	for _, row := range table1 {
		here := eval.Text("not in the model")
		if ms, ok := took[row.step]; ok {
			here = eval.Text("%.0f", 1000*ms)
		}
		p.Rows = append(p.Rows, []eval.Cell{eval.Text("%s", row.step), eval.Text("%.1f", row.ms), here})
	}
	log := took[traverseLog] + took[recoverRequests]
	p.Claim("recovery-log", eval.All(eval.More(log, 0), eval.Less(log, 7)), fmt.Sprintf("%.3f ms", log),
		eval.Unknown(""))
	free := took[freeList]
	p.Claim("recovery-free", eval.All(eval.More(free, 0), eval.Less(free, 6.6)), fmt.Sprintf("%.3f ms", free),
		eval.Unknown(""))
	p.Notes = append(p.Notes, "Here a recovery reads the client's journal of 8 words a node instead of its logs, and "+
		"passes its blocks on at once. Their objects are looked up later, beside the operations of others.")
}

func elasticityCases(s *size) []eval.Trial {
	return []eval.Trial{s.trial("c", "elasticity", func(o *virtual.Simulation) {
		timed(o, s.second)
		o.Clients = 16
		o.Joins, o.Leaves = []string{fmt.Sprintf("16@%v", 3*s.second)}, []string{fmt.Sprintf("16@%v", 6*s.second)}
	})}
}

func elasticityTable(s *size, r eval.Results, p *eval.Part) {
	x := r["elasticity"]
	timeline(p, x, x.Failed > 0)
	p.Notes = append(p.Notes, "16 clients join at second 3, and leave at second 6.", scaled(s.second))
	before, with, after := eval.MeanThroughput(x, 1, 3), eval.MeanThroughput(x, 4, 6),
		eval.MeanThroughput(x, 7, figureSeconds)
	p.Claim("elasticity-up", eval.More(with, 1.2*before), fmt.Sprintf("from %.2f to %.2f Mops", before/1e6, with/1e6),
		eval.Unknown(""))
	p.Claim("elasticity-back", eval.Inside(after/before, 0.97, 1.03),
		fmt.Sprintf("%.2f Mops, %+.1f %%", after/1e6, eval.Change(before, after)), eval.Unknown(""))
}
