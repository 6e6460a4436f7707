package monitor

import (
	"io"
	"math"

	"github.com/farkv/farkv/reports/plot"
	"github.com/farkv/farkv/tui/pages"
)

type exportUnit struct {
	unit plot.Unit
	of   float64
}

// exportUnits are those of the labels of a page's axes, and how many of what the page counts are
// one of what a plot does.
var exportUnits = map[string]exportUnit{
	"nanoseconds":         {plot.Micros, 1000},
	"operations a second": {plot.Rate, 1},
	"fraction":            {plot.Percent, 0.01},
}

// ExportSVG draws what a page of the monitor shows. Times count from the first point.
func ExportSVG(w io.Writer, f *pages.Figure) error {
	x, y := unitOf(f.X), unitOf(f.Y)
	c := plot.Chart{Title: f.Title, X: plot.Axis{Label: f.X, Unit: x.unit, Log: f.LogX},
		Y: plot.Axis{Label: f.Y, Unit: y.unit, Log: f.LogY}}
	began := 0.0
	if f.Time {
		c.X.Unit, began = plot.Seconds, math.Inf(1)
		for _, l := range f.Lines {
			if len(l.X) > 0 {
				began = min(began, l.X[0])
			}
		}
	}
	for _, l := range f.Lines {
		s := plot.Series{Name: l.Name}
		for i := range l.X {
			s.Points = append(s.Points, plot.Point{X: (l.X[i] - began) / x.of, Y: l.Y[i] / y.of})
		}
		c.Series = append(c.Series, s)
	}
	for _, m := range f.Marks {
		if m.X >= began {
			c.Marks = append(c.Marks, plot.Mark{X: (m.X - began) / x.of, Text: m.Text})
		}
	}
	return plot.SVG(w, c)
}

func unitOf(label string) exportUnit {
	if u, ok := exportUnits[label]; ok {
		return u
	}
	return exportUnit{plot.Number, 1}
}
