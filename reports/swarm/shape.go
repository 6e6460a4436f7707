package swarm

import (
	"fmt"
	"math"

	"github.com/farkv/farkv/ops/virtual"
	"github.com/farkv/farkv/reports/eval"
)

// places are the ways of keeping values: in place too, as SWARM-KV does, or out of place alone.
var places = []struct {
	name string
	system
}{{"in place", swarmKV}, {"out of place", system{"swarm-apart", "SWARM-KV out of place", 3, 2}}}

func valueCases(s *size) (list []eval.Trial) {
	for _, mix := range []string{"a", "b"} {
		for _, n := range s.values {
			for _, way := range places {
				list = append(list, s.trial(way.system, mix, eval.Key(mix, n, way.name), func(o *virtual.Simulation) {
					sized(o, n)
					o.Records = s.bigKeys
				}))
			}
		}
	}
	return list
}

func valueTable(s *size, r eval.Results, p *eval.Part) {
	var g eval.Grid[int]
	for _, mix := range []string{"a", "b"} {
		for _, way := range places {
			g.Column(eval.MixName(mix)+" "+way.name+": Mops",
				func(n int) eval.Cell { return eval.Mops(r[eval.Key(mix, n, way.name)].Throughput) })
			g.Column("GET", func(n int) eval.Cell { return eval.FineMicros(r.Gets(mix, n, way.name).Latency.Mean) })
			g.Column("UPDATE",
				func(n int) eval.Cell { return eval.FineMicros(r.Updates(mix, n, way.name).Latency.Mean) })
		}
	}
	g.Show(p, "value", "%d B", s.values)
	in, out := places[0].name, places[1].name
	last := s.values[len(s.values)-1]
	worst := 0.0
	for _, mix := range []string{"a", "b"} {
		worst = max(worst, r.Gets(mix, last, in).Latency.Mean, r.Updates(mix, last, in).Latency.Mean)
	}
	bent, at := s.bend(r)
	p.Claim("values-linear", eval.All(eval.Less(worst, 10), eval.Less(bent, 10)),
		fmt.Sprintf("up to %.1f µs with %d B, at most %.1f %% off the line, with %d B", worst, last, bent, at),
		eval.Unknown(""))
	faster := eval.Change(r.Gets("b", last, out).Latency.Mean, r.Gets("b", last, in).Latency.Mean)
	apart := r.Gets("b", last, out).Latency.Mean - r.Gets("b", last, in).Latency.Mean
	p.Claim("values-get", eval.All(eval.Printed(faster, "-33", "%"), eval.Printed(apart, "2.5", "µs")),
		fmt.Sprintf("%+.1f %%, by %.2f µs", faster, apart), whyWork)
	slower := r.Updates("b", last, in).Latency.Mean / r.Updates("b", last, out).Latency.Mean
	p.Claim("values-update", eval.Inside(slower, 0.9, 1.1), fmt.Sprintf("%+.0f %% at %d B", 100*(slower-1), last),
		eval.Unknown(""))
	gain := eval.Change(r[eval.Key("b", last, out)].Throughput, r[eval.Key("b", last, in)].Throughput)
	p.Same("values-rate", gain, whyWork)
	p.Notes = append(p.Notes, fmt.Sprintf("%d records.", s.bigKeys))
}

// bend returns by how many percent a latency is off the line through those of the smallest and the
// largest values, at most, and with which size: of operations of B, with data in place.
func (s *size) bend(r eval.Results) (most float64, at int) {
	low, high := s.values[0], s.values[len(s.values)-1]
	for _, call := range []string{"READ", "UPDATE"} {
		took := func(n int) float64 { return r[eval.Key("b", n, places[0].name)].Call(call).Latency.Mean }
		for _, n := range s.values {
			line := took(low) + (took(high)-took(low))*float64(n-low)/float64(high-low)
			if off := math.Abs(eval.Change(line, took(n))); off > most {
				most, at = off, n
			}
		}
	}
	return most, at
}

// cheap is a client's CPU to which a further node costs about half as much.
var cheap = []string{"Doorbell=100ns", "Poll=90ns"}

func replicaCountCases(s *size) (list []eval.Trial) {
	for _, n := range []int{3, 5, 7} {
		wide := func(o *virtual.Simulation) {
			o.Pool.Nodes, o.Pool.IndexReplicas, o.Pool.DataReplicas = max(4, n), n, n
		}
		for _, x := range quorums() {
			list = append(list, s.trial(x, "b", eval.Key(x.store, n), wide))
		}
		list = append(list, s.trial(swarmKV, "b", eval.Key("cheap", n), func(o *virtual.Simulation) {
			wide(o)
			o.Hardware = cheap
		}))
	}
	return list
}

