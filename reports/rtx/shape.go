package rtx

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/ops/virtual"
	"github.com/farkv/farkv/reports/eval"
	"github.com/farkv/farkv/workloads/simulate"
)

// The distributions of requests.
const (
	evenly = "uniform"
	skewed = "zipfian"
	newest = "latest"
)

// mixture is a mix of YCSB's with a distribution of requests.
type mixture struct{ mix, how string }

func (m mixture) String() string { return fmt.Sprintf("%s, %s", eval.MixName(m.mix), m.how) }

// rtxMixes are the paper's (Table 1, Figure 11). D reads what was inserted last, and nothing else.
var rtxMixes = []mixture{
	{"a", evenly}, {"a", skewed}, {"b", evenly}, {"b", skewed}, {"c", evenly}, {"c", skewed}, {"d", newest},
	{"e", evenly}, {"e", skewed},
}

// load is how many clients there are, and how many operations each has in flight.
type load struct{ clients, inFlight int }

// loads are those among which a mixture has its peak. Where many clients want the same locks that
// is with fewer of them.
func (s *size) loads(m mixture) (list []load) {
	for _, n := range s.flights {
		list = append(list, load{rtxNodes * rtxThreads, n})
	}
	if m.how == skewed && (m.mix == "a" || m.mix == "b") {
		list = append(list, load{rtxNodes * rtxThreads / 3, 1})
	}
	return list
}

// peaks are trials of one implementation with each load.
func (s *size) peaks(x implementation, m mixture, name string, differ func(*virtual.Simulation)) (list []eval.Trial) {
	for _, n := range s.loads(m) {
		list = append(list, s.trial(x, m.mix, eval.Key(name, m, n), func(o *virtual.Simulation) {
			o.Clients, o.InFlight, o.Properties = n.clients, n.inFlight,
				append(o.Properties, "requestdistribution="+m.how)
			if differ != nil {
				differ(o)
			}
		}))
	}
	return list
}

// peak is the fastest of them.
func (s *size) peak(r eval.Results, name string, m mixture) *simulate.Result {
	var all []*simulate.Result
	for _, n := range s.loads(m) {
		all = append(all, r[eval.Key(name, m, n)])
	}
	return slices.MaxFunc(all, func(a, b *simulate.Result) int {
		return cmp.Compare(settled(a), settled(b))
	})
}

// fastWords is a NIC with atomics on one word as fast as on many.
const fastWords = "AtomicWordMops=100"

// wideKeys makes a leaf of rTX's hold as many pairs as one of the original's. The original has two
// versions in each entry, which is room for 6 B more of a key here.
func wideKeys(o *virtual.Simulation) { o.Set("key-bytes", 14) }

func fastAtomics(o *virtual.Simulation) { o.Hardware = []string{fastWords} }

func treeCases(s *size) (list []eval.Trial) {
	for _, m := range rtxMixes {
		for _, x := range rtxTrees {
			list = append(list, s.peaks(x, m, x.name, nil)...)
			if m.how == skewed && (m.mix == "a" || m.mix == "b") {
				list = append(list, s.peaks(x, m, eval.Key("fast", x.name), fastAtomics)...)
			}
		}
		if m.mix == "e" {
			list = append(list, s.peaks(rtxTrees[2], m, "wide", wideKeys)...)
		}
	}
	return list
}

