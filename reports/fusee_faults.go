package reports

import (
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/farkv/farkv/ops"
	"github.com/farkv/farkv/workloads/simulate"
)

var (
	variants   = []string{"fusee", "fusee-cr", "fusee-nc"}
	operations = []string{"INSERT", "UPDATE", "SEARCH", "DELETE"}
)

// replicated is the set-up of section 6.4: as many replicas of the index as of the data.
func replicated(o *ops.Simulation, r int) { o.Nodes, o.IndexReplicas, o.DataReplicas = 5, r, r }

func latencyCases(s *size) (list []trial) {
	for _, v := range variants {
		for _, n := range s.replicas {
			t := s.trial("c", mixed(v, n), func(o *ops.Simulation) {
				replicated(o, n)
				o.Store, o.Clients, o.WarmUp, o.Records = v, 1, 0, s.micro
			})
			t.micro = s.micro
			list = append(list, t)
		}
	}
	return list
}

func latencyTable(s *size, r results, p *Part) {
	p.Header = []string{"replicas"}
	for _, op := range operations {
		for _, v := range variants {
			p.Header = append(p.Header, op+strings.ToUpper(strings.TrimPrefix(v, "fusee")))
		}
	}
	median := func(v string, n int, op string) float64 { return r[mixed(v, n)].Call(op).Latency.P50 }
	for _, n := range s.replicas {
		row := []Cell{say("%d", n)}
		for _, op := range operations {
			for _, v := range variants {
				row = append(row, micros(median(v, n, op)))
			}
		}
		p.Rows = append(p.Rows, row)
	}
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
	p.claim("latency-cr", least > 0.7*trip, text, "A CAS of one more replica takes less than a SEARCH.")
	_, most, text := grows("fusee")
	p.claim("latency-snapshot", most < 0.6*least, text, "Each replica is one more to write to and to wait for.")
	apart := change(median("fusee", many, "SEARCH"), median("fusee-cr", many, "SEARCH"))
	p.claim("latency-search", math.Abs(apart) < 10, fmt.Sprintf("FUSEE-CR %+.0f %% with %d", apart, many), "")
	slower := func(op string) float64 { return change(median("fusee", few, op), median("fusee-nc", few, op)) }
	u, d, q := slower("UPDATE"), slower("DELETE"), slower("SEARCH")
	p.claim("latency-nc", min(u, d, q) > 0, fmt.Sprintf("FUSEE-NC takes %+.0f %%, %+.0f %% and %+.0f %% with %d replicas", u, d, q, few), "")
	i := slower("INSERT")
	p.claim("latency-insert", i < 0 && i > -10, fmt.Sprintf("FUSEE-NC takes %+.0f %% with %d replicas", i, few),
		"What a cache costs the client's CPU takes no virtual time: the model charges CPUs for verbs alone.")
}

func replicaCases(s *size) (list []trial) {
	for _, mix := range s.mixes {
		for _, n := range s.replicas {
			list = append(list, s.trial(mix, mixed(mix, n), func(o *ops.Simulation) { replicated(o, n) }))
		}
	}
	return list
}

func replicaTable(s *size, r results, p *Part) {
	p.Header = []string{"replicas", "A", "B", "C", "D", "busiest under A", "busiest under D"}
	for _, n := range s.replicas {
		row := []Cell{say("%d", n)}
		for _, mix := range s.mixes {
			row = append(row, mops(r[mixed(mix, n)].Throughput))
		}
		p.Rows = append(p.Rows, append(row, say("%s", limit(r[mixed("a", n)])), say("%s", limit(r[mixed("d", n)]))))
	}
	least, most := s.replicas[0], s.replicas[len(s.replicas)-1]
	gain := func(mix string) float64 {
		return change(r[mixed(mix, least)].Throughput, r[mixed(mix, most)].Throughput)
	}
	a, b, c, d := gain("a"), gain("b"), gain("c"), gain("d")
	p.claim("replicas-ab", a < -5 && b < -1, fmt.Sprintf("A %+.1f %%, B %+.1f %% from %d to %d", a, b, least, most),
		"The few UPDATEs of B leave its bottleneck where it was: "+limit(r[mixed("b", most)])+".")
	p.claim("replicas-c", math.Abs(c) < 5, fmt.Sprintf("%+.1f %%", c), "Where its slots and pairs lie, and so which memory node is"+
		" asked most, changes with the number of replicas.")
	one, five := r[mixed("d", least)].Throughput/1e6, r[mixed("d", most)].Throughput/1e6
	why := fmt.Sprintf("Five replicas need five memory nodes, and with those the paper's clients are the limit (see nodes and"+
		" pairs): 8.8 Mops are 14.5 µs for each operation of 128 clients, ours take %.1f µs.", r[mixed("d", least)].Call("TOTAL").Latency.Mean)
	p.claim("replicas-d1", math.Abs(one/p.figure("replicas-d1").Value-1) < 0.15, fmt.Sprintf("%.2f Mops", one), why)
	p.claim("replicas-d5", d < 0 && d > -5, fmt.Sprintf("%+.1f %%, to %.2f Mops", d, five),
		"An INSERT takes more trips with more replicas, and writes more: "+limit(r[mixed("d", most)])+".")
}

