// Package plot draws charts as SVG, as a page of HTML and as CSV. What it writes is whole in
// itself: it needs no network and no script, follows prefers-color-scheme, prints, and is the same
// bytes for the same charts.
//
//	err := plot.SVG(w, plot.Chart{
//		Title:  "Throughput",
//		X:      plot.Axis{Label: "time", Unit: plot.Seconds},
//		Y:      plot.Axis{Unit: plot.Rate},
//		Series: []plot.Series{{Name: "get", Points: points}},
//		Marks:  []plot.Mark{{X: 12.3, Text: "node 1 expelled"}},
//	})
package plot

import "math"

// Unit is what the numbers of an axis count. It says how they are written.
type Unit string

// The units.
const (
	Number  Unit = ""     // 1, 10 k, 2.5 M
	Rate    Unit = "op/s" // operations a second
	Seconds Unit = "s"    // a time axis: 0.5 s, 90 s
	Micros  Unit = "us"   // a duration in microseconds: 10 µs, 1 ms
	Percent Unit = "%"
	Bytes   Unit = "B"
)

// An Axis of a chart. The zero value is linear, and counts.
type Axis struct {
	Label string
	Unit  Unit
	Log   bool // points that are not above 0 are not drawn
	// Names are categories: point X = 0 lies at the first one.
	Names []string
	// Most is the end of the axis where it is larger than all points; 0: the points decide.
	Most float64
}

// Kind is how a series is drawn.
type Kind int

// The kinds.
const (
	Line Kind = iota
	Steps
	Bars // on a named X axis
	Dots // a marker at each point, such as values of others that are to be compared with
)

// A Series is one line, or one bar a category.
type Series struct {
	Name   string
	Kind   Kind
	Points []Point // ascending by X where they are joined
}

// A Point of a series. A point with a number that is infinite or none is a gap.
type Point struct {
	X, Y float64
	Text string // told of the point beside its numbers
}

// A Mark is something that happened at X.
type Mark struct {
	X    float64
	Text string
}

// A Chart is one figure.
type Chart struct {
	Title  string
	Note   string // a line below the title
	X, Y   Axis
	Series []Series
	Marks  []Mark
}

func finite(v float64) bool { return !math.IsNaN(v) && math.Abs(v) < 1e300 }

// least is what counts as 0 in a division.
const least = 1e-200

// shows reports whether p can be drawn.
func (c *Chart) shows(p Point) bool {
	return finite(p.X) && finite(p.Y) && (!c.X.Log || p.X > least) && (!c.Y.Log || p.Y > least) &&
		(len(c.X.Names) == 0 || p.X >= 0 && p.X <= float64(len(c.X.Names)-1))
}

// bounds returns the least and the most of the axis that of selects, over all points that are
// drawn.
func (c *Chart) bounds(a *Axis, of func(Point) float64) (low, high float64) {
	low, high = math.Inf(1), math.Inf(-1)
	for _, s := range c.Series {
		for _, p := range s.Points {
			if c.shows(p) {
				low, high = min(low, of(p)), max(high, of(p))
			}
		}
	}
	if low > high {
		low, high = 1, 1
	}
	if finite(a.Most) {
		high = max(high, a.Most)
	}
	return low, high
}