func treeTable(s *size, r eval.Results, p *eval.Part) {
	of := func(name string, m mixture) float64 { return settled(s.peak(r, name, m)) }
	part := func(name, by string, m mixture) float64 { return 100 * of(name, m) / of(by, m) }
	var g eval.Grid[mixture]
	for _, x := range rtxTrees {
		g.Column(x.name, func(m mixture) eval.Cell { return eval.Mops(of(x.name, m)) })
	}
	g.Column("rTX by Optimal", func(m mixture) eval.Cell { return eval.Share(part(rtxName, optimal, m)) })
	g.Column("rTX by DTX", func(m mixture) eval.Cell { return eval.Share(part(rtxName, dtxName, m)) })
	g.Column("Optimal: most in use",
		func(m mixture) eval.Cell { return eval.Text("%s", eval.Busiest(s.peak(r, optimal, m))) })
	g.Column("rTX: most in use",
		func(m mixture) eval.Cell { return eval.Text("%s", eval.Busiest(s.peak(r, rtxName, m))) })
	g.Column("with clients", func(m mixture) eval.Cell { return eval.Text("%d", s.peak(r, rtxName, m).Clients) })
	g.Show(p, "", "%v", rtxMixes)
	for _, m := range rtxMixes {
		claimTree(p, s, r, m)
	}
	same := func(m mixture) float64 { return of(rtxName, m) / of(dtxName, m) }
	a, b := mixture{"a", skewed}, mixture{"b", skewed}
	quick := func(m mixture) float64 { return of(eval.Key("fast", rtxName), m) / of(eval.Key("fast", dtxName), m) }
	p.Claim("trees-dtx", eval.All(eval.Inside(same(a), 1.2, 2), eval.Inside(same(b), 1.2, 2)),
		fmt.Sprintf("%.2f and %.2f times", same(a), same(b)),
		eval.Because("with atomics on one word as fast as on many",
			fmt.Sprintf("%.2f and %.2f times", quick(a), quick(b)),
			eval.All(eval.Inside(quick(a), 1.2, 2), eval.Inside(quick(b), 1.2, 2))))
	p.Same("trees-dtx-reads", eval.Change(of(dtxName, mixture{"c", evenly}), of(rtxName, mixture{"c", evenly})),
		whyPackets)
	best := part(rtxName, optimal, mixture{"c", evenly})
	others := 0.0
	for _, m := range rtxMixes[:4] {
		others = max(others, part(rtxName, optimal, m))
	}
	p.Claim("trees-best", eval.More(best, others), fmt.Sprintf("%.1f %% under C, %.1f %% under A or B at most", best,
		others), eval.Unknown(""))
	_, busiest := s.peak(r, rtxName, mixture{"c", evenly}).Busiest()
	p.Claim("trees-link", eval.All(eval.Is(busiest.Name == "link out"), eval.More(busiest.Busy, 0.85)),
		eval.Busiest(s.peak(r, rtxName, mixture{"c", evenly})), eval.Unknown(""))
}

var whyPackets = eval.Unknown("A READ's answer has 30 B of headers, so that one of 16 B takes as much of the link as " +
	"46 B.")

// claimTree claims that rTX does what part of the original's throughput the paper says.
func claimTree(p *eval.Part, s *size, r eval.Results, m mixture) {
	ratio := func(rtx, original string) float64 {
		return 100 * settled(s.peak(r, rtx, m)) / settled(s.peak(r, original, m))
	}
	cost := func(name string) *simulate.Cost { return s.peak(r, name, m).Call("TOTAL").Cost }
	bytes := fmt.Sprintf("An operation READs %.0f B in %.1f verbs of %.1f, and %.0f B in %.1f of %.1f in the original.",
		cost(rtxName).BytesRead,
		cost(rtxName).Reads, cost(rtxName).Verbs(), cost(optimal).BytesRead, cost(optimal).Reads, cost(optimal).Verbs())
	why := eval.Unknown("%s", bytes)
	about := aboutOf("trees", m.mix, m.how)
	printedHere := p.Figure(about).Printed
	switch {
	case m.mix == "e":
		again := ratio("wide", optimal)
		why = eval.Because("with as many pairs in a leaf as the original's, 40 instead of 52",
			fmt.Sprintf("%.1f %%", again),
			eval.Printed(again, printedHere, "%")).And("%s", bytes)
	case m.how == skewed && m.mix != "c":
		again := ratio(eval.Key("fast", rtxName), eval.Key("fast", optimal))
		why = eval.Because("with atomics on one word as fast as on many", fmt.Sprintf("%.1f %%", again),
			eval.Printed(again, printedHere, "%")).And("%s", bytes)
	}
	p.Same(about, ratio(rtxName, optimal), why)
}

