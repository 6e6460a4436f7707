package reports

import (
	"context"
	"fmt"
	"slices"
)

const (
	paperFactor = 2.3     // f (section 3.3)
	independent = 1 << 20 // an f by which a key's second row lies anywhere
	fullPercent = 95      // of the entries, to which Figures 4 and 5 fill their tables
	paperRow    = 8       // entries
)

// within returns the part of what was counted that is no more than a limit.
func within(counts []int, limit int) float64 {
	all, in := 0, 0
	for i, n := range counts {
		if all += n; i <= limit {
			in += n
		}
	}
	return float64(in) / float64(all)
}

func distanceCases(s *rcuckooSize) (list []trial) {
	for _, f := range s.factors {
		list = append(list, trial{name: key(f),
			compute: func(context.Context) (any, error) { return distances(f, s.rows, s.keys, s.seed) }})
	}
	return list
}

func distanceTable(s *rcuckooSize, _ results, p *Part) {
	var g grid[int]
	for _, f := range s.factors {
		g.column(fmt.Sprintf("f = %g", f), func(d int) Cell { return share(100 * within(computed[[]int](p, f), d)) })
	}
	g.show(p, "rows apart", "%d or fewer", []int{0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000})
	n := computed[[]int](p, paperFactor)
	p.same("distances-5", 100*within(n, 5),
		unknown("As printed the formula puts half of the keys 0 to 5 rows apart, 6 in 15 of a quarter, 6 in 35 of an "+
			"eighth, and so on: 62.8 %%, whatever the table."))
	p.Notes = append(p.Notes,
		fmt.Sprintf("%d keys, %d rows. Rows that are 0 or 1 apart are read by one covering READ: %.0f %% of the keys "+
			"with f = %g.", s.keys, s.rows, 100*within(n, 1), paperFactor))
}

func fillCases(s *rcuckooSize) (list []trial) {
	add := func(f float64, entries, rows int) {
		list = append(list, trial{name: key(f, entries, rows), compute: func(context.Context) (any, error) {
			sum := 0.0
			for i := range s.fills {
				fill, err := maxFill(f, entries, rows, s.seed+uint64(i))
				if err != nil {
					return nil, err
				}
				sum += fill
			}
			return 100 * sum / float64(s.fills), nil
		}})
	}
	for _, rows := range slices.Backward(s.tables) { // what takes longest begins first
		for _, f := range s.factors {
			add(f, paperRow, rows)
		}
		add(paperFactor, paperRow/2, rows)
	}
	return list
}

func fillTable(s *rcuckooSize, _ results, p *Part) {
	p.Header = []string{"f"}
	for _, rows := range s.tables {
		p.Header = append(p.Header, fmt.Sprintf("%d rows", rows))
	}
	line := func(title string, f float64, entries int) {
		row := []Cell{say("%s", title)}
		for _, rows := range s.tables {
			row = append(row, share(computed[float64](p, f, entries, rows)))
		}
		p.Rows = append(p.Rows, row)
	}
	for _, f := range s.factors {
		line(fmt.Sprintf("%g", f), f, paperRow)
	}
	line(fmt.Sprintf("%g, rows of %d", paperFactor, paperRow/2), paperFactor, paperRow/2)
	text := ""
	var full []test
	for _, rows := range s.tables {
		got := computed[float64](p, paperFactor, paperRow, rows)
		full = append(full, is(got > 95))
		text += fmt.Sprintf(", %.1f %% of %d rows", got, rows)
	}
	small := s.tables[0]
	p.claim("fill-most", all(full...), text[2:],
		because(fmt.Sprintf("of %d rows alone", small),
			fmt.Sprintf("%.1f %%", computed[float64](p, paperFactor, paperRow, small)),
			full[0]).and("The paper does not say how large its tables were."))
	var rises []test
	for _, rows := range s.tables {
		for i := range s.factors[1:] {
			rises = append(rises, is(computed[float64](p, s.factors[i], paperRow, rows) < computed[float64](p,
				s.factors[i+1], paperRow, rows)))
		}
	}
	low, high := s.factors[0], s.factors[len(s.factors)-1]
	rows := s.tables[len(s.tables)-1]
	p.claim("fill-rises", all(rises...), fmt.Sprintf("from %.1f %% with f = %g to %.1f %% with f = %g, of %d rows",
		computed[float64](p, low, paperRow, rows), low,
		computed[float64](p, high, paperRow, rows), high, rows), unknown(""))
	p.Notes = append(p.Notes,
		fmt.Sprintf("Rows of %d entries unless it says otherwise; the mean of %d tables of random keys.", paperRow,
			s.fills))
}

