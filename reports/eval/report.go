// Package eval does a paper's evaluation again. An Experiment has Trials, simulations for the most
// part, and makes a Part of a Report of their Results: a table, and a Verdict on each statement
// that the paper makes about it.
package eval

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/farkv/farkv/ops/format"
	"github.com/farkv/farkv/ops/table"
	"github.com/farkv/farkv/reports/plot"
)

// Report is the evaluation of a paper, done again.
type Report struct {
	Paper string  `json:"paper"`
	SetUp string  `json:"set_up"` // what holds for all parts
	Parts []*Part `json:"parts"`
	// Markdown makes Print write Markdown instead of plain text.
	Markdown bool `json:"-"`
}

// Part is a figure of the paper.
type Part struct {
	Name   string   `json:"name"`
	Title  string   `json:"title"`
	SetUp  string   `json:"set_up"` // beyond that of the Report
	Header []string `json:"header"`
	Rows   [][]Cell `json:"rows"`
	// Units are those of the columns' numbers, for plots.
	Units  []plot.Unit `json:"units,omitempty"`
	Claims []Verdict   `json:"claims"`
	Notes  []string    `json:"notes,omitempty"`
	Paper  *Paper      `json:"-"` // that the part is of
	quick  bool
	small  map[string]string // statements for which this size does not suffice, and why
	work   map[string]any    // what its trials computed, by their names
}

// Print writes r as text or Markdown.
func (r *Report) Print(w io.Writer) {
	if r.Markdown {
		fmt.Fprintf(w, "# %s\n\n%s\n", r.Paper, r.SetUp)
	} else {
		fmt.Fprintf(w, "%s\n%s\n", r.Paper, r.SetUp)
	}
	for _, p := range r.Parts {
		p.print(w, r.Markdown)
	}
	fmt.Fprintf(w, "\n%s\n", r.sum())
}

// sum counts the verdicts.
func (r *Report) sum() string {
	n, all, shown := map[Outcome]int{}, 0, 0
	for _, p := range r.Parts {
		for _, c := range p.Claims {
			all++
			n[c.Outcome]++
			if c.Shown {
				shown++
			}
		}
	}
	return fmt.Sprintf("Of %s %s and %s, %d of them for a reason that an experiment shows;\n"+
		"%s for nothing, and for %d this size is too small to tell.", format.Plural(all, "statement", "statements"),
		format.Plural(n[Holds], "holds", "hold"), format.Plural(n[Differs], "differs", "differ"), shown,
		format.Plural(n[Fitted], "is fitted and counts", "are fitted and count"), n[TooSmall])
}

func (p *Part) print(w io.Writer, markdown bool) {
	heading := "\n%s: %s\n%s\n\n"
	if markdown {
		heading = "\n## %s: %s\n\n%s\n\n"
	}
	fmt.Fprintf(w, heading, p.Name, p.Title, p.SetUp)
	p.table(w, markdown)
	fmt.Fprintln(w)
	for _, c := range p.Claims {
		text := fmt.Sprintf("%s %s: %s. Ours: %s.", c.Paper, c.Section, c.Says, c.Ours)
		if c.When != "" {
			text = fmt.Sprintf("%s %s: %s. It counts as that when %s. Ours: %s.", c.Paper, c.Section, c.Says,
				c.When, c.Ours)
		}
		if c.Why != "" {
			text += " " + c.Why
		}
		paragraph(w, fmt.Sprintf("%-*s ", markWidth, c.Outcome), text, markdown)
	}
	for _, n := range p.Notes {
		paragraph(w, strings.Repeat(" ", markWidth+1), n, markdown)
	}
}

const (
	most      = 120 // characters of a line of text
	markWidth = len(TooSmall)
)

// paragraph prints a text behind its mark, in lines that are not too long; in Markdown, as an item
// of a list.
func paragraph(w io.Writer, mark, text string, markdown bool) {
	if markdown {
		if mark = strings.TrimSpace(mark); mark != "" {
			mark = "**" + mark + "** "
		}
		fmt.Fprintf(w, "- %s%s\n", mark, text)
		return
	}
	for _, line := range table.Wrap(text, most-len(mark)) {
		fmt.Fprintf(w, "%s%s\n", mark, line)
		mark = strings.Repeat(" ", len(mark))
	}
}

// table prints the rows in columns: the first left-aligned, the others right-aligned.
func (p *Part) table(w io.Writer, markdown bool) {
	rows := [][]string{p.Header}
	for _, r := range p.Rows {
		texts := make([]string, len(p.Header))
		for i, c := range r {
			texts[i] = c.Text
		}
		rows = append(rows, texts)
	}
	if !markdown {
		table.Print(w, rows)
		return
	}
	rule := slices.Repeat([]string{"--:"}, len(p.Header))
	rule[0] = "---"
	for _, cells := range slices.Insert(rows, 1, rule) {
		fmt.Fprintf(w, "| %s |\n", strings.Join(cells, " | "))
	}
}