// rtxChoices are what trees here do unless told otherwise, beside what the paper's do.
var (
	rtxChoices = []implementation{
		rtxTrees[1], {name: "DTX, remembering", store: "sherman-dtx"},
		rtxTrees[2], {name: "rTX, remembering", store: "sherman-rtx"},
	}
	choiceMixes = []mixture{{"a", evenly}, {"a", skewed}, {"c", evenly}}
)

func choiceCases(s *size) (list []eval.Trial) {
	for _, m := range choiceMixes {
		for _, x := range rtxChoices {
			list = append(list, s.peaks(x, m, x.name, nil)...)
		}
	}
	return list
}

func choiceTable(s *size, r eval.Results, p *eval.Part) {
	var g eval.Grid[mixture]
	for _, x := range rtxChoices {
		g.Column(x.name, func(m mixture) eval.Cell { return eval.Mops(settled(s.peak(r, x.name, m))) })
		g.Column("READ bytes", func(m mixture) eval.Cell {
			return eval.Count("%.0f", s.peak(r, x.name, m).Call("TOTAL").Cost.BytesRead)
		})
	}
	g.Show(p, "", "%v", choiceMixes)
	p.Notes = append(p.Notes, "A worker that remembers the metadata of a leaf reads it, or locks it, in one trip. "+
		"When another client has changed it since, rTX has read a node in vain.")
}

// tableMixes are those for hash tables, which do not scan.
var tableMixes = rtxMixes[:7]

// A GET of RACE's, as its verbs alone: buckets and pair, with and without the look at lock and
// pointer of the subtable.
var (
	readBuckets = []simulate.BareVerb{bare(rdma.Read, simulate.OfData, 168), bare(rdma.Read, simulate.OfData, 168)}
	readPair    = bare(rdma.Read, simulate.OfLog, 64)
	bareGet     = []trip{readBuckets, {readPair}}
	bareLooking = []trip{readBuckets, {readPair, readMeta}}
)

// The names of their trials, with as many clients as reach their peak.
const (
	blind   = "blind"
	looking = "looking"
	bareTop = 2 * rtxNodes * rtxThreads
)

func tableCases(s *size) (list []eval.Trial) {
	for _, m := range tableMixes {
		for _, x := range rtxTables {
			list = append(list, s.peaks(x, m, x.name, nil)...)
		}
	}
	return append(list, s.program(blind, bareGet, bareTop), s.program(looking, bareLooking, bareTop))
}

// program is a trial of verbs alone, of so many clients.
func (s *size) program(name string, trips []trip, clients int) eval.Trial {
	return eval.Trial{Name: eval.Key(name, clients), Compute: func(ctx context.Context) (any, error) {
		return simulate.Program{Profile: "rtx-testbed", Trips: trips, Objects: int(s.records) / 40, Clients: clients,
			Duration: min(s.during, 2*time.Millisecond), Seed: s.seed}.Run(ctx)
	}}
}

func tableTable(s *size, r eval.Results, p *eval.Part) {
	of := func(name string, m mixture) float64 { return settled(s.peak(r, name, m)) }
	verbs := func(name string, m mixture) float64 { return s.peak(r, name, m).Call("TOTAL").Cost.Verbs() }
	var g eval.Grid[mixture]
	for _, x := range rtxTables {
		g.Column(x.name, func(m mixture) eval.Cell { return eval.Mops(of(x.name, m)) })
		g.Column("verbs", func(m mixture) eval.Cell { return eval.Count("%.2f", verbs(x.name, m)) })
	}
	part := func(m mixture) float64 { return 100 * of(rtxName, m) / of(optimal, m) }
	g.Column("rTX by Optimal", func(m mixture) eval.Cell { return eval.Share(part(m)) })
	g.Column("Optimal: most in use",
		func(m mixture) eval.Cell { return eval.Text("%s", eval.Busiest(s.peak(r, optimal, m))) })
	g.Column("rTX: most in use",
		func(m mixture) eval.Cell { return eval.Text("%s", eval.Busiest(s.peak(r, rtxName, m))) })
	g.Show(p, "", "%v", tableMixes)
	c := mixture{"c", evenly}
	more, update := verbs(rtxName, c)-verbs(optimal, c),
		s.peak(r, rtxName, mixture{"a", evenly}).Call("UPDATE").Cost.Verbs()
	p.Claim("tables-reads", eval.Is(math.Abs(more-2) < 0.2), fmt.Sprintf("%.2f more under C, as all three look", more),
		eval.Because("for an UPDATE beside one that does not look, which takes 5 verbs (a GET needs one look, see "+
			"RACE's README)", fmt.Sprintf("%.2f verbs", update), eval.Is(math.Abs(update-7) < 0.2)))
	again := 100 * eval.Computed[*simulate.Ran](p, looking, bareTop).Throughput / eval.Computed[*simulate.Ran](p, blind,
		bareTop).Throughput
	p.Claim("tables-rate", eval.Less(part(c), 95), fmt.Sprintf("%.1f %% of the original's under C, which looks, too",
		part(c)), eval.Because("for the verbs of a GET alone, with and without one look", fmt.Sprintf("%.1f %%", again),
		eval.Less(again, 95)))
	_, busiest := s.peak(r, optimal, c).Busiest()
	p.Claim("tables-small", eval.Is(busiest.Name == "NIC"), eval.Busiest(s.peak(r, optimal, c)), eval.Unknown(""))
}

