package plot

import (
	"encoding/csv"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// A Page is charts and tables with a heading.
type Page struct {
	Title  string
	Lead   string // below the title
	Tables []Table
	Charts []Chart
	Notes  []Table // below the charts
}

// A Table has a row of headings and rows of texts.
type Table struct {
	Title  string
	Header []string
	Rows   [][]string
	Text   bool // the cells are sentences
}

// mostListed is how many points of a chart its table on a page lists.
const mostListed = 200

// HTML writes p as one file.
func HTML(w io.Writer, p *Page) error {
	d := new(drawing)
	d.put("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n<title>%s</title>\n"+
		"<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<style>%s%s</style>\n</head>\n"+
		"<body>\n<h1>%[1]s</h1>\n",
		escape(p.Title), pageStyle, style)
	if p.Lead != "" {
		d.put("<p class=\"lead\">%s</p>\n", escape(p.Lead))
	}
	for i := range p.Tables {
		d.table(&p.Tables[i])
	}
	for i := range p.Charts {
		c := &p.Charts[i]
		body := new(drawing)
		high := body.chart(c)
		d.put("<figure>\n<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %d %s\" role=\"img\" "+
			"aria-label=\"%s\">\n%s</svg>\n", width, num(high), escape(c.Title), body.Bytes())
		if rows, all := c.rows(mostListed); all {
			d.put("<details><summary>numbers</summary>\n")
			d.table(&Table{Header: []string{"series", axisName(&c.X, "x"), axisName(&c.Y, "y")}, Rows: rows})
			d.put("</details>\n")
		}
		d.put("</figure>\n")
	}
	for i := range p.Notes {
		d.table(&p.Notes[i])
	}
	d.put("</body>\n</html>\n")
	_, err := w.Write(d.Bytes())
	return err
}

func axisName(a *Axis, none string) string {
	if a.Label == "" {
		return none
	}
	return a.Label
}

// rows lists the points as they are read, unless there are more than most.
func (c *Chart) rows(most int) (rows [][]string, all bool) {
	for _, s := range c.Series {
		for _, p := range s.Points {
			if len(rows) == most {
				return nil, false
			}
			x := format(p.X, c.X.Unit, p.X)
			if i := int(p.X); i >= 0 && i < len(c.X.Names) {
				x = c.X.Names[i]
			}
			rows = append(rows, []string{s.Name, x, format(p.Y, c.Y.Unit, p.Y)})
		}
	}
	return rows, len(rows) > 0
}

func (d *drawing) table(t *Table) {
	class := ""
	if t.Text {
		class = " class=\"text\""
	}
	d.put("<div class=\"scroll\"><table%s>\n", class)
	if t.Title != "" {
		d.put("<caption>%s</caption>\n", escape(t.Title))
	}
	for i, row := range append([][]string{t.Header}, t.Rows...) {
		cell := "td"
		if i == 0 {
			cell = "th"
		}
		d.put("<tr>")
		for _, text := range row {
			d.put("<%s>%s</%[1]s>", cell, escape(text))
		}
		d.put("</tr>\n")
	}
	d.put("</table></div>\n")
}

// CSV writes a line for each point of the charts, not thinned, and for each mark, with numbers as
// they are.
func CSV(w io.Writer, charts ...Chart) error {
	out := csv.NewWriter(w)
	_ = out.Write([]string{"chart", "series", "x", "x unit", "y", "y unit", "text"}) // Flush tells of errors
	for _, c := range charts {
		for _, s := range c.Series {
			for _, p := range s.Points {
				x := strconv.FormatFloat(p.X, 'g', -1, 64)
				if i := int(p.X); i >= 0 && i < len(c.X.Names) {
					x = c.X.Names[i]
				}
				_ = out.Write(plain(c.Title, s.Name, x, string(c.X.Unit), strconv.FormatFloat(p.Y, 'g', -1, 64),
					string(c.Y.Unit), p.Text))
			}
		}
		for _, m := range c.Marks {
			_ = out.Write(plain(c.Title, "event", strconv.FormatFloat(m.X, 'g', -1, 64), string(c.X.Unit), "",
				"", m.Text))
		}
	}
	out.Flush()
	return out.Error()
}

// plain keeps texts from being formulas where a spreadsheet opens the file.
func plain(cells ...string) []string {
	for i, c := range cells {
		if _, err := strconv.ParseFloat(c, 64); err != nil && strings.ContainsAny(c[:min(len(c), 1)], "=+-@\t\r") {
			cells[i] = "'" + c
		}
	}
	return cells
}

// Write writes a page in the form that a file's name asks for: .html, .svg or .csv.
func Write(w io.Writer, name string, p *Page) error {
	switch form(name) {
	case ".html":
		return HTML(w, p)
	case ".svg":
		return SVG(w, p.Charts...)
	case ".csv":
		return CSV(w, p.Charts...)
	}
	return fmt.Errorf("%s: want a name that ends with .html, .svg or .csv", name)
}

// Writable reports whether Write knows the form that a file's name asks for.
func Writable(name string) bool { return form(name) != "" }

func form(name string) string {
	name = strings.ToLower(name)
	for _, f := range []string{".html", ".svg", ".csv"} {
		if strings.HasSuffix(name, f) {
			return f
		}
	}
	return ""
}
