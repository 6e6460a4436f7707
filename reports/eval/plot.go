package eval

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/farkv/farkv/reports/plot"
)

// UnmarshalJSON reads what MarshalJSON wrote.
func (c *Cell) UnmarshalJSON(p []byte) error {
	if err := json.Unmarshal(p, &c.Value); err == nil {
		c.Text, c.number = strconv.FormatFloat(c.Value, 'g', 5, 64), true
		return nil
	}
	return json.Unmarshal(p, &c.Text)
}

// plotted returns the number of a cell. It may be in the text of the cell.
func (c *Cell) plotted() (v float64, unit plot.Unit, ok bool) {
	if c.number {
		return c.Value, c.unit, true
	}
	text, share := strings.CutSuffix(c.Text, " %")
	v, err := strconv.ParseFloat(text, 64)
	if share {
		unit = plot.Percent
	}
	return v, unit, err == nil
}

// units returns the unit of each column, that of its first number.
func (p *Part) units() []plot.Unit {
	all := make([]plot.Unit, len(p.Header))
	for k := range all {
		for _, row := range p.Rows {
			if k < len(row) {
				if _, unit, ok := row[k].plotted(); ok {
					all[k] = unit
					break
				}
			}
		}
	}
	return all
}

const (
	mostSeries = 6 // of a chart of a part
	mostBars   = 8 // up to so many rows values are bars; of more rows they are joined
)

// Charts draws the table of a part: a chart for the columns of each unit, and one for what the
// paper prints, beside ours.
func (p *Part) Charts() (list []plot.Chart) {
	units := p.Units
	if len(units) != len(p.Header) {
		units = p.units()
	}
	var order []plot.Unit
	series := map[plot.Unit][]plot.Series{}
	rows, x := p.axis()
	for k := 1; k < len(p.Header); k++ {
		s := plot.Series{Name: p.column(k), Kind: plot.Line}
		if len(x.Names) > 0 && len(rows) <= mostBars {
			s.Kind = plot.Bars
		}
		if p.Header[k] == "paper" {
			s.Kind = plot.Dots
		}
		for i, row := range rows {
			at := float64(i)
			if len(x.Names) == 0 {
				at, _, _ = row[0].plotted()
			}
			if k < len(row) {
				if v, _, ok := row[k].plotted(); ok {
					s.Points = append(s.Points, plot.Point{X: at, Y: v})
				}
			}
		}
		if len(s.Points) == 0 {
			continue
		}
		if !slices.Contains(order, units[k]) {
			order = append(order, units[k])
		}
		series[units[k]] = append(series[units[k]], s)
	}
	for _, unit := range order {
		for part := range slices.Chunk(series[unit], even(len(series[unit]))) {
			list = append(list, plot.Chart{
				Title: p.Name + ": " + p.Title, Note: strings.Join(strings.Fields(p.SetUp), " "), X: x,
				Y: plot.Axis{Unit: unit, Log: wide(part)}, Series: part,
			})
		}
	}
	return append(list, p.beside()...)
}

// even returns how many of n series go into a chart, so that all charts have about the same number.
func even(n int) int {
	charts := max((n+mostSeries-1)/mostSeries, 1)
	return max((n+charts-1)/charts, 1)
}

// axis returns the rows with numbers, and their axis: the first cells, if these are ascending
// numbers.
func (p *Part) axis() (rows [][]Cell, x plot.Axis) {
	for _, row := range p.Rows {
		if slices.ContainsFunc(row[min(len(row), 1):], func(c Cell) bool { _, _, ok := c.plotted(); return ok }) {
			rows = append(rows, row)
		}
	}
	if len(p.Header) > 0 {
		x.Label = p.Header[0]
	}
	numbers := len(rows) > 2 && x.Label != "percentile" // which are far from evenly spread
	for i, row := range rows {
		v, unit, ok := row[0].plotted()
		if i > 0 && ok {
			before, _, _ := rows[i-1][0].plotted()
			ok = v > before
		}
		numbers = numbers && ok
		x.Unit = unit
		x.Names = append(x.Names, row[0].Text)
	}
	if numbers {
		x.Names = nil
	} else {
		x.Unit = plot.Number
	}
	return rows, x
}

