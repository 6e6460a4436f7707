package reports

import (
	"fmt"
	"math"

	"github.com/farkv/farkv/ops/virtual"
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
				list = append(list, s.trial(way.system, mix, key(mix, n, way.name), func(o *virtual.Simulation) {
					sized(o, n)
					o.Records = s.bigKeys
				}))
			}
		}
	}
	return list
}

func valueTable(s *swarmSize, r results, p *Part) {
	var g grid[int]
	for _, mix := range []string{"a", "b"} {
		for _, way := range places {
			g.column(mixName(mix)+" "+way.name+": Mops",
				func(n int) Cell { return mops(r[key(mix, n, way.name)].Throughput) })
			g.column("GET", func(n int) Cell { return us(r.gets(mix, n, way.name).Latency.Mean) })
			g.column("UPDATE", func(n int) Cell { return us(r.updates(mix, n, way.name).Latency.Mean) })
		}
	}
	g.show(p, "value", "%d B", s.values)
	in, out := places[0].name, places[1].name
	last := s.values[len(s.values)-1]
	worst := 0.0
	for _, mix := range []string{"a", "b"} {
		worst = max(worst, r.gets(mix, last, in).Latency.Mean, r.updates(mix, last, in).Latency.Mean)
	}
	bent, at := s.bend(r)
	p.claim("values-linear", all(less(worst, 10), less(bent, 10)),
		fmt.Sprintf("up to %.1f µs with %d B, at most %.1f %% off the line, with %d B", worst, last, bent, at),
		unknown(""))
	faster := change(r.gets("b", last, out).Latency.Mean, r.gets("b", last, in).Latency.Mean)
	apart := r.gets("b", last, out).Latency.Mean - r.gets("b", last, in).Latency.Mean
	p.claim("values-get", all(printed(faster, "-33", "%"), printed(apart, "2.5", "µs")),
		fmt.Sprintf("%+.1f %%, by %.2f µs", faster, apart), whyWork)
	slower := r.updates("b", last, in).Latency.Mean / r.updates("b", last, out).Latency.Mean
	p.claim("values-update", inside(slower, 0.9, 1.1), fmt.Sprintf("%+.0f %% at %d B", 100*(slower-1), last),
		unknown(""))
	gain := change(r[key("b", last, out)].Throughput, r[key("b", last, in)].Throughput)
	p.same("values-rate", gain, whyWork)
	p.Notes = append(p.Notes, fmt.Sprintf("%d records.", s.bigKeys))
}

// bend returns by how many percent a latency is off the line through those of the smallest and the
// largest values, at most, and with which size: of operations of B, with data in place.
func (s *swarmSize) bend(r results) (most float64, at int) {
	low, high := s.values[0], s.values[len(s.values)-1]
	for _, call := range []string{"READ", "UPDATE"} {
		took := func(n int) float64 { return r[key("b", n, places[0].name)].Call(call).Latency.Mean }
		for _, n := range s.values {
			line := took(low) + (took(high)-took(low))*float64(n-low)/float64(high-low)
			if off := math.Abs(change(line, took(n))); off > most {
				most, at = off, n
			}
		}
	}
	return most, at
}

// cheap is a client's CPU to which a further node costs about half as much.
var cheap = []string{"Doorbell=100ns", "Poll=90ns"}

func replicaCountCases(s *swarmSize) (list []trial) {
	for _, n := range []int{3, 5, 7} {
		wide := func(o *virtual.Simulation) { o.Pool.Nodes, o.Pool.IndexReplicas, o.Pool.DataReplicas = max(4, n), n, n }
		for _, x := range quorums() {
			list = append(list, s.trial(x, "b", key(x.store, n), wide))
		}
		list = append(list, s.trial(swarmKV, "b", key("cheap", n), func(o *virtual.Simulation) {
			wide(o)
			o.Hardware = cheap
		}))
	}
	return list
}