func replicaCountTable(_ *size, r eval.Results, p *eval.Part) {
	var g eval.Grid[int]
	for _, x := range quorums() {
		for _, call := range [][2]string{{"GET", "READ"}, {"UPDATE", "UPDATE"}} {
			at := func(share float64) func(int) eval.Cell {
				return func(n int) eval.Cell { return eval.FineMicros(r[eval.Key(x.store, n)].Call(call[1]).At(share)) }
			}
			g.Column(x.name+" "+call[0], at(0.5))
			g.Column("p1", at(0.01))
			g.Column("p99", at(0.99))
		}
		g.Column(x.name+" kops a client",
			func(n int) eval.Cell { return eval.Kops(r[eval.Key(x.store, n)].Throughput / 4) })
	}
	g.Show(p, "replicas", "%d", []int{3, 5, 7})
	p.Same("replicas-get", r.Gets("swarm", 3).At(0.5), whyWork)
	p.Same("replicas-update", r.Updates("swarm", 3).At(0.5), whyWork)
	const changed = "where a doorbell takes 100 ns of a client's CPU and a completion 90, not 200 each"
	each := func(of string) (eval.Test, string) {
		g, u := (r.Gets(of, 7).At(0.5)-r.Gets(of, 3).At(0.5))/2, (r.Updates(of, 7).At(0.5)-r.Updates(of, 3).At(0.5))/2
		return eval.All(eval.Printed(g, "0.2", "µs"), eval.Printed(u, "0.5", "µs")),
			fmt.Sprintf("%.2f and %.2f µs", g, u)
	}
	again, other := each("cheap")
	ours, text := each("swarm")
	p.Claim("replicas-more", ours, text, eval.Because(changed, other, again))
	drop := func(of string, from, to int) float64 {
		return eval.Change(r[eval.Key(of, from)].Throughput, r[eval.Key(of, to)].Throughput)
	}
	for _, x := range []struct {
		about    string
		from, to int
	}{{"replicas-5", 3, 5}, {"replicas-7", 5, 7}} {
		less := drop("cheap", x.from, x.to)
		p.Same(x.about, drop("swarm", x.from, x.to),
			eval.Because(changed, fmt.Sprintf("%+.1f %%", less), eval.Printed(less, p.Figure(x.about).Printed, "%")))
	}
	p.Same("replicas-dm-get", r.Gets("dm-abd", 3).At(0.5), whyWork)
	p.Same("replicas-dm-put", r.Updates("dm-abd", 3).At(0.5), whyWork)
	p.Notes = append(p.Notes, "The paper's four memory nodes hold two replicas of some keys when there are more than "+
		"four; here there are as many nodes as replicas.")
}

func wordCases(s *size) []eval.Trial {
	return eval.Each([]string{"b", "a"}, s.words, func(mix string, n int) eval.Trial {
		return s.trial(swarmKV, mix, eval.Key(mix, n),
			func(o *virtual.Simulation) { o.Records, o.Clients = s.crowdKeys, 64; o.Set(words, n) })
	})
}

// grows claims that four latencies are the paper's, and by how many percent the last is longer than
// the first.
func grows(p *eval.Part, about string, ours []float64, texts []string, percent string) {
	longer := eval.Change(ours[0], ours[3])
	list := []eval.Test{eval.Printed(longer, percent, "%")}
	for i, text := range texts {
		list = append(list, eval.Printed(ours[i], text, "µs"))
	}
	p.Claim(about, eval.All(list...), fmt.Sprintf("%.2f, %.2f, %.2f and %.2f µs, %+.1f %%", ours[0], ours[1], ours[2],
		ours[3], longer), whyArray)
}

func wordTable(s *size, r eval.Results, p *eval.Part) {
	p.Header = []string{"buffers", "B: UPDATEs in a trip", "paper", "GET", "UPDATE in a trip", "UPDATE",
		"A: UPDATEs in a trip", "GET", "UPDATE"}
	for _, n := range s.words {
		about := fmt.Sprintf("words-%d", n)
		b, once := eval.AtOnce(r.Updates("b", n))
		a, _ := eval.AtOnce(r.Updates("a", n))
		p.Rows = append(p.Rows, []eval.Cell{eval.Text("%d", n), eval.Share(b), eval.Share(p.Published(about)),
			eval.FineMicros(r.Gets("b", n).At(0.5)),
			eval.FineMicros(once),
			eval.FineMicros(r.Updates("b", n).At(0.5)), eval.Share(a), eval.FineMicros(r.Gets("a", n).At(0.5)),
			eval.FineMicros(r.Updates("a", n).At(0.5))})
		p.Same(about, b, whyWords)
	}
	var gets, puts, shares []float64
	for _, n := range s.words {
		_, median := eval.AtOnce(r.Updates("b", n))
		once, _ := eval.AtOnce(r.Updates("a", n))
		gets, puts = append(gets, r.Gets("b", n).At(0.5)), append(puts, median)
		shares = append(shares, once)
	}
	grows(p, "words-get", gets, []string{"3.1", "3.2", "3.3", "3.6"}, "16")
	grows(p, "words-put", puts, []string{"3.6", "3.9", "4", "4.3"}, "19")
	p.Claim("words-a", eval.Percents(shares, "2", "11", "39", "99"),
		fmt.Sprintf("%.1f, %.1f, %.1f and %.1f %%", shares[0], shares[1], shares[2], shares[3]), whyWords)
	p.Notes = append(p.Notes, fmt.Sprintf("%d records.", s.crowdKeys))
}
