package components

import (
	"math"

	"github.com/farkv/farkv/tui/styles"
)

// Bar draws a part of a whole in row y from column x on, w columns wide.
func (a Area) Bar(x, y, w int, st styles.ID, part float64) {
	if math.IsNaN(part) {
		part = 0
	}
	full := int(math.Round(math.Min(math.Max(part, 0), 1) * float64(w)))
	if part > 0 && full == 0 {
		full = 1
	}
	for i := range w {
		if i < full {
			a.Put(x+i, y, st, '█')
		} else {
			a.Put(x+i, y, styles.Faint, '░')
		}
	}
}

var eighths = []rune("▁▂▃▄▅▆▇█")

// Sparkline draws values, newest last, in row y so that they end before column x+w. What is 0 is
// not drawn.
func (a Area) Sparkline(x, y, w int, st styles.ID, values []float64) {
	values = values[max(len(values)-w, 0):]
	top := 0.0
	for _, v := range values {
		if !math.IsInf(v, 0) {
			top = math.Max(top, v)
		}
	}
	if top == 0 || math.IsNaN(top) {
		return
	}
	x += w - len(values)
	for i, v := range values {
		if v > 0 {
			a.Put(x+i, y, st, eighths[min(int(v/top*float64(len(eighths)-1)+0.5), len(eighths)-1)])
		}
	}
}
