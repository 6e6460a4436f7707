package reports

import (
	"fmt"
	"math"

	"github.com/farkv/farkv/ops"
)

// whyLocks tells what a small table does to those who lock.
func (s *rcuckooSize) whyLocks() string {
	return fmt.Sprintf("%d clients meet at the %d locks of a table of %d entries more often than at the paper's, of 100 million.", paperCrowd,
		s.table/paperRow/paperLocked, s.table)
}

// rivals are the stores of Figure 6 that there are here, each on one memory node.
var rivals = []system{{store: "rcuckoo", name: "RCuckoo"}, {store: "fusee", name: "FUSEE"}, {store: "fusee-nc", name: "FUSEE-NC"}}

var readMixes = []string{"c", "b", "a"}

func rcuckooLoadCases(s *rcuckooSize) (list []trial) {
	for _, mix := range readMixes {
		for _, x := range rivals {
			for _, n := range s.clients {
				list = append(list, s.trial(x.store, mix, key(x.store, mix, n), func(o *ops.Simulation) { o.Clients = n }))
			}
		}
	}
	return list
}

func rcuckooLoadTable(s *rcuckooSize, r results, p *Part) {
	p.Header = []string{"clients"}
	for _, mix := range readMixes {
		for _, x := range rivals {
			p.Header = append(p.Header, mixName(mix)+": "+x.name)
		}
	}
	for _, n := range s.clients {
		row := []Cell{say("%d", n)}
		for _, mix := range readMixes {
			for _, x := range rivals {
				row = append(row, mops(r[key(x.store, mix, n)].Throughput))
			}
		}
		p.Rows = append(p.Rows, row)
	}
	last := s.clients[len(s.clients)-1]
	rate := func(store, mix string, n int) float64 { return r[key(store, mix, n)].Throughput }
	over := func(mix string) (f, nc float64) {
		own := rate("rcuckoo", mix, last)
		return own / rate("fusee", mix, last), own / rate("fusee-nc", mix, last)
	}
	const whyCached = "FUSEE's clients know where most of so few records are, and read pair and slot in one trip."
	f, nc := over("c")
	p.claim("load-c", f > 1 && nc > 1.5, fmt.Sprintf("%.2f times FUSEE's with %d clients, %.2f times that of one without index cache, which takes two trips for each read, as the"+
		" paper has it", f, last, nc), whyCached)
	f, nc = over("b")
	p.claim("load-b", f > 1 && nc > 1 && nc < 2.75, fmt.Sprintf("%.2f times FUSEE's, %.2f times that of FUSEE-NC", f, nc), whyCached+" "+s.whyLocks())
	f, nc = over("a")
	p.claim("load-a", math.Abs(f-1) < 0.2, fmt.Sprintf("%.2f times FUSEE's, %.2f times that of FUSEE-NC", f, nc), s.whyLocks())
	peak := 0
	for _, n := range s.clients {
		if peak == 0 || rate("rcuckoo", "a", n) > rate("rcuckoo", "a", peak) {
			peak = n
		}
	}
	c := r.updates("rcuckoo", "a", s.clients[0]).Cost
	p.claim("load-scales", peak == last, fmt.Sprintf("its peak is with %d", peak), fmt.Sprintf("An UPDATE takes %.1f verbs, where the paper's has 4 or 5: an intent ahead of the locks, a redo ahead of the row, and the"+
		" intent's end. So the node's NIC, of 75 million messages a second, is the limit (%s).", c.Verbs(), limit(r[key("rcuckoo", "a", last)])))
	get, _ := atOnce(r.gets("rcuckoo", "c", last))
	p.claim("load-get", get > 99.9, fmt.Sprintf("%.1f %% of them", get), "The others met rows that were being written.")
	u := r.updates("rcuckoo", "a", s.clients[0])
	p.claim("load-update", u.TripsAt(0.5) == 3, fmt.Sprintf("%d latencies, of which one is the fence's, for %.1f %% of them with %d clients", u.TripsAt(0.5), 100*u.ByTrips[3], s.clients[0]), "The others met somebody, or have locks in two words.")
	for _, mix := range readMixes {
		p.Notes = append(p.Notes, fmt.Sprintf("Busiest under %s with %d clients: %s (RCuckoo), %s (FUSEE).", mixName(mix), last, limit(r[key("rcuckoo", mix, last)]), limit(r[key("fusee", mix, last)])))
	}
	p.Notes = append(p.Notes, fmt.Sprintf("A table of %d entries, %d %% full; each client of FUSEE has an index cache of %d KB.", s.table, paperFull, fuseeCache>>10))
}
