package components

import "github.com/farkv/farkv/tui/styles"

// A grid is the dots of a chart: 2 by 4 a cell as braille, or one a cell where there is only ASCII.
// A cell has one style, that of the line drawn last in it.
type grid struct {
	w, h   int // in cells
	dx, dy int // dots a cell
	dots   []uint8
	styles []styles.ID
}

func newGrid(w, h int, unicode bool) *grid {
	g := &grid{w: w, h: h, dx: 1, dy: 1, dots: make([]uint8, w*h), styles: make([]styles.ID, w*h)}
	if unicode {
		g.dx, g.dy = 2, 4
	}
	return g
}

// braille are the bits of a cell's dots, by row and column.
var braille = [4][2]uint8{{0x01, 0x08}, {0x02, 0x10}, {0x04, 0x20}, {0x40, 0x80}}

// dot sets the dot at (x, y), y from the top.
func (g *grid) dot(x, y int, st styles.ID) {
	if x < 0 || y < 0 || x >= g.w*g.dx || y >= g.h*g.dy {
		return
	}
	i := y/g.dy*g.w + x/g.dx
	g.dots[i] |= braille[y%g.dy][x%g.dx]
	g.styles[i] = st
}

// line connects two dots that lie in the grid's range of y.
func (g *grid) line(x0, y0, x1, y1 int, st styles.ID) {
	dx, dy := x1-x0, y1-y0
	n := max(dx, -dx, dy, -dy, 1)
	for i := range n + 1 {
		g.dot(x0+(2*dx*i+n)/(2*n), y0+rounded(2*dy*i, n), st)
	}
}

// rounded returns a/(2n), rounded, where a may be negative.
func rounded(a, n int) int {
	if a < 0 {
		return -((-a + n) / (2 * n))
	}
	return (a + n) / (2 * n)
}

// marks are what stands for the lines of a chart where there is only ASCII.
const marks = "*+xo#@"

// draw puts the cells that hold a dot into a.
func (g *grid) draw(a Area) {
	for i, bits := range g.dots {
		if bits == 0 {
			continue
		}
		r := rune(0x2800) + rune(bits)
		if g.dx == 1 {
			r = rune(marks[int(max(g.styles[i], styles.Series)-styles.Series)%len(marks)])
		}
		a.Put(i%g.w, i/g.w, g.styles[i], r)
	}
}
