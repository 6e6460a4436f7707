package reports

import (
	"fmt"
	"math"

	"github.com/farkv/farkv/ops"
	"github.com/farkv/farkv/workloads/simulate"
)

// places are the ways of keeping values: in place too, as SWARM-KV does, or out of place alone.
var places = []struct {
	name string
	system
}{{"in place", swarmKV}, {"out of place", system{"swarm-apart", "SWARM-KV out of place", 3, 2}}}

func valueCases(s *swarmSize) (list []trial) {
	for _, mix := range []string{"a", "b"} {
		for _, n := range s.values {
			for _, way := range places {
				list = append(list, s.trial(way.system, mix, key(mix, n, way.name), func(o *ops.Simulation) {
					sized(o, n)
					o.Records = s.bigKeys
				}))
			}
		}
	}
	return list
}

func valueTable(s *swarmSize, r results, p *Part) {
	p.Header = []string{"value"}
	for _, mix := range []string{"A", "B"} {
		for _, way := range places {
			p.Header = append(p.Header, mix+" "+way.name+": Mops", "GET", "UPDATE")
		}
	}
	for _, n := range s.values {
		row := []Cell{say("%d B", n)}
		for _, mix := range []string{"a", "b"} {
			for _, way := range places {
				row = append(row, mops(r[key(mix, n, way.name)].Throughput), us(r.gets(mix, n, way.name).Latency.Mean),
					us(r.updates(mix, n, way.name).Latency.Mean))
			}
		}
		p.Rows = append(p.Rows, row)
	}
	in, out := places[0].name, places[1].name
	last := s.values[len(s.values)-1]
	worst := 0.0
	for _, mix := range []string{"a", "b"} {
		worst = max(worst, r.gets(mix, last, in).Latency.Mean, r.updates(mix, last, in).Latency.Mean)
	}
	p.claim("values-linear", worst < 10, fmt.Sprintf("up to %.1f µs with %d B", worst, last), "A write of a large value passes the links of two"+
		" nodes, and another in place follows it.")
	faster := change(r.gets("b", last, out).Latency.Mean, r.gets("b", last, in).Latency.Mean)
	p.near("values-get", faster, 0.1, fmt.Sprintf("That is %.1f µs: a trip, in which the value passes the link once either way.",
		r.gets("b", last, out).Latency.Mean-r.gets("b", last, in).Latency.Mean))
	slower := change(r.updates("b", last, out).Latency.Mean, r.updates("b", last, in).Latency.Mean)
	p.claim("values-update", math.Abs(slower) < 10, fmt.Sprintf("%+.0f %% at %d B", slower, last),
		"What is written in place, in the background, is on the client's link before the next operation's.")
	gain := change(r[key("b", last, out)].Throughput, r[key("b", last, in)].Throughput)
	p.near("values-rate", gain, 0.15, "It follows from the latencies: clients do nothing else.")
	p.Notes = append(p.Notes, fmt.Sprintf("%d records.", s.bigKeys))
}

func replicaCountCases(s *swarmSize) (list []trial) {
	for _, x := range quorums() {
		for _, n := range []int{3, 5, 7} {
			list = append(list, s.trial(x, "b", key(x.store, n), func(o *ops.Simulation) { o.Nodes, o.IndexReplicas, o.DataReplicas = max(4, n), n, n }))
		}
	}
	return list
}

func replicaCountTable(_ *swarmSize, r results, p *Part) {
	p.Header = []string{"replicas"}
	for _, x := range quorums() {
		for _, what := range []string{" GET", " p1", " p99", " UPDATE", " p1", " p99", " kops a client"} {
			if what[1] != 'p' {
				what = " " + x.name + what
			}
			p.Header = append(p.Header, what[1:])
		}
	}
	for _, n := range []int{3, 5, 7} {
		row := []Cell{say("%d", n)}
		for _, x := range quorums() {
			g, u := r.gets(x.store, n), r.updates(x.store, n)
			row = append(row, us(g.At(0.5)), us(g.At(0.01)), us(g.At(0.99)), us(u.At(0.5)), us(u.At(0.01)), us(u.At(0.99)),
				kops(r[key(x.store, n)].Throughput/4))
		}
		p.Rows = append(p.Rows, row)
	}
	get := func(n int) float64 { return r.gets("swarm", n).At(0.5) }
	update := func(n int) float64 { return r.updates("swarm", n).At(0.5) }
	p.near("replicas-get", get(3), 0.1, whyWork)
	p.near("replicas-update", update(3), 0.1, whyWork)
	g, u := (get(7)-get(3))/2, (update(7)-update(3))/2
	p.claim("replicas-more", math.Abs(g-0.2) < 0.1 && math.Abs(u-0.5) < 0.2, fmt.Sprintf("%.2f and %.2f µs", g, u),
		whyNode)
	drop := func(from, to int) float64 {
		return change(r[key("swarm", from)].Throughput, r[key("swarm", to)].Throughput)
	}
	p.near("replicas-5", drop(3, 5), 0.05, whyNode)
	p.near("replicas-7", drop(5, 7), 0.05, whyNode)
	p.near("replicas-dm-get", r.gets("dm-abd", 3).At(0.5), 0.1, whyWork)
	p.near("replicas-dm-put", r.updates("dm-abd", 3).At(0.5), 0.1, whyWork)
	p.Notes = append(p.Notes, "The paper's four memory nodes hold two replicas of some keys when there are more than four; here there are as many"+
		" nodes as replicas.")
}

func wordCases(s *swarmSize) (list []trial) {
	for _, mix := range []string{"b", "a"} {
		for _, n := range s.words {
			list = append(list, s.trial(swarmKV, mix, key(mix, n), func(o *ops.Simulation) { o.Records, o.Clients, o.Words = s.crowdKeys, 64, n }))
		}
	}
	return list
}

// atOnce is the share of the calls that take one trip, in percent, and the median of them, which are the fastest.
func atOnce(c *simulate.Call) (share, median float64) {
	if len(c.ByTrips) > 1 {
		share = c.ByTrips[1]
	}
	return 100 * share, c.At(share / 2)
}

func wordTable(s *swarmSize, r results, p *Part) {
	p.Header = []string{"buffers", "B: UPDATEs in a trip", "paper", "GET", "UPDATE in a trip", "UPDATE", "A: UPDATEs in a trip", "GET", "UPDATE"}
	for _, n := range s.words {
		about := fmt.Sprintf("words-%d", n)
		b, once := atOnce(r.updates("b", n))
		a, _ := atOnce(r.updates("a", n))
		p.Rows = append(p.Rows, []Cell{say("%d", n), share(b), share(p.figure(about).Value), us(r.gets("b", n).At(0.5)), us(once),
			us(r.updates("b", n).At(0.5)), share(a), us(r.gets("a", n).At(0.5)), us(r.updates("a", n).At(0.5))})
		p.near(about, b, 0.1, whyWords)
	}
	least, most := s.words[0], s.words[len(s.words)-1]
	p.near("words-get", change(r.gets("b", least).At(0.5), r.gets("b", most).At(0.5)), 0.08, whyArray)
	_, few := atOnce(r.updates("b", least))
	_, many := atOnce(r.updates("b", most))
	p.near("words-put", change(few, many), 0.08, whyArray)
	first, _ := atOnce(r.updates("a", least))
	own, _ := atOnce(r.updates("a", most))
	p.claim("words-a", first < 10 && own > 90, fmt.Sprintf("%.1f %% with %d, %.1f %% with %d", first, least, own, most), whyWords)
	p.Notes = append(p.Notes, fmt.Sprintf("%d records.", s.crowdKeys))
}
