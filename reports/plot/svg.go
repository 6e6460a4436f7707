package plot

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"
)

// Sizes of a drawing, in units of its viewBox.
const (
	width      = 760
	margin     = 16  // around charts that are no part of a page
	plotHigh   = 280 // of the area between the axes
	left       = 70
	right      = 20
	lineHigh   = 16
	charWide   = 6.4 // about, of the labels' font
	mostName   = 48  // characters of a name in the legend
	mostKeys   = 8   // marks that are listed below the chart
	mostHover  = 250 // points of a series with a title
	mostMarked = 40  // points of a line with a marker
)

// SVG writes charts below each other as one SVG document.
func SVG(w io.Writer, charts ...Chart) error {
	d := new(drawing)
	y := float64(margin)
	var body bytes.Buffer
	for i := range charts {
		d.Reset()
		high := d.chart(&charts[i])
		fmt.Fprintf(&body, "<svg x=\"%d\" y=\"%s\" width=\"%d\" height=\"%s\">\n%s</svg>\n", margin, num(y), width,
			num(high), d.Bytes())
		y += high + lineHigh
	}
	_, err := fmt.Fprintf(w, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %s\" width=\"%[1]d\" "+
		"height=\"%[2]s\">\n"+
		"<style>%s</style>\n<rect class=\"page\" width=\"100%%\" height=\"100%%\"/>\n%s</svg>\n", width+2*margin,
		num(y), style, body.Bytes())
	return err
}

// drawing is the text of an SVG that grows.
type drawing struct{ bytes.Buffer }

func (d *drawing) put(format string, args ...any) { fmt.Fprintf(d, format, args...) }

// text puts a label; anchor is start, middle or end.
func (d *drawing) text(x, y float64, anchor, class, text string) {
	d.put("<text x=\"%s\" y=\"%s\" text-anchor=\"%s\" class=\"%s\">%s</text>\n", num(x), num(y), anchor, class,
		escape(text))
}

func (d *drawing) line(class string, x1, y1, x2, y2 float64) {
	d.put("<path class=\"%s\" d=\"M%s %sL%s %s\"/>\n", class, num(x1), num(y1), num(x2), num(y2))
}

// num writes a coordinate to a tenth.
func num(v float64) string {
	return strings.TrimSuffix(strconv.FormatFloat(v, 'f', 1, 64), ".0")
}

// escape returns a text of any bytes as one of XML.
func escape(s string) string {
	var b strings.Builder
	_ = xml.EscapeText(&b, []byte(s)) // a Builder takes all
	return b.String()
}

// cut shortens a text to so many characters.
func cut(s string, most int) string {
	if utf8.RuneCountInString(s) <= most {
		return s
	}
	return strings.TrimSpace(string([]rune(s)[:most-1])) + "…"
}

func wide(s string) float64 { return charWide * float64(utf8.RuneCountInString(s)) }

// chart draws c and returns its height.
func (d *drawing) chart(c *Chart) float64 {
	y := 20.0
	d.text(0, y, "start", "title", cut(c.Title, 84))
	if c.Note != "" {
		y += lineHigh + 2
		d.text(0, y, "start", "note", cut(c.Note, 116))
	}
	y = d.legend(c, y+10) + 20
	flags := y
	if len(c.Marks) > 0 {
		y += lineHigh
	}
	lowX, highX := c.bounds(&c.X, func(p Point) float64 { return p.X })
	lowY, highY := c.bounds(&c.Y, func(p Point) float64 { return p.Y })
	if c.bars() && !c.Y.Log {
		lowY, highY = min(lowY, 0), max(highY, 0)
	}
	sx := newScale(&c.X, lowX, highX, left, width-right, false)
	sy := newScale(&c.Y, lowY, highY, y+plotHigh, y, true)
	below := d.axes(c, sx, sy)
	keys := d.marks(c, sx, sy, flags)
	d.bars(c, sx, sy)
	for i := range c.Series {
		d.series(c, i, sx, sy)
	}
	y = y + plotHigh + below
	for i, key := range keys {
		d.text(left, y+float64(i)*lineHigh, "start", "label", cut(key, 104))
	}
	return y + float64(len(keys))*lineHigh
}

// legend draws what is which series, and returns where it ends. One series without a name needs
// none.
func (d *drawing) legend(c *Chart, y float64) float64 {
	if len(c.Series) == 0 || len(c.Series) == 1 && c.Series[0].Name == "" {
		return y
	}
	x := 0.0
	y += lineHigh
	for i, s := range c.Series {
		name := cut(s.Name, mostName)
		w := 46 + wide(name)
		if x > 0 && x+w > width {
			x, y = 0, y+lineHigh+2
		}
		switch s.Kind {
		case Bars:
			d.put("<rect class=\"%s\" x=\"%s\" y=\"%s\" width=\"16\" height=\"11\" rx=\"2\"/>\n", class("b", i),
				num(x+2), num(y-9))
			d.marker(class("m", i)+" on", i, x+10, y-3.5)
		case Dots:
			d.marker(class("m", i)+" dot", i, x+10, y-4)
		default:
			d.line(class("l", i), x, y-4, x+20, y-4)
			if len(s.Points) <= mostMarked {
				d.marker(class("m", i), i, x+10, y-4)
			}
		}
		d.text(x+26, y, "start", "label", name)
		x += w
	}
	return y
}

