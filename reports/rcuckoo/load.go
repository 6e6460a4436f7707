package rcuckoo

import (
	"fmt"

	"github.com/farkv/farkv/ops/virtual"
	"github.com/farkv/farkv/reports/eval"
)

// rivals are the stores of Figure 6 that there are here, each on one memory node.
var rivals = []struct{ store, name string }{{store: "rcuckoo", name: "RCuckoo"}, {store: "fusee", name: "FUSEE"},
	{store: "fusee-nc", name: "FUSEE-NC"}}

var readMixes = []string{"c", "b", "a"}

func loadCases(s *size) (list []eval.Trial) {
	for _, mix := range readMixes {
		for _, x := range rivals {
			for _, n := range s.clients {
				list = append(list, s.trial(x.store, mix, eval.Key(x.store, mix, n),
					func(o *virtual.Simulation) { o.Clients = n }))
			}
		}
	}
	for _, n := range s.clients {
		list = append(list, s.trial("rcuckoo", "a", eval.Key("wide", n), func(o *virtual.Simulation) {
			o.Clients, o.Hardware = n, []string{"NodeMops=0"}
		}))
	}
	return list
}

func loadTable(s *size, r eval.Results, p *eval.Part) {
	var g eval.Grid[int]
	for _, mix := range readMixes {
		for _, x := range rivals {
			g.Column(eval.MixName(mix)+": "+x.name,
				func(n int) eval.Cell { return eval.Mops(r[eval.Key(x.store, mix, n)].Throughput) })
		}
	}
	g.Show(p, "clients", "%d", s.clients)
	last := s.clients[len(s.clients)-1]
	rate := func(store, mix string, n int) float64 { return r[eval.Key(store, mix, n)].Throughput }
	over := func(mix string) (f, nc float64) {
		own := rate("rcuckoo", mix, last)
		return own / rate("fusee", mix, last), own / rate("fusee-nc", mix, last)
	}
	whyCached := eval.Unknown("FUSEE's clients know where most of so few records are, and read pair and slot in one " +
		"trip.")
	f, nc := over("c")
	p.Claim("load-c", eval.All(eval.More(f, 1), eval.More(nc, 1.5)),
		fmt.Sprintf("%.2f times FUSEE's with %d clients, %.2f times that of one without index cache, which takes two "+
			"trips for each read, as the paper has it", f, last, nc), whyCached)
	f, nc = over("b")
	p.Claim("load-b", eval.All(eval.More(f, 1), eval.More(nc, 1), eval.Less(max(f, nc), 2.55)),
		fmt.Sprintf("%.2f times FUSEE's, %.2f times that of FUSEE-NC", f, nc), whyCached)
	f, nc = over("a")
	p.Claim("load-a", eval.Inside(f, 0.8, 1.2), fmt.Sprintf("%.2f times FUSEE's, %.2f times that of FUSEE-NC", f, nc),
		eval.Unknown(""))
	peak := func(parts ...any) (at int) {
		most := 0.0
		for _, n := range s.clients {
			if rate := r[eval.Key(append(parts, n)...)].Throughput; rate > most {
				most, at = rate, n
			}
		}
		return at
	}
	p.Claim("load-scales", eval.Is(peak("rcuckoo", "a") == last),
		fmt.Sprintf("its peak is with %d", peak("rcuckoo", "a")),
		eval.Because("with a NIC of the node that has no limit of messages",
			fmt.Sprintf("its peak is with %d", peak("wide")),
			eval.Is(peak("wide") == last)).And("An UPDATE takes %.1f verbs.",
			r.Updates("rcuckoo", "a", s.clients[0]).Cost.Verbs()))
	get, _ := eval.AtOnce(r.Gets("rcuckoo", "c", last))
	p.Claim("load-get", eval.Is(get > 99.9), fmt.Sprintf("%.1f %% of them", get), eval.Unknown(""))
	twoTrips(p, "load-update", r.Updates("rcuckoo", "a", s.clients[0]))
	for _, mix := range readMixes {
		p.Notes = append(p.Notes, fmt.Sprintf("Busiest under %s with %d clients: %s (RCuckoo), %s (FUSEE).",
			eval.MixName(mix), last, eval.Busiest(r[eval.Key("rcuckoo", mix, last)]),
			eval.Busiest(r[eval.Key("fusee", mix, last)])))
	}
	p.Notes = append(p.Notes,
		fmt.Sprintf("A table of %d entries, %d %% full; each client of FUSEE has an index cache of %d KB.", s.table,
			paperFull, fuseeCache>>10))
}
