package reports

// A grid is a part's table with a row for each X. Each column is declared with the function that
// fills it.
type grid[X any] struct {
	titles []string
	cells  []func(X) Cell
}

func (g *grid[X]) column(title string, cell func(x X) Cell) {
	g.titles, g.cells = append(g.titles, title), append(g.cells, cell)
}

// show makes g the part's table, with these rows. format makes their names.
func (g *grid[X]) show(p *Part, title, format string, rows []X) {
	p.Header = append([]string{title}, g.titles...)
	for _, x := range rows {
		row := []Cell{say(format, x)}
		for _, cell := range g.cells {
			row = append(row, cell(x))
		}
		p.Rows = append(p.Rows, row)
	}
}

// each returns a trial for each pair, those of the first A first.
func each[A, B any](as []A, bs []B, of func(a A, b B) trial) (list []trial) {
	for _, a := range as {
		for _, b := range bs {
			list = append(list, of(a, b))
		}
	}
	return list
}
