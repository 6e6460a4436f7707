package reports

import "github.com/farkv/farkv/ops"

// mixtures are YCSB's, with the distributions that the paper gives each (Table 1, Figure 11). D reads the latest.
var mixtures = []string{"a", "b", "c", "d", "e"}

// The distributions of requests.
const (
	evenly = "uniform"
	skewed = "zipfian"
)

func treeCases(s *rtxSize) (list []trial) {
	for _, x := range rtxTrees {
		for _, mix := range mixtures {
			list = append(list, s.trial(x.store, mix, key(x.store, mix, evenly), uniform))
			if mix != "d" {
				list = append(list, s.trial(x.store, mix, key(x.store, mix, skewed), func(*ops.Simulation) {}))
			}
		}
	}
	return list
}

func treeTable(s *rtxSize, r results, p *Part) {
	var g grid[string]
	for _, x := range rtxTrees {
		g.column(x.name+" uniform", func(mix string) Cell { return mops(r[key(x.store, mix, evenly)].Throughput) })
		g.column(x.name+" zipfian", func(mix string) Cell {
			if mix == "d" {
				return say("")
			}
			return mops(r[key(x.store, mix, skewed)].Throughput)
		})
	}
	g.show(p, "YCSB", "%s", mixtures)
	of := func(mix, how string) float64 {
		return 100 * r[key("sherman-rtx", mix, how)].Throughput / r[key("sherman", mix, how)].Throughput
	}
	p.same("trees-a", of("a", evenly), unknown(""))
}
