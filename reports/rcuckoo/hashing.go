package rcuckoo

import (
	"context"
	"fmt"
	"slices"

	"github.com/farkv/farkv/reports/eval"
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

func distanceCases(s *size) (list []eval.Trial) {
	for _, f := range s.factors {
		list = append(list, eval.Trial{Name: eval.Key(f),
			Compute: func(context.Context) (any, error) { return distances(f, s.rows, s.keys, s.seed) }})
	}
	return list
}

func distanceTable(s *size, _ eval.Results, p *eval.Part) {
	var g eval.Grid[int]
	for _, f := range s.factors {
		g.Column(fmt.Sprintf("f = %g", f),
			func(d int) eval.Cell { return eval.Share(100 * within(eval.Computed[[]int](p, f), d)) })
	}
	g.Show(p, "rows apart", "%d or fewer", []int{0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 5000})
	n := eval.Computed[[]int](p, paperFactor)
	p.Same("distances-5", 100*within(n, 5),
		eval.Unknown("As printed the formula puts half of the keys 0 to 5 rows apart, 6 in 15 of a quarter, 6 in 35 "+
			"of an eighth, and so on: 62.8 %%, whatever the table."))
	p.Notes = append(p.Notes,
		fmt.Sprintf("%d keys, %d rows. Rows that are 0 or 1 apart are read by one covering READ: %.0f %% of the keys "+
			"with f = %g.", s.keys, s.rows, 100*within(n, 1), paperFactor))
}

func fillCases(s *size) (list []eval.Trial) {
	add := func(f float64, entries, rows int) {
		list = append(list, eval.Trial{Name: eval.Key(f, entries, rows), Compute: func(context.Context) (any, error) {
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

func fillTable(s *size, _ eval.Results, p *eval.Part) {
	p.Header = []string{"f"}
	for _, rows := range s.tables {
		p.Header = append(p.Header, fmt.Sprintf("%d rows", rows))
	}
	line := func(title string, f float64, entries int) {
		row := []eval.Cell{eval.Text("%s", title)}
		for _, rows := range s.tables {
			row = append(row, eval.Share(eval.Computed[float64](p, f, entries, rows)))
		}
		p.Rows = append(p.Rows, row)
	}
	for _, f := range s.factors {
		line(fmt.Sprintf("%g", f), f, paperRow)
	}
	line(fmt.Sprintf("%g, rows of %d", paperFactor, paperRow/2), paperFactor, paperRow/2)
	text := ""
	var full []eval.Test
	for _, rows := range s.tables {
		got := eval.Computed[float64](p, paperFactor, paperRow, rows)
		full = append(full, eval.Is(got > 95))
		text += fmt.Sprintf(", %.1f %% of %d rows", got, rows)
	}
	small := s.tables[0]
	p.Claim("fill-most", eval.All(full...), text[2:],
		eval.Because(fmt.Sprintf("of %d rows alone", small),
			fmt.Sprintf("%.1f %%", eval.Computed[float64](p, paperFactor, paperRow, small)),
			full[0]).And("The paper does not say how large its tables were."))
	var rises []eval.Test
	for _, rows := range s.tables {
		for i := range s.factors[1:] {
			less := eval.Computed[float64](p, s.factors[i], paperRow, rows)
			rises = append(rises, eval.Is(less < eval.Computed[float64](p, s.factors[i+1], paperRow, rows)))
		}
	}
	low, high := s.factors[0], s.factors[len(s.factors)-1]
	rows := s.tables[len(s.tables)-1]
	p.Claim("fill-rises", eval.All(rises...), fmt.Sprintf("from %.1f %% with f = %g to %.1f %% with f = %g, of %d rows",
		eval.Computed[float64](p, low, paperRow, rows), low,
		eval.Computed[float64](p, high, paperRow, rows), high, rows), eval.Unknown(""))
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

func spanCases(s *size) (list []eval.Trial) {
	for _, h := range hashings {
		list = append(list, eval.Trial{Name: h.name, Compute: func(context.Context) (any, error) {
			return spans(h.f, paperRow, s.rows, fullPercent/100.0, s.seed)
		}})
	}
	return list
}

func spanTable(s *size, _ eval.Results, p *eval.Part) {
	p.Header = []string{"rows spanned"}
	for _, h := range hashings {
		p.Header = append(p.Header, h.name, "of those that move")
	}
	near, far := eval.Computed[spread](p, "dependent").counts, eval.Computed[spread](p, "independent").counts
	moving := func(counts []int, limit int) float64 {
		still := within(counts, 0)
		return (within(counts, limit) - still) / (1 - still)
	}
	for _, d := range []int{0, 1, 8, 32, 64, 128, 256, 512, 1024, 2048} {
		p.Rows = append(p.Rows, []eval.Cell{eval.Text("%d or fewer", d), eval.Share(100 * within(near, d)),
			eval.Share(100 * moving(near, d)), eval.Share(100 * within(far, d)), eval.Share(100 * moving(far, d))})
	}
	still := 100 * within(near, 0)
	p.Claim("spans-none", eval.Inside(still, 50, 60), fmt.Sprintf("%.1f %%", still),
		eval.Unknown("A path begins in either of a key's rows here: both are locked and read anyhow, or one key "+
			"could be inserted twice."))
	p.Claim("spans-32", eval.Is(within(near, 32) >= 0.95), fmt.Sprintf("%.1f %%; of those that move something %.1f %%",
		100*within(near, 32), 100*moving(near, 32)), eval.Unknown(""))
	p.Claim("spans-256", eval.Is(within(near, 256) >= 0.985),
		fmt.Sprintf("%.1f %%; of those that move something %.1f %%",
			100*within(near, 256), 100*moving(near, 256)), eval.Unknown(""))
	const distant = 2048
	p.Claim("spans-far", eval.Less(moving(far, distant), 0.1),
		fmt.Sprintf("%.1f %% of those that move something span more than %d of %d rows",
			100*(1-moving(far, distant)), distant, s.rows), eval.Unknown(""))
	for _, each := range []int{4, 16} {
		p.Notes = append(p.Notes,
			fmt.Sprintf("With %d rows a lock, one masked CAS of 63 locks takes those of %.1f %% of the paths, "+
				"wherever they begin.", each, 100*inOneWord(near, 63*each)))
	}
	p.Notes = append(p.Notes,
		fmt.Sprintf("%d rows. INSERTs that found no path are left out: %d with dependent hashing, %d with independent.",
			s.rows, eval.Computed[spread](p, "dependent").failed, eval.Computed[spread](p, "independent").failed))
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
