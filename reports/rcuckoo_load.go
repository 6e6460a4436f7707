package reports

import (
	"fmt"
	"github.com/farkv/farkv/ops/virtual"
)

// rivals are the stores of Figure 6 that there are here, each on one memory node.
var rivals = []system{{store: "rcuckoo", name: "RCuckoo"}, {store: "fusee", name: "FUSEE"},
	{store: "fusee-nc", name: "FUSEE-NC"}}

var readMixes = []string{"c", "b", "a"}

func rcuckooLoadCases(s *rcuckooSize) (list []trial) {
	for _, mix := range readMixes {
		for _, x := range rivals {
			for _, n := range s.clients {
				list = append(list, s.trial(x.store, mix, key(x.store, mix, n),
					func(o *virtual.Simulation) { o.Clients = n }))
			}
		}
	}
	for _, n := range s.clients {
		list = append(list, s.trial("rcuckoo", "a", key("wide", n), func(o *virtual.Simulation) {
			o.Clients, o.Hardware = n, []string{"NodeMops=0"}
		}))
	}
	return list
}

func rcuckooLoadTable(s *rcuckooSize, r results, p *Part) {
	var g grid[int]
	for _, mix := range readMixes {
		for _, x := range rivals {
			g.column(mixName(mix)+": "+x.name, func(n int) Cell { return mops(r[key(x.store, mix, n)].Throughput) })
		}
	}
	g.show(p, "clients", "%d", s.clients)
	last := s.clients[len(s.clients)-1]
	rate := func(store, mix string, n int) float64 { return r[key(store, mix, n)].Throughput }
	over := func(mix string) (f, nc float64) {
		own := rate("rcuckoo", mix, last)
		return own / rate("fusee", mix, last), own / rate("fusee-nc", mix, last)
	}
	whyCached := unknown("FUSEE's clients know where most of so few records are, and read pair and slot in one trip.")
	f, nc := over("c")
	p.claim("load-c", all(more(f, 1), more(nc, 1.5)),
		fmt.Sprintf("%.2f times FUSEE's with %d clients, %.2f times that of one without index cache, which takes two "+
			"trips for each read, as the paper has it", f, last, nc), whyCached)
	f, nc = over("b")
	p.claim("load-b", all(more(f, 1), more(nc, 1), less(max(f, nc), 2.55)),
		fmt.Sprintf("%.2f times FUSEE's, %.2f times that of FUSEE-NC", f, nc), whyCached)
	f, nc = over("a")
	p.claim("load-a", inside(f, 0.8, 1.2), fmt.Sprintf("%.2f times FUSEE's, %.2f times that of FUSEE-NC", f, nc),
		unknown(""))
	peak := func(parts ...any) (at int) {
		most := 0.0
		for _, n := range s.clients {
			if rate := r[key(append(parts, n)...)].Throughput; rate > most {
				most, at = rate, n
			}
		}
		return at
	}
	p.claim("load-scales", is(peak("rcuckoo", "a") == last), fmt.Sprintf("its peak is with %d", peak("rcuckoo", "a")),
		because("with a NIC of the node that has no limit of messages",
			fmt.Sprintf("its peak is with %d", peak("wide")),
			is(peak("wide") == last)).and("An UPDATE takes %.1f verbs.",
			r.updates("rcuckoo", "a", s.clients[0]).Cost.Verbs()))
	get, _ := atOnce(r.gets("rcuckoo", "c", last))
	p.claim("load-get", is(get > 99.9), fmt.Sprintf("%.1f %% of them", get), unknown(""))
	p.twoTrips("load-update", r.updates("rcuckoo", "a", s.clients[0]))
	for _, mix := range readMixes {
		p.Notes = append(p.Notes, fmt.Sprintf("Busiest under %s with %d clients: %s (RCuckoo), %s (FUSEE).",
			mixName(mix), last, limit(r[key("rcuckoo", mix, last)]), limit(r[key("fusee", mix, last)])))
	}
	p.Notes = append(p.Notes,
		fmt.Sprintf("A table of %d entries, %d %% full; each client of FUSEE has an index cache of %d KB.", s.table,
			paperFull, fuseeCache>>10))
}
