package eval

// A Grid is a part's table with a row for each X. Each column is declared with the function that
// fills it.
type Grid[X any] struct {
	titles []string
	cells  []func(X) Cell
}

// Column adds a column. cell makes the cell of a row.
func (g *Grid[X]) Column(title string, cell func(x X) Cell) {
	g.titles, g.cells = append(g.titles, title), append(g.cells, cell)
}

// Show makes g the part's table, with these rows. format makes their names.
func (g *Grid[X]) Show(p *Part, title, format string, rows []X) {
	p.Header = append([]string{title}, g.titles...)
	for _, x := range rows {
		row := []Cell{Text(format, x)}
		for _, cell := range g.cells {
			row = append(row, cell(x))
		}
		p.Rows = append(p.Rows, row)
	}
}

// Each returns a trial for each pair, those of the first A first.
func Each[A, B any](as []A, bs []B, of func(a A, b B) Trial) (list []Trial) {
	for _, a := range as {
		for _, b := range bs {
			list = append(list, of(a, b))
		}
	}
	return list
}
