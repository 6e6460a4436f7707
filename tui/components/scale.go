package components

import (
	"math"
	"strconv"
)

// A scale turns values of a chart into places of its plot.
type scale struct {
	c            *Chart
	w, h         int
	bottom, top  float64
	lowX, spread float64
}

// scale finds the range of Y that the lines of the window need: from 0, or decades.
func (c *Chart) scale(plot Area) *scale {
	s := &scale{c: c, w: plot.W, h: plot.H}
	low, high := math.Inf(1), 0.0
	for i := range c.Lines {
		for j, y := range c.Lines[i].Y {
			if x := c.Lines[i].X[j]; x >= c.From && x <= c.To && !math.IsInf(y, 0) && y > 0 {
				low, high = math.Min(low, y), math.Max(high, y)
			}
		}
	}
	if c.Top > 0 {
		high = c.Top
	}
	if high == 0 {
		low, high = 1, 1
	}
	s.top = high
	if c.Top == 0 {
		s.top = nice(high)
	}
	if c.LogY {
		s.bottom = math.Pow(10, math.Floor(math.Log10(math.Min(low, high))))
		s.top = math.Pow(10, math.Ceil(math.Log10(high)))
		if s.top <= s.bottom {
			s.top = s.bottom * 10
		}
	}
	s.lowX, s.spread = c.From, c.To-c.From
	if c.LogX {
		s.lowX, s.spread = math.Log10(c.From), math.Log10(c.To/c.From)
	}
	return s
}

// nice returns the least round number that is not below v.
func nice(v float64) float64 {
	if v <= 0 || math.IsInf(v, 0) || math.IsNaN(v) {
		return 1
	}
	e := math.Pow(10, math.Floor(math.Log10(v)))
	for _, m := range []float64{1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8} {
		if m*e >= v*0.9999999 {
			return m * e
		}
	}
	return 10 * e
}

// x returns the place of v among n columns; NaN where it has none.
func (s *scale) x(v float64, n int) float64 {
	if s.c.LogX {
		v = math.Log10(v)
	}
	if s.spread <= 0 {
		return math.NaN()
	}
	x := (v - s.lowX) / s.spread * float64(n)
	if v >= s.lowX && x >= float64(n) && x <= float64(n)*(1+1e-9) {
		return float64(n) - 1 // the end belongs to the last column
	}
	return x
}

// column returns the column of the plot where v is.
func (s *scale) column(v float64) (x int, ok bool) {
	f := s.x(v, s.w)
	if math.IsNaN(f) || f < 0 || f >= float64(s.w) {
		return 0, false
	}
	return int(f), true
}

// dotRow returns the row of v among n rows of dots, from the top.
func (s *scale) dotRow(v float64, n int) int {
	var part float64
	if s.c.LogY {
		part = math.Log10(math.Max(v, s.bottom)/s.bottom) / math.Log10(s.top/s.bottom)
	} else {
		part = v / s.top
	}
	return n - 1 - int(math.Round(math.Min(math.Max(part, 0), 1)*float64(n-1)))
}

// row returns the row of the plot where v is.
func (s *scale) row(v float64) int { return s.dotRow(v, s.h) }

// ticksY returns the values that are labeled: decades, or parts of the top. A label has three
// digits, so that there are as many parts as leave two for the first.
func (s *scale) ticksY(rows int) (ticks []float64) {
	if s.c.LogY {
		decades := int(math.Round(math.Log10(s.top / s.bottom)))
		every := max((2*decades+rows-1)/max(rows, 1), 1)
		for e := 0; e <= decades; e += every {
			ticks = append(ticks, s.bottom*math.Pow(10, float64(e)))
		}
		return ticks
	}
	n := 1
	if rows >= 9 {
		n = 4
		for _, parts := range []int{3, 5} {
			if !twoDigits(s.top/float64(n)) && twoDigits(s.top/float64(parts)) {
				n = parts
			}
		}
	} else if rows >= 5 {
		n = 2
	}
	for i := 0; i <= n; i++ {
		ticks = append(ticks, s.top*float64(i)/float64(n))
	}
	return ticks
}

// twoDigits reports whether v is written with two digits at most.
func twoDigits(v float64) bool {
	v /= math.Pow(10, math.Floor(math.Log10(v))-1)
	return math.Abs(v-math.Round(v)) < 1e-6
}

func trim(v float64) string { return strconv.FormatFloat(v, 'g', 4, 64) }
