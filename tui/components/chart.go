package components

import (
	"math"
	"time"

	"github.com/farkv/farkv/tui/styles"
)

// A Line is a series of a chart. X ascends; where Y is not a number the line is broken.
type Line struct {
	Name  string
	Style styles.ID
	X, Y  []float64
}

// A Mark is something that happened at X.
type Mark struct {
	X     float64
	Style styles.ID
	Text  string
}

// An XTick labels a place of the axis.
type XTick struct {
	X    float64
	Text string
}

// A Chart draws lines over a common axis.
type Chart struct {
	Lines    []Line
	Marks    []Mark
	From, To float64 // of X
	LogX     bool    // decades
	LogY     bool
	Top      float64              // of Y; 0: as the lines need
	FormatY  func(float64) string // nil: TickCount
	Ticks    []XTick
	Gap      float64 // points farther apart than this are not connected; 0: all are
	Cursor   float64 // NaN: none
	Bare     bool    // ticks have no labels: those of the chart below are the same
	Labels   int     // columns for labels of Y, so that charts below each other align; 0: as they need
}

// gridEvery is the distance of the dots that lead from a label through the plot.
const gridEvery = 4

// labelWidth is what charts below each other use for Labels.
const labelWidth = 8

// Draw draws the chart, with labels left and below.
func (c *Chart) Draw(a Area) {
	if a.W < 12 || a.H < 3 {
		return
	}
	format := c.FormatY
	if format == nil {
		format = TickCount
	}
	labels := c.Labels
	if labels == 0 {
		labels = labelWidth
	}
	below := 2
	if c.Bare {
		below = 1
	}
	plot := a.Sub(labels+1, 0, a.W-labels-1, a.H-below)
	s := c.scale(plot)
	for _, tick := range s.ticksY(plot.H) {
		y := s.row(tick)
		a.Right(labels, y, styles.Muted, format(tick))
		for x := plot.W - 1; x >= 0; x -= gridEvery {
			plot.Put(x, y, styles.Faint, '·')
		}
	}
	for y := range plot.H {
		a.Put(labels, y, styles.Faint, '│')
	}
	a.Put(labels, plot.H, styles.Faint, '└')
	a.Sub(labels+1, plot.H, plot.W, 1).Fill(0, 0, styles.Faint, '─')
	c.drawTicks(a.Sub(0, plot.H, a.W, below), labels+1, s)
	for _, m := range c.Marks {
		if x, ok := s.column(m.X); ok {
			for y := range plot.H {
				plot.Put(x, y, m.Style, '┆')
			}
		}
	}
	g := newGrid(plot.W, plot.H, a.Theme().Unicode)
	for i := range c.Lines {
		c.trace(g, s, &c.Lines[i])
	}
	g.draw(plot)
	axis := a.Sub(labels+1, plot.H, plot.W, 1)
	for _, m := range c.Marks {
		if x, ok := s.column(m.X); ok {
			axis.Put(x, 0, m.Style, '▲')
		}
	}
	if x, ok := s.column(c.Cursor); ok {
		for y := range plot.H {
			if plot.at(x, y) == 0 || plot.at(x, y) == '·' || plot.at(x, y) == '┆' {
				plot.Put(x, y, styles.Strong, '│')
			}
		}
		axis.Put(x, 0, styles.Strong, '┴')
	}
}

// at returns the rune at (x, y).
func (a Area) at(x, y int) rune { return a.s.cells[(a.y+y)*a.s.w+a.x+x].r }

// drawTicks labels the axis of X in the second row of a, which begins at column left.
func (c *Chart) drawTicks(a Area, left int, s *scale) {
	end := -1
	for _, t := range c.Ticks {
		x, ok := s.column(t.X)
		if !ok {
			continue
		}
		a.Put(left+x, 0, styles.Faint, '┴')
		n := Columns(t.Text)
		at := min(max(left+x-n/2, 0), a.W-n)
		if at > end {
			end = a.Text(at, 1, styles.Muted, t.Text) + 1
		}
	}
}

// trace draws a line. Of the points of one column of dots the whole range is drawn, so that no peak
// is lost.
func (c *Chart) trace(g *grid, s *scale, l *Line) {
	last, lastX, lastY := -1, 0.0, 0
	for i, v := range l.Y {
		x := s.x(l.X[i], g.w*g.dx)
		if math.IsNaN(v) || math.IsInf(v, 0) || math.IsNaN(x) {
			last = -1
			continue
		}
		if x < -1 || x > float64(g.w*g.dx) {
			last = -1
			continue
		}
		at, y := int(math.Floor(x)), s.dotRow(v, g.h*g.dy)
		if last >= 0 && (c.Gap == 0 || l.X[i]-lastX <= c.Gap) {
			g.line(last, lastY, at, y, l.Style)
		} else {
			g.dot(at, y, l.Style)
		}
		last, lastX, lastY = at, l.X[i], y
	}
}

// TimeTicks returns ticks of the window that ends at to, labeled by how long before its end they
// are.
func TimeTicks(from, to float64, columns int) (ticks []XTick) {
	span := to - from
	if span <= 0 || math.IsInf(span, 0) || math.IsNaN(span) {
		return nil
	}
	step := timeStep(span / float64(max(columns/12, 1)))
	for d := math.Ceil(span/step-1e-9) * step; d > -step/2; d -= step {
		ticks = append(ticks, XTick{to - d, Ago(time.Duration(math.Round(d * 1e9)))})
	}
	return ticks
}

// timeSteps are the distances of ticks, in seconds.
var timeSteps = []float64{1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400}

func timeStep(least float64) float64 {
	for _, s := range timeSteps {
		if s >= least && least > 0.5 {
			return s
		}
	}
	return nice(least)
}

// Ago labels a time d before the end of a window.
func Ago(d time.Duration) string {
	switch {
	case d == 0:
		return "now"
	case d < time.Second:
		return "-" + Tick(float64(d))
	case d < time.Minute || d < time.Hour && d%time.Minute != 0 && d < 2*time.Minute:
		return "-" + trim(d.Seconds()) + " s"
	case d < 2*time.Hour:
		return "-" + trim(d.Minutes()) + " min"
	case d < 48*time.Hour:
		return "-" + trim(d.Hours()) + " h"
	}
	return "-" + trim(d.Hours()/24) + " d"
}

// DecadeTicks returns ticks of durations at each decade from the first to the last.
func DecadeTicks(from, to float64) (ticks []XTick) {
	if from <= 0 || math.IsInf(to, 0) {
		return nil
	}
	for e := math.Ceil(math.Log10(from) - 1e-9); e <= math.Log10(to)+1e-9; e++ {
		v := math.Pow(10, e)
		ticks = append(ticks, XTick{v, Tick(v)})
	}
	return ticks
}