func replicaCountTable(_ *swarmSize, r results, p *Part) {
	var g grid[int]
	for _, x := range quorums() {
		for _, call := range [][2]string{{"GET", "READ"}, {"UPDATE", "UPDATE"}} {
			at := func(share float64) func(int) Cell {
				return func(n int) Cell { return us(r[key(x.store, n)].Call(call[1]).At(share)) }
			}
			g.column(x.name+" "+call[0], at(0.5))
			g.column("p1", at(0.01))
			g.column("p99", at(0.99))
		}
		g.column(x.name+" kops a client", func(n int) Cell { return kops(r[key(x.store, n)].Throughput / 4) })
	}
	g.show(p, "replicas", "%d", []int{3, 5, 7})
	p.same("replicas-get", r.gets("swarm", 3).At(0.5), whyWork)
	p.same("replicas-update", r.updates("swarm", 3).At(0.5), whyWork)
	const changed = "where a doorbell takes 100 ns of a client's CPU and a completion 90, not 200 each"
	each := func(of string) (test, string) {
		g, u := (r.gets(of, 7).At(0.5)-r.gets(of, 3).At(0.5))/2, (r.updates(of, 7).At(0.5)-r.updates(of, 3).At(0.5))/2
		return all(printed(g, "0.2", "µs"), printed(u, "0.5", "µs")), fmt.Sprintf("%.2f and %.2f µs", g, u)
	}
	again, other := each("cheap")
	ours, text := each("swarm")
	p.claim("replicas-more", ours, text, because(changed, other, again))
	drop := func(of string, from, to int) float64 {
		return change(r[key(of, from)].Throughput, r[key(of, to)].Throughput)
	}
	for _, x := range []struct {
		about    string
		from, to int
	}{{"replicas-5", 3, 5}, {"replicas-7", 5, 7}} {
		less := drop("cheap", x.from, x.to)
		p.same(x.about, drop("swarm", x.from, x.to),
			because(changed, fmt.Sprintf("%+.1f %%", less), printed(less, p.figure(x.about).Printed, "%")))
	}
	p.same("replicas-dm-get", r.gets("dm-abd", 3).At(0.5), whyWork)
	p.same("replicas-dm-put", r.updates("dm-abd", 3).At(0.5), whyWork)
	p.Notes = append(p.Notes, "The paper's four memory nodes hold two replicas of some keys when there are more than "+
		"four; here there are as many nodes as replicas.")
}

func wordCases(s *swarmSize) []trial {
	return each([]string{"b", "a"}, s.words, func(mix string, n int) trial {
		return s.trial(swarmKV, mix, key(mix, n),
			func(o *virtual.Simulation) { o.Records, o.Clients = s.crowdKeys, 64; o.Set(words, n) })
	})
}

// atOnce is the share of the calls that take one trip, in percent, and the median of them, which
// are the fastest.
func atOnce(c *simulate.Call) (share, median float64) {
	if len(c.ByTrips) > 1 {
		share = c.ByTrips[1]
	}
	return 100 * share, c.At(share / 2)
}

// grows claims that four latencies are the paper's, and by how many percent the last is longer than
// the first.
func (p *Part) grows(about string, ours []float64, texts []string, percent string) {
	longer := change(ours[0], ours[3])
	list := []test{printed(longer, percent, "%")}
	for i, text := range texts {
		list = append(list, printed(ours[i], text, "µs"))
	}
	p.claim(about, all(list...), fmt.Sprintf("%.2f, %.2f, %.2f and %.2f µs, %+.1f %%", ours[0], ours[1], ours[2],
		ours[3], longer), whyArray)
}

func wordTable(s *swarmSize, r results, p *Part) {
	p.Header = []string{"buffers", "B: UPDATEs in a trip", "paper", "GET", "UPDATE in a trip", "UPDATE",
		"A: UPDATEs in a trip", "GET", "UPDATE"}
	for _, n := range s.words {
		about := fmt.Sprintf("words-%d", n)
		b, once := atOnce(r.updates("b", n))
		a, _ := atOnce(r.updates("a", n))
		p.Rows = append(p.Rows, []Cell{say("%d", n), share(b), share(p.published(about)), us(r.gets("b", n).At(0.5)),
			us(once),
			us(r.updates("b", n).At(0.5)), share(a), us(r.gets("a", n).At(0.5)), us(r.updates("a", n).At(0.5))})
		p.same(about, b, whyWords)
	}
	var gets, puts, shares []float64
	for _, n := range s.words {
		_, median := atOnce(r.updates("b", n))
		once, _ := atOnce(r.updates("a", n))
		gets, puts = append(gets, r.gets("b", n).At(0.5)), append(puts, median)
		shares = append(shares, once)
	}
	p.grows("words-get", gets, []string{"3.1", "3.2", "3.3", "3.6"}, "16")
	p.grows("words-put", puts, []string{"3.6", "3.9", "4", "4.3"}, "19")
	p.claim("words-a", percents(shares, "2", "11", "39", "99"),
		fmt.Sprintf("%.1f, %.1f, %.1f and %.1f %%", shares[0], shares[1], shares[2], shares[3]), whyWords)
	p.Notes = append(p.Notes, fmt.Sprintf("%d records.", s.crowdKeys))
}