// axes draws the grid and the labels, and returns how much lies below the plot.
func (d *drawing) axes(c *Chart, sx, sy *scale) (below float64) {
	top, bottom := sy.to, sy.from
	for _, t := range sy.ticks {
		y := sy.at(t.at)
		if d.line(minor("grid", t), left, y, width-right, y); t.text != "" {
			d.text(left-8, y+4, "end", "label", t.text)
		}
	}
	end := -1e9 // of the last label
	for _, t := range sx.ticks {
		x := sx.at(t.at)
		if len(c.X.Names) == 0 {
			d.line(minor("grid", t), x, top, x, bottom)
		}
		text := t.text
		if room := (width - left - right) / float64(max(len(c.X.Names), 1)); len(c.X.Names) > 0 {
			text = cut(text, max(int(room/charWide), 5))
		}
		if text != "" && x-wide(text)/2 > end+4 {
			d.text(x, bottom+18, "middle", "label", text)
			end = x + wide(text)/2
		}
	}
	zero := bottom
	if !c.Y.Log && sy.low < 0 && sy.high > 0 {
		zero = sy.at(0)
	}
	d.line("axis", left, zero, width-right, zero)
	below = 36
	if c.X.Label != "" {
		d.text((left+width-right)/2, bottom+36, "middle", "label", c.X.Label)
		below += lineHigh + 2
	}
	if c.Y.Label != "" {
		d.put("<text transform=\"translate(11 %s) rotate(-90)\" text-anchor=\"middle\" class=\"label\">%s</text>\n",
			num((top+bottom)/2), escape(cut(c.Y.Label, 40)))
	}
	return below
}

func minor(class string, t tick) string {
	if t.minor {
		return class + " minor"
	}
	return class
}

// marks draws a flag for what happened, where there is room for one, and returns the lines that
// explain the flags.
func (d *drawing) marks(c *Chart, sx, sy *scale, y float64) (keys []string) {
	var group []Mark
	n := 0
	flush := func() {
		if len(group) == 0 {
			return
		}
		n++
		x := sx.at(group[0].X)
		var all []string
		for _, m := range group {
			all = append(all, format(m.X, c.X.Unit, m.X)+": "+m.Text)
		}
		d.put("<g>\n<title>%s</title>\n", escape(strings.Join(all, "\n")))
		d.line("mark", x, y+lineHigh, x, sy.from)
		d.put("<circle class=\"flag\" cx=\"%s\" cy=\"%s\" r=\"8\"/>\n", num(x), num(y+6))
		d.text(x, y+9.5, "middle", "flagged", strconv.Itoa(n))
		d.put("</g>\n")
		keys = append(keys, fmt.Sprintf("%d · %s", n, strings.Join(all, "; ")))
		group = nil
	}
	for _, m := range c.Marks {
		if !finite(m.X) || c.X.Log && m.X <= 0 || sx.at(m.X) < left-1 || sx.at(m.X) > width-right+1 {
			continue
		}
		if len(group) > 0 && sx.at(m.X)-sx.at(group[0].X) > 17 {
			flush()
		}
		group = append(group, m)
	}
	flush()
	if len(keys) > mostKeys {
		keys = append(keys[:mostKeys-1], fmt.Sprintf("… and %d more: point at their flags", len(keys)-mostKeys+1))
	}
	return keys
}

// class numbers the classes of a series: of its line, its bars or its markers.
func class(kind string, series int) string { return fmt.Sprintf("%s s%d", kind, series%looks) }

// looks is how many series look different: see style and marker.
const looks = 8

// marker draws the shape of a series around a place.
func (d *drawing) marker(class string, series int, x, y float64) {
	shape := []string{
		"m-4 0a4 4 0 1 0 8 0a4 4 0 1 0 -8 0", "m-3.6 -3.6h7.2v7.2h-7.2z", "m0 -4.6l4.6 8h-9.2z",
		"m0 -5.2l5.2 5.2l-5.2 5.2l-5.2 -5.2z",
		"m0 4.6l4.6 -8h-9.2z", "m-4.5 -1.4h9v2.8h-9z", "m-1.4 -4.5h2.8v9h-2.8z", "m-4 0l4 -4v8z",
	}[series%looks]
	d.put("<path class=\"%s\" d=\"M%s %s%s\"/>\n", class, num(x), num(y), shape)
}