func treeLatencyCases(s *size) (list []eval.Trial) {
	for _, how := range []string{evenly, skewed} {
		for _, x := range rtxTrees {
			for _, n := range s.crowds {
				list = append(list, s.trial(x, "a", eval.Key(x.name, how, n), func(o *virtual.Simulation) {
					o.Clients, o.Properties = n, append(o.Properties, "requestdistribution="+how)
					if n == 1 {
						o.Duration *= 5 // a client alone does little
					}
				}))
			}
		}
	}
	return list
}

func treeLatencyTable(s *size, r eval.Results, p *eval.Part) {
	mean := func(name, how string, n int) float64 { return r.All(name, how, n).Latency.Mean }
	var g eval.Grid[int]
	for _, how := range []string{evenly, skewed} {
		for _, x := range rtxTrees {
			g.Column(x.name+", "+how, func(n int) eval.Cell { return eval.Mops(settled(r[eval.Key(x.name, how, n)])) })
			g.Column("mean", func(n int) eval.Cell { return eval.FineMicros(mean(x.name, how, n)) })
		}
	}
	g.Show(p, "clients", "%d", s.crowds)
	median := func(name, call string) float64 { return r[eval.Key(name, evenly, 1)].Call(call).At(0.5) }
	var ours, dtx []eval.Test
	var oursText, dtxText []string
	lower := 0
	for _, how := range []string{evenly, skewed} {
		times, by := mean(rtxName, how, 1)/mean(optimal, how, 1), mean(rtxName, how, 1)/mean(dtxName, how, 1)
		ours, dtx = append(ours, eval.Inside(times, 1.6, 2)), append(dtx, eval.Inside(by, 0.85, 1.15))
		oursText, dtxText = append(oursText, fmt.Sprintf("%.2f", times)), append(dtxText, fmt.Sprintf("%.2f", by))
		for _, n := range s.crowds {
			if mean(rtxName, how, n) < max(mean(optimal, how, n), mean(dtxName, how, n)) {
				lower++
			}
		}
	}
	medians := fmt.Sprintf("Median GET and UPDATE of one client: %.2f and %.2f µs, of the original %.2f and %.2f, of "+
		"DTX %.2f and %.2f.", median(rtxName, "READ"),
		median(rtxName, "UPDATE"), median(optimal, "READ"), median(optimal, "UPDATE"), median(dtxName, "READ"),
		median(dtxName, "UPDATE"))
	p.Claim("latency-one", eval.All(ours...), strings.Join(oursText, " and ")+" times, uniform and skewed",
		eval.Unknown("%s", medians))
	p.Claim("latency-dtx", eval.All(dtx...), strings.Join(dtxText, " and ")+" times DTX's with one client",
		eval.Unknown("%s A READ of DTX's takes one trip, and rTX's two.", medians))
	p.Claim("latency-higher", eval.Is(lower == 0), fmt.Sprintf("with %d of %d numbers of clients it is not the highest",
		lower, 2*len(s.crowds)), eval.Unknown(""))
}
