package rcuckoo

import (
	"fmt"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/ops/virtual"
	"github.com/farkv/farkv/reports/eval"
)

// Of the figure, in percent of the table.
const (
	localityFrom = 85
	localityTo   = 95
)

func localityCases(s *size) []eval.Trial {
	return eval.Each(hashings, s.grains, func(h hashing, rows int) eval.Trial {
		return s.trial("rcuckoo", "w", eval.Key(h.name, rows), func(o *virtual.Simulation) {
			o.Clients, o.Records, o.Ops, o.WarmUp = 8, s.smaller*localityFrom/100,
				s.smaller*(localityTo-localityFrom)/100, 0
			o.Own = o.Own.With(stores.Values{tableRows: int(s.smaller) / paperRow, "f": h.f, rowsPerLock: rows})
		})
	})
}

func localityTable(s *size, r eval.Results, p *eval.Part) {
	trips := func(name string, rows int, part float64) float64 {
		return lockTrips(r[eval.Key(name, rows)].Call("INSERT"), part)
	}
	var g eval.Grid[int]
	for _, h := range hashings {
		g.Column(h.name+": p50", func(rows int) eval.Cell { return eval.Text("%.0f", trips(h.name, rows, 0.5)) })
		g.Column("p99", func(rows int) eval.Cell { return eval.Text("%.0f", trips(h.name, rows, 0.99)) })
		g.Column("mean",
			func(rows int) eval.Cell { return eval.Count("%.2f", r[eval.Key(h.name, rows)].Call("INSERT").Trips-2) })
		g.Column("Mops", func(rows int) eval.Cell { return eval.Mops(r[eval.Key(h.name, rows)].Throughput) })
		g.Column("no path", func(rows int) eval.Cell { return noPath(r[eval.Key(h.name, rows)]) })
	}
	g.Show(p, "rows a lock", "%d", s.grains)
	near, far := hashings[0].name, hashings[1].name
	ours := func(part float64) (a, b float64) {
		return trips(near, paperLocked, part), trips(far, paperLocked, part)
	}
	a, b := ours(0.99)
	p.Claim("locality-p99", eval.More(b, 5*a), fmt.Sprintf("%.0f against %.0f with %d rows a lock", a, b, paperLocked),
		eval.Unknown("Both search breadth first here, the paper's other one searches depth first."))
	a, b = ours(0.5)
	p.Claim("locality-p50", eval.Less(b, 3*a), fmt.Sprintf("%.0f against %.0f", a, b), eval.Unknown(""))
	p.Notes = append(p.Notes,
		fmt.Sprintf("A table of %d entries, the paper's has 100 million; trips to get the locks, without those of "+
			"the fence and of writing the rows. No path: INSERTs that failed, at a fill that dependent hashing "+
			"hardly reaches (see fill).", s.smaller))
}
