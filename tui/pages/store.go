package pages

import (
	"fmt"
	"strings"

	"github.com/charmbracelet/bubbles/key"
	tea "github.com/charmbracelet/bubbletea"

	"github.com/farkv/farkv/tui/components"
	"github.com/farkv/farkv/tui/history"
	"github.com/farkv/farkv/tui/styles"
)

// Store is what a store counts of itself.
type Store struct {
	table components.Table[ownRow]
	large bool
}

type ownRow struct {
	index       int // in History.Own
	name        string
	rate, perOp float64
	total       uint64
	nodes       []string // what servers beside nodes have, each; nil: clients count it
}

// ofClients returns a text that only a counter of clients has.
func (r ownRow) ofClients(text string) string {
	if r.nodes != nil {
		return ""
	}
	return text
}

// NewStore returns the page.
func NewStore() *Store {
	p := &Store{}
	p.table = components.Table[ownRow]{
		Empty: "the store counts nothing of itself, or no process tells it",
		Key:   func(r ownRow) string { return r.name },
		Columns: []components.Column[ownRow]{
			{Title: "counter", Width: 24, Left: true, Grow: true, Text: func(r ownRow) string { return r.name },
				Order: func(a, b ownRow) int { return compare(a.index, b.index) }},
			{Title: "a second", Width: 9, Text: func(r ownRow) string { return r.ofClients(components.Count(r.rate)) },
				Order: func(a, b ownRow) int { return compare(a.rate, b.rate) }},
			{Title: "an operation", Width: 12, Drop: 1, Text: func(r ownRow) string {
				return r.ofClients(fmt.Sprintf("%.4f", r.perOp))
			},
				Order: func(a, b ownRow) int { return compare(a.perOp, b.perOp) }},
			{Title: "in all", Width: 9, Text: func(r ownRow) string { return components.Count(float64(r.total)) },
				Order: func(a, b ownRow) int { return compare(a.total, b.total) }},
		},
	}
	return p
}

// Name returns the page's name.
func (*Store) Name() string { return "Store" }

// About says what is seen.
func (*Store) About() string {
	return "What the store counts of itself in all processes, named as in its paper: how often a second, how often " +
		"for each operation, and since the processes began. The chart is of the selected counter. Of servers beside " +
		"memory nodes: what they have now, in all and each."
}

// Keys are the page's own.
func (*Store) Keys() []key.Binding { return []key.Binding{keyEnter, keySort, keyReverse} }

// Key takes a key.
func (p *Store) Key(_ *Env, k tea.KeyMsg) (tea.Cmd, bool) {
	return nil, tableKey(&p.table, &p.large, k)
}

// Move selects another row.
func (p *Store) Move(_ *Env, n int) { p.table.Move(n) }

func (p *Store) set(e *Env) {
	point := e.Point()
	totals := map[string]uint64{}
	for _, q := range e.sample().Processes {
		for _, c := range q.Own {
			totals[c.Name] += c.Count
		}
	}
	ops := point.Sum().OK
	rows := make([]ownRow, 0, len(e.H.Own()))
	for i, name := range e.H.Own() {
		r := ownRow{index: i, name: name, total: totals[name]}
		if i < len(point.Own) {
			r.rate = perSecond(point.Own[i], point.Span)
			if ops > 0 {
				r.perOp = float64(point.Own[i]) / float64(ops)
			}
		}
		rows = append(rows, r)
	}
	p.table.Set(append(rows, serverRows(e, len(rows))...), e.Filter)
}

// serverRows are what the servers beside the nodes count, and have.
func serverRows(e *Env, first int) (rows []ownRow) {
	at := map[string]int{}
	for _, n := range e.sample().Nodes {
		for _, c := range n.Server {
			i, ok := at[c.Name]
			if !ok {
				i = len(rows)
				at[c.Name] = i
				rows = append(rows, ownRow{index: first + i, name: "servers: " + c.Name})
			}
			rows[i].total += c.Count
			rows[i].nodes = append(rows[i].nodes, fmt.Sprintf("node %d: %s", n.ID, components.Count(float64(c.Count))))
		}
	}
	return rows
}

func (r ownRow) line(e *Env, st styles.ID) components.Line {
	return line(r.name, st, e.Points(), func(p *history.Point) float64 {
		if r.index >= len(p.Own) {
			return 0
		}
		return perSecond(p.Own[r.index], p.Span)
	})
}

// Draw draws the page.
func (p *Store) Draw(e *Env, a components.Area) {
	p.set(e)
	selected, ok := p.table.Selected()
	if !ok {
		p.table.Draw(heading(a, "Counters of "+e.sample().Store, &p.table))
		return
	}
	_, n := p.table.Count()
	top, rest := a.Top(min(n+2, max(a.H/2, 4)))
	if p.large {
		top, rest = a.Top(0)
	}
	p.table.Draw(heading(top, "Counters of "+e.sample().Store, &p.table))
	if selected.nodes != nil {
		all := components.Count(float64(selected.total))
		rest.Heading(0, components.Fit(selected.name, a.W/2)+", now", components.Span{Text: all})
		rest.WrapText(1, styles.Plain, strings.Join(selected.nodes, ", "))
		return
	}
	c := e.chart(a.W)
	c.Lines = []components.Line{selected.line(e, styles.Series)}
	rest.Heading(0, components.Fit(selected.name, a.W/2)+", a second",
		components.Span{Text: components.Count(selected.rate)})
	c.Draw(rest.Sub(0, 1, rest.W, rest.H-1))
}

// Figure returns the counters over time, and the table.
func (p *Store) Figure(e *Env) Figure {
	p.set(e)
	f := figureOf("Counters of "+e.sample().Store, &p.table)
	f.X, f.Y, f.Time, f.Marks = "time", "a second", true, e.chart(100).Marks
	for i, name := range e.H.Own() {
		f.Lines = append(f.Lines, ownRow{index: i, name: name}.line(e, styles.OfSeries(i)))
	}
	return f
}