// timed is the set-up of a figure over nine seconds of the paper, each of which is so long here.
func timed(o *ops.Simulation, second time.Duration) {
	o.Ops, o.Duration, o.Interval = 0, figureSeconds*second, second
}

const figureSeconds = 9

func scaled(second time.Duration) string {
	return fmt.Sprintf("A second of the paper is %v of virtual time here: nothing in this figure needs longer to settle.", second)
}

func crashCases(s *size) []trial {
	return []trial{s.trial("c", "crash", func(o *ops.Simulation) {
		timed(o, s.crashSecond)
		o.WarmUp = s.crashWarmUp
		o.IndexReplicas, o.Lease = 2, s.crashSecond/4 // one replica of the index alone would not outlive a node
		o.Crashes = []string{fmt.Sprintf("node 1@%v", 5*s.crashSecond)}
	})}
}

// overTime prints a throughput over time.
func (p *Part) overTime(r *simulate.Result, failures bool) {
	p.Header = []string{"second", "throughput"}
	if failures {
		p.Header = append(p.Header, "failed")
	}
	for i, point := range r.Points {
		row := []Cell{say("%d", i+1), mops(point.Throughput)}
		if failures {
			row = append(row, mops(point.Failed))
		}
		p.Rows = append(p.Rows, row)
	}
}

// mean is the throughput of the paper's seconds from one up to another.
func mean(r *simulate.Result, from, to int) float64 {
	sum := 0.0
	for _, p := range r.Points[from:to] {
		sum += p.Throughput
	}
	return sum / float64(to-from)
}

func crashTable(s *size, r results, p *Part) {
	x := r["crash"]
	p.overTime(x, true)
	p.Notes = append(p.Notes, scaled(s.crashSecond)+fmt.Sprintf(" The master's lease is %v.", s.crashSecond/4))
	for _, e := range x.Events {
		p.Notes = append(p.Notes, fmt.Sprintf("At second %.2f: %s.", e.Seconds/s.crashSecond.Seconds(), e.What))
	}
	before, after := mean(x, 1, 5), mean(x, figureSeconds-1, figureSeconds)
	drop := change(before, after)
	why := "What the master still does takes a part of the bandwidth of the node that is left."
	if x.Failed > 0 {
		why = fmt.Sprintf("%d operations failed; the first: %s.", x.Failed, x.Error)
	}
	p.claim("crash", math.Abs(drop+50) < 8, fmt.Sprintf("from %.2f to %.2f Mops in the last second, %+.0f %%", before/1e6, after/1e6, drop),
		why)
}

func elasticityCases(s *size) []trial {
	return []trial{s.trial("c", "elasticity", func(o *ops.Simulation) {
		timed(o, s.second)
		o.Clients = 16
		o.Joins, o.Leaves = []string{fmt.Sprintf("16@%v", 3*s.second)}, []string{fmt.Sprintf("16@%v", 6*s.second)}
	})}
}

func elasticityTable(s *size, r results, p *Part) {
	x := r["elasticity"]
	p.overTime(x, x.Failed > 0)
	p.Notes = append(p.Notes, "16 clients join at second 3, and leave at second 6.", scaled(s.second))
	before, with, after := mean(x, 1, 3), mean(x, 4, 6), mean(x, 7, figureSeconds)
	p.claim("elasticity-up", with > 1.2*before, fmt.Sprintf("from %.2f to %.2f Mops", before/1e6, with/1e6), "")
	back := change(before, after)
	p.claim("elasticity-back", math.Abs(back) < 3, fmt.Sprintf("%.2f Mops, %+.1f %%", after/1e6, back), "")
}