// spread is what inserts spanned, as spans counts it.
type spread struct {
	counts []int
	failed int
}

// hashing is a way to choose a key's second row, by its f.
type hashing struct {
	name string
	f    float64
}

var hashings = []hashing{{"dependent", paperFactor}, {"independent", independent}}

func spanCases(s *rcuckooSize) (list []trial) {
	for _, h := range hashings {
		list = append(list, trial{name: h.name, compute: func(context.Context) (any, error) {
			return spans(h.f, paperRow, s.rows, fullPercent/100.0, s.seed)
		}})
	}
	return list
}

func spanTable(s *rcuckooSize, _ results, p *Part) {
	p.Header = []string{"rows spanned"}
	for _, h := range hashings {
		p.Header = append(p.Header, h.name, "of those that move")
	}
	near, far := computed[spread](p, "dependent").counts, computed[spread](p, "independent").counts
	moving := func(counts []int, limit int) float64 {
		still := within(counts, 0)
		return (within(counts, limit) - still) / (1 - still)
	}
	for _, d := range []int{0, 1, 8, 32, 64, 128, 256, 512, 1024, 2048} {
		p.Rows = append(p.Rows, []Cell{say("%d or fewer", d), share(100 * within(near, d)),
			share(100 * moving(near, d)), share(100 * within(far, d)), share(100 * moving(far, d))})
	}
	still := 100 * within(near, 0)
	p.claim("spans-none", inside(still, 50, 60), fmt.Sprintf("%.1f %%", still),
		unknown("A path begins in either of a key's rows here: both are locked and read anyhow, or one key could be "+
			"inserted twice."))
	p.claim("spans-32", is(within(near, 32) >= 0.95), fmt.Sprintf("%.1f %%; of those that move something %.1f %%",
		100*within(near, 32), 100*moving(near, 32)), unknown(""))
	p.claim("spans-256", is(within(near, 256) >= 0.985), fmt.Sprintf("%.1f %%; of those that move something %.1f %%",
		100*within(near, 256), 100*moving(near, 256)), unknown(""))
	const distant = 2048
	p.claim("spans-far", less(moving(far, distant), 0.1),
		fmt.Sprintf("%.1f %% of those that move something span more than %d of %d rows",
			100*(1-moving(far, distant)), distant, s.rows), unknown(""))
	for _, each := range []int{4, 16} {
		p.Notes = append(p.Notes,
			fmt.Sprintf("With %d rows a lock, one masked CAS of 63 locks takes those of %.1f %% of the paths, "+
				"wherever they begin.", each, 100*inOneWord(near, 63*each)))
	}
	p.Notes = append(p.Notes,
		fmt.Sprintf("%d rows. INSERTs that found no path are left out: %d with dependent hashing, %d with independent.",
			s.rows, computed[spread](p, "dependent").failed, computed[spread](p, "independent").failed))
}

// inOneWord returns the part of the spans that lie within the rows of one lock word, were their
// beginnings anywhere.
func inOneWord(counts []int, rows int) float64 {
	all, in := 0.0, 0.0
	for span, n := range counts {
		all += float64(n)
		in += float64(n) * max(0, 1-float64(span)/float64(rows))
	}
	return in / all
}