// column returns the title of a column. When several columns have the same title, the last unique
// title to the left is put in front. If that is ambiguous, too, the nearest other title to the left
// is.
func (p *Part) column(k int) string {
	name := p.behind(k)
	for other := range p.Header {
		if other != k && p.behind(other) == name {
			for before := k - 1; before > 0; before-- {
				if p.Header[before] != p.Header[k] {
					return p.behind(before) + ", " + p.Header[k]
				}
			}
		}
	}
	return name
}

func (p *Part) behind(k int) string {
	alone := func(k int) bool {
		return slices.Index(p.Header, p.Header[k]) == k && !slices.Contains(p.Header[k+1:], p.Header[k])
	}
	if alone(k) {
		return p.Header[k]
	}
	for before := k - 1; before > 0; before-- {
		if alone(before) {
			return p.Header[before] + ", " + p.Header[k]
		}
	}
	return p.Header[k]
}

// wide reports whether values differ so much that only a logarithmic axis shows them all.
func wide(list []plot.Series) bool {
	low, high := 0.0, 0.0
	for _, s := range list {
		for _, p := range s.Points {
			if p.Y <= 0 {
				return false
			}
			if low == 0 || p.Y < low {
				low = p.Y
			}
			high = max(high, p.Y)
		}
	}
	return high > 50*low
}

// inPrint is what units in print count.
var inPrint = map[string]struct {
	unit  plot.Unit
	times float64
}{"%": {plot.Percent, 1}, "µs": {plot.Micros, 1}, "Mops": {plot.Rate, 1e6}, "kops": {plot.Rate, 1e3},
	"GB/s": {plot.Bytes, 1e9}, "": {plot.Number, 1}}

// beside draws the numbers that the paper prints, and ours.
func (p *Part) beside() (list []plot.Chart) {
	var order []string
	claims := map[string][]Verdict{}
	for _, c := range p.Claims {
		_, _, ok := c.numbers()
		if _, known := inPrint[c.Unit]; !ok || !known {
			continue
		}
		if claims[c.Unit] == nil {
			order = append(order, c.Unit)
		}
		claims[c.Unit] = append(claims[c.Unit], c)
	}
	for _, unit := range order {
		for some := range slices.Chunk(claims[unit], even(len(claims[unit]))) {
			u := inPrint[unit]
			ours := plot.Series{Name: "here", Kind: plot.Bars}
			theirs := plot.Series{Name: "the paper, as printed", Kind: plot.Dots}
			chart := plot.Chart{
				Title: p.Name + ": beside what the paper prints", Note: strings.Join(strings.Fields(p.Title), " "),
				Y: plot.Axis{Unit: u.unit},
			}
			for i, c := range some {
				here, paper, _ := c.numbers()
				chart.X.Names = append(chart.X.Names, c.About)
				text := fmt.Sprintf("%s: %s", c.Section, c.Says)
				ours.Points = append(ours.Points,
					plot.Point{X: float64(i), Y: here * u.times, Text: fmt.Sprintf("%s (%s)", text, c.Outcome)})
				theirs.Points = append(theirs.Points, plot.Point{X: float64(i), Y: paper * u.times, Text: text})
			}
			chart.Series = []plot.Series{ours, theirs}
			list = append(list, chart)
		}
	}
	return list
}

// numbers returns our number and the one that the paper prints, where there are both.
func (v *Verdict) numbers() (ours, paper float64, ok bool) {
	first, _, _ := strings.Cut(v.Ours, " ")
	ours, err := strconv.ParseFloat(first, 64)
	if err != nil {
		return 0, 0, false
	}
	paper, err = strconv.ParseFloat(v.Printed, 64)
	return ours, paper, err == nil
}

// Page returns the charts of a report, and its verdicts.
func (r *Report) Page() *plot.Page {
	p := &plot.Page{Title: r.Paper, Lead: strings.Join(strings.Fields(r.SetUp+" "+r.sum()), " ")}
	verdicts := plot.Table{
		Title: "What the paper says", Header: []string{"part", "section", "verdict", "the paper", "here"}, Text: true,
	}
	for _, part := range r.Parts {
		p.Charts = append(p.Charts, part.Charts()...)
		for _, c := range part.Claims {
			verdicts.Rows = append(verdicts.Rows, []string{part.Name, c.Section, string(c.Outcome), c.Says, c.Ours})
		}
	}
	p.Notes = append(p.Notes, verdicts)
	return p
}
