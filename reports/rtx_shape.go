package reports

import (
	"fmt"
	"slices"

	"github.com/farkv/farkv/ops"
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

func (m mixture) String() string { return fmt.Sprintf("%s, %s", mixName(m.mix), m.how) }

// rtxMixes are the paper's (Table 1, Figure 11). D reads what was inserted last, and nothing else.
var rtxMixes = []mixture{
	{"a", evenly}, {"a", skewed}, {"b", evenly}, {"b", skewed}, {"c", evenly}, {"c", skewed}, {"d", newest}, {"e", evenly}, {"e", skewed},
}

// peaks are trials of one implementation with each number of operations in flight.
func (s *rtxSize) peaks(x implementation, m mixture, name string, differ func(*ops.Simulation)) (list []trial) {
	for _, n := range s.flights {
		list = append(list, s.trial(x, m.mix, key(name, m, n), func(o *ops.Simulation) {
			o.InFlight, o.Properties = n, append(o.Properties, "requestdistribution="+m.how)
			if differ != nil {
				differ(o)
			}
		}))
	}
	return list
}

// peak is the fastest of them.
func (s *rtxSize) peak(r results, name string, m mixture) *simulate.Result {
	var all []*simulate.Result
	for _, n := range s.flights {
		all = append(all, r[key(name, m, n)])
	}
	return slices.MaxFunc(all, func(a, b *simulate.Result) int {
		if a.Throughput < b.Throughput {
			return -1
		}
		return 1
	})
}

// fastWords is a NIC whose atomics on one word are as fast as those on many.
const fastWords = "AtomicWordMops=100"

func treeCases(s *rtxSize) (list []trial) {
	for _, m := range rtxMixes {
		for _, x := range append(slices.Clone(rtxTrees), remembering) {
			list = append(list, s.peaks(x, m, x.name, nil)...)
		}
	}
	for _, mix := range []string{"a", "b"} {
		for _, x := range rtxTrees {
			m := mixture{mix, skewed}
			list = append(list, s.peaks(x, m, "fast "+x.name, func(o *ops.Simulation) { o.Hardware = []string{fastWords} })...)
		}
	}
	return list
}

func treeTable(s *rtxSize, r results, p *Part) {
	of := func(name string, m mixture) float64 { return s.peak(r, name, m).Throughput }
	part := func(name, by string, m mixture) float64 { return 100 * of(name, m) / of(by, m) }
	var g grid[mixture]
	for _, x := range rtxTrees {
		g.column(x.name, func(m mixture) Cell { return mops(of(x.name, m)) })
	}
	g.column("rTX by Optimal", func(m mixture) Cell { return share(part(rtxName, optimal, m)) })
	if len(rtxTrees) == 3 {
		g.column("rTX by DTX", func(m mixture) Cell { return share(part(rtxName, dtxName, m)) })
	}
	g.column("Optimal: most in use", func(m mixture) Cell { return say("%s", limit(s.peak(r, optimal, m))) })
	g.column("rTX: most in use", func(m mixture) Cell { return say("%s", limit(s.peak(r, rtxName, m))) })
	g.column(remembering.name, func(m mixture) Cell { return mops(of(remembering.name, m)) })
	g.show(p, "", "%v", rtxMixes)
	for _, m := range rtxMixes[:7] {
		p.same(key("trees-"+m.mix, m.how), part(rtxName, optimal, m), unknown(""))
	}
}

func tableCases(s *rtxSize) (list []trial)            { return nil }
func tableTable(s *rtxSize, r results, p *Part)       {}
func treeLatencyCases(s *rtxSize) (list []trial)      { return nil }
func treeLatencyTable(s *rtxSize, r results, p *Part) {}
