package reports

import (
	"fmt"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/ops/virtual"
)

// Of the figure, in percent of the table.
const (
	localityFrom = 85
	localityTo   = 95
)

func localityCases(s *rcuckooSize) []trial {
	return each(hashings, s.grains, func(h hashing, rows int) trial {
		return s.trial("rcuckoo", "w", key(h.name, rows), func(o *virtual.Simulation) {
			o.Clients, o.Records, o.Ops, o.WarmUp = 8, s.smaller*localityFrom/100,
				s.smaller*(localityTo-localityFrom)/100, 0
			o.Own = o.Own.With(stores.Values{tableRows: int(s.smaller) / paperRow, "f": h.f, rowsPerLock: rows})
		})
	})
}

func localityTable(s *rcuckooSize, r results, p *Part) {
	trips := func(name string, rows int, part float64) float64 {
		return lockTrips(r[key(name, rows)].Call("INSERT"), part)
	}
	var g grid[int]
	for _, h := range hashings {
		g.column(h.name+": p50", func(rows int) Cell { return say("%.0f", trips(h.name, rows, 0.5)) })
		g.column("p99", func(rows int) Cell { return say("%.0f", trips(h.name, rows, 0.99)) })
		g.column("mean", func(rows int) Cell { return count("%.2f", r[key(h.name, rows)].Call("INSERT").Trips-2) })
		g.column("Mops", func(rows int) Cell { return mops(r[key(h.name, rows)].Throughput) })
		g.column("no path", func(rows int) Cell { return noPath(r[key(h.name, rows)]) })
	}
	g.show(p, "rows a lock", "%d", s.grains)
	near, far := hashings[0].name, hashings[1].name
	ours := func(part float64) (a, b float64) {
		return trips(near, paperLocked, part), trips(far, paperLocked, part)
	}
	a, b := ours(0.99)
	p.claim("locality-p99", more(b, 5*a), fmt.Sprintf("%.0f against %.0f with %d rows a lock", a, b, paperLocked),
		unknown("Both search breadth first here, the paper's other one searches depth first."))
	a, b = ours(0.5)
	p.claim("locality-p50", less(b, 3*a), fmt.Sprintf("%.0f against %.0f", a, b), unknown(""))
	p.Notes = append(p.Notes,
		fmt.Sprintf("A table of %d entries, the paper's has 100 million; trips to get the locks, without those of "+
			"the fence and of writing the rows. No path: INSERTs that failed, at a fill that dependent hashing "+
			"hardly reaches (see fill).", s.smaller))
}
