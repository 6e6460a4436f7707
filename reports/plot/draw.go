package plot

import (
	"math"
	"slices"
	"strings"
)

// bars reports whether the chart has any.
func (c *Chart) bars() bool {
	return slices.ContainsFunc(c.Series, func(s Series) bool { return s.Kind == Bars })
}

// title tells of a point what a reader may point at.
func (c *Chart) title(s *Series, p Point) string {
	x := format(p.X, c.X.Unit, p.X)
	if len(c.X.Names) > 0 {
		x = c.X.Names[int(math.Round(p.X))]
	}
	text := x + ": " + format(p.Y, c.Y.Unit, p.Y)
	if s.Name != "" {
		text = s.Name + "\n" + text
	}
	if p.Text != "" {
		text += "\n" + p.Text
	}
	return escape(text)
}

// beside reports whether a series has a place of its own beside the bars of each category.
func (c *Chart) beside(s *Series) bool { return s.Kind == Bars || s.Kind == Dots && c.bars() }

// bars draws the series that are bars, and the dots beside them. A value is written where it fits.
func (d *drawing) bars(c *Chart, sx, sy *scale) {
	if !c.bars() {
		return
	}
	var list []int
	for i := range c.Series {
		if c.beside(&c.Series[i]) {
			list = append(list, i)
		}
	}
	room := (width - left - right) / float64(max(len(c.X.Names), 1))
	each := min(room*0.8/float64(len(list)), 64)
	zero := sy.from
	if !c.Y.Log {
		zero = sy.at(0)
	}
	for k, i := range list {
		s := &c.Series[i]
		for _, p := range s.Points {
			if !c.shows(p) {
				continue
			}
			x, y := sx.at(p.X)+(float64(k)-float64(len(list))/2)*each, sy.at(p.Y)
			d.put("<g>\n<title>%s</title>\n", c.title(s, p))
			over := 5.0
			if s.Kind == Dots {
				over = 9
				d.marker(class("m", i)+" dot", i, x+each/2, y)
			} else {
				d.bar(i, x, y, zero, each, len(list) > 1)
			}
			if text := format(p.Y, c.Y.Unit, p.Y); wide(text) <= each+2 {
				if y -= over; y > zero {
					y += 2*over + 8
				}
				d.text(x+each/2, y, "middle", "value", text)
			}
			d.put("</g>\n")
		}
	}
}

// bar draws one, with the marker of its series where there are others.
func (d *drawing) bar(series int, x, y, zero, wide float64, marked bool) {
	d.put("<rect class=\"%s\" x=\"%s\" y=\"%s\" width=\"%s\" height=\"%s\" rx=\"2\"/>\n", class("b", series), num(x+1),
		num(min(y, zero)), num(wide-2), num(math.Abs(zero-y)))
	if marked && wide >= 12 && math.Abs(zero-y) > 18 {
		d.marker(class("m", series)+" on", series, x+wide/2, zero-math.Copysign(9, zero-y))
	}
}

// series draws a series that stands beside no bars.
func (d *drawing) series(c *Chart, i int, sx, sy *scale) {
	s := &c.Series[i]
	if c.beside(s) {
		return
	}
	points := s.Points
	if s.Kind != Dots {
		points = thin(points, func(p Point) int { return int(math.Round(sx.at(p.X))) })
		d.put("<path class=\"%s\" d=\"%s\"/>\n", class("l", i), c.path(s.Kind, points, sx, sy))
	}
	every := max(1, (len(points)+mostHover-1)/mostHover)
	for k, p := range points {
		if !c.shows(p) || s.Kind != Dots && k%every != 0 {
			continue
		}
		x, y := sx.at(p.X), sy.at(p.Y)
		d.put("<g class=\"point\">\n<title>%s</title>\n", c.title(s, p))
		switch {
		case s.Kind == Dots:
			d.marker(class("m", i)+" dot", i, x, y)
		case len(s.Points) <= mostMarked:
			d.marker(class("m", i), i, x, y)
		default:
			d.put("<circle class=\"%s\" cx=\"%s\" cy=\"%s\" r=\"4\"/>\n", class("h", i), num(x), num(y))
		}
		d.put("</g>\n")
	}
}

// path joins points; one that cannot be drawn is a gap.
func (c *Chart) path(kind Kind, points []Point, sx, sy *scale) string {
	var b strings.Builder
	pen, last := "M", 0.0
	for _, p := range points {
		if !c.shows(p) {
			pen = "M"
			continue
		}
		x, y := sx.at(p.X), sy.at(p.Y)
		if kind == Steps && pen == "L" {
			b.WriteString("L" + num(x) + " " + num(last))
		}
		b.WriteString(pen + num(x) + " " + num(y))
		pen, last = "L", y
	}
	return b.String()
}
