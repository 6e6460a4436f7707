package pages

import (
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/charmbracelet/bubbles/key"
	tea "github.com/charmbracelet/bubbletea"

	"github.com/farkv/farkv/tui/components"
	"github.com/farkv/farkv/tui/history"
	"github.com/farkv/farkv/tui/styles"
)

// Latency is distributions of latency over the window, and beside them those of a baseline.
type Latency struct {
	byProcess bool
	detail    bool
	table     components.Table[distribution]
	baseline  map[string]history.Distribution // nil: none is frozen
	frozen    time.Time
	cursor    int // decades' hundredths; 0: none
	made      madeFor
	rows      []distribution
}

// distribution is a row of the table.
type distribution struct {
	name string
	st   styles.ID
	d    history.Distribution
	was  history.Distribution
	p    [6]time.Duration // of percentiles
	n    uint64
}

// madeFor is what rows depend on, so that they are made anew only when it changed.
type madeFor struct {
	last, first time.Time
	points      int
	by          bool
	cursor      time.Time
}

func (e *Env) made(by bool) madeFor {
	points := e.Points()
	m := madeFor{points: len(points), by: by, cursor: e.Cursor}
	if len(points) > 0 {
		m.first, m.last = points[0].At, points[len(points)-1].At
	}
	return m
}

var percentiles = [6]float64{50, 90, 95, 99, 99.9, 99.99}

// NewLatency returns the page.
func NewLatency() *Latency {
	p := &Latency{}
	p.table = components.Table[distribution]{
		Empty: "no operation ended in the window",
		Key:   func(d distribution) string { return d.name },
		Columns: []components.Column[distribution]{
			{Title: "operation", Width: 10, Left: true, Grow: true, Text: func(d distribution) string { return d.name },
				Style: func(d distribution) styles.ID { return d.st }},
			{Title: "count", Width: 7, Drop: 3,
				Text:  func(d distribution) string { return components.Count(float64(d.n)) },
				Order: func(a, b distribution) int { return compare(a.n, b.n) }},
		},
	}
	for i, q := range percentiles {
		p.table.Columns = append(p.table.Columns, components.Column[distribution]{
			Title: fmt.Sprintf("p%v", q), Width: 8, Drop: []int{0, 5, 6, 0, 0, 0}[i],
			Text:  func(d distribution) string { return components.Latency(d.p[i]) },
			Order: func(a, b distribution) int { return compare(a.p[i], b.p[i]) },
		})
	}
	p.table.Columns = append(p.table.Columns,
		components.Column[distribution]{Title: "max", Width: 8, Drop: 4,
			Text:  func(d distribution) string { return components.Latency(d.d.Max()) },
			Order: func(a, b distribution) int { return compare(a.d.Max(), b.d.Max()) }},
		p.ratio("×p50", 50), p.ratio("×p99", 99))
	p.table.SortBy("count")
	return p
}

func compare[T uint64 | float64 | time.Duration | int](a, b T) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}

// ratio returns a column of a percentile over the baseline's.
func (p *Latency) ratio(title string, q float64) components.Column[distribution] {
	of := func(d distribution) float64 {
		if was := d.was.Percentile(q); was > 0 {
			return float64(d.d.Percentile(q)) / float64(was)
		}
		return 0
	}
	return components.Column[distribution]{
		Title: title, Width: 5, Drop: 2, Hide: func() bool { return p.baseline == nil },
		Text: func(d distribution) string {
			if r := of(d); r > 0 {
				return fmt.Sprintf("%.2f", r)
			}
			return ""
		},
		Style: func(d distribution) styles.ID {
			switch r := of(d); {
			case r > 1.25:
				return styles.Bad
			case r > 0 && r < 0.8:
				return styles.Good
			}
			return styles.Plain
		},
		Order: func(a, b distribution) int { return compare(of(a), of(b)) },
	}
}

// Name returns the page's name.
func (*Latency) Name() string { return "Latency" }

// About says what is seen.
func (*Latency) About() string {
	return "How long operations of the window took, over a logarithmic axis, and percentiles. The last columns are " +
		"ratios to the baseline, which is gray. At the cursor, the first column says what part of the operations " +
		"took no longer."
}

var (
	keyBaseline = binding("freeze a baseline", "b")
	keyForget   = binding("drop the baseline", "B")
	keyLeft     = binding("cursor to the left", "left")
	keyRight    = binding("cursor to the right", "right")
)

// Keys are the page's own.
func (*Latency) Keys() []key.Binding {
	return []key.Binding{keyBaseline, keyForget, keyBy, keyEnter, keySort, keyReverse}
}

// Key takes a key. The cursor of this page is one over durations.
func (p *Latency) Key(e *Env, k tea.KeyMsg) (tea.Cmd, bool) {
	switch {
	case key.Matches(k, keyBy):
		p.byProcess, p.baseline = !p.byProcess, nil
	case key.Matches(k, keyBaseline):
		p.baseline, p.frozen = map[string]history.Distribution{}, e.Now
		p.make(e)
		for i := range p.rows {
			p.baseline[p.rows[i].name], p.rows[i].was = p.rows[i].d, p.rows[i].d
		}
	case key.Matches(k, keyForget):
		p.baseline, p.made = nil, madeFor{}
	case key.Matches(k, keyLeft):
		p.moveCursor(-5)
	case key.Matches(k, keyRight):
		p.moveCursor(5)
	case key.Matches(k, keyBack) && !p.detail && p.cursor > 0:
		p.cursor = 0
	default:
		return nil, tableKey(&p.table, &p.detail, k)
	}
	return nil, true
}

// moveCursor moves by hundredths of a decade from 1 ns; a cursor that was not there begins at the
// median.
func (p *Latency) moveCursor(n int) {
	if p.cursor == 0 && len(p.rows) > 0 && p.rows[0].p[0] > 0 {
		p.cursor = int(100 * math.Log10(float64(p.rows[0].p[0])))
	}
	p.cursor = min(max(p.cursor+n, 1), 1150)
}

// Move selects another row.
func (p *Latency) Move(_ *Env, n int) { p.table.Move(n) }

// make merges the distributions of the window, unless they are made.
func (p *Latency) make(e *Env) {
	made := e.made(p.byProcess)
	if made != p.made {
		p.made, p.rows = made, p.distributions(e)
	}
	p.table.Set(p.rows, e.Filter)
}

func (p *Latency) distributions(e *Env) (rows []distribution) {
	points := e.Points()
	parts := map[string][]history.Distribution{}
	var names []string
	colors := map[string]styles.ID{"all": styles.Strong}
	add := func(name string, d history.Distribution) {
		if _, ok := parts[name]; !ok {
			names = append(names, name)
		}
		parts[name] = append(parts[name], d)
	}
	called := map[history.ProcessID]string{}
	for i := range points {
		if !p.byProcess {
			for _, k := range usedKinds(points[i : i+1]) {
				add("all", points[i].Ops[k].Latency)
				add(k.String(), points[i].Ops[k].Latency)
				colors[k.String()] = styles.OfSeries(int(k))
			}
			continue
		}
		for j := range points[i].Processes {
			q := &points[i].Processes[j]
			if called[q.ID] == "" {
				colors[fmt.Sprintf("%s:%d", q.ID.Host, q.ID.PID)] = styles.OfSeries(len(called))
				called[q.ID] = fmt.Sprintf("%s:%d", q.ID.Host, q.ID.PID)
			}
			for k := range q.Ops {
				add(called[q.ID], q.Ops[k].Latency)
			}
		}
	}
	for _, name := range names {
		d := history.Merge(parts[name]...)
		row := distribution{name: name, st: colors[name], d: d, n: d.Count(), was: p.baseline[name]}
		for i, q := range percentiles {
			row.p[i] = d.Percentile(q)
		}
		rows = append(rows, row)
	}
	return slices.DeleteFunc(rows, func(d distribution) bool { return d.n == 0 })
}

// Draw draws the page.
func (p *Latency) Draw(e *Env, a components.Area) {
	p.make(e)
	rows := p.shown(e)
	if p.detail {
		if d, ok := p.table.Selected(); ok {
			rows = []distribution{d}
		}
	}
	below := min(len(p.rows)+2, max(a.H/3, 4))
	top, rest := a.Top(a.H - below)
	var note []components.Span
	if p.baseline != nil {
		note = append(note, components.Span{Style: styles.Muted, Text: "┆ baseline of " + clock(e, p.frozen)})
	}
	if at := p.at(); at > 0 {
		note = append(note, components.Span{Style: styles.Strong, Text: "  ≤ " + components.Latency(at) + ":"})
		for _, d := range rows[:min(len(rows), 4)] {
			note = append(note, components.Span{Style: d.st, Text: fmt.Sprintf("  %s %.2f %%", d.name,
				100*d.d.Below(at))})
		}
	}
	title := "Cumulative latency"
	for len(note) > 0 {
		n := components.Columns(title) + 4
		for _, s := range note {
			n += components.Columns(s.Text)
		}
		if n <= a.W {
			break
		}
		note = note[:len(note)-1]
	}
	top.Heading(0, title, note...)
	p.chart(rows).Draw(top.Sub(0, 1, top.W, top.H-1))
	p.table.Draw(heading(rest, "Percentiles", &p.table))
}

// shown returns the rows that the filter lets pass, and draws first what counts most.
func (p *Latency) shown(e *Env) (rows []distribution) {
	for _, d := range p.rows {
		if e.Filter == "" || strings.Contains(strings.ToLower(d.name), strings.ToLower(e.Filter)) {
			rows = append(rows, d)
		}
	}
	return rows[:min(len(rows), styles.SeriesCount)]
}

// at returns the duration at the cursor; 0: there is none.
func (p *Latency) at() time.Duration {
	if p.cursor == 0 {
		return 0
	}
	return time.Duration(math.Pow(10, float64(p.cursor)/100))
}

// chart returns the curves over the decades that they need.
func (p *Latency) chart(rows []distribution) *components.Chart {
	low, high := math.Inf(1), 0.0
	var lines []components.Line
	curve := func(name string, st styles.ID, d history.Distribution) {
		l := components.Line{Name: name, Style: st}
		for t, f := range d.CDF {
			if t <= 0 {
				continue
			}
			low, high = math.Min(low, float64(t)), math.Max(high, float64(t))
			l.X, l.Y = append(l.X, float64(t)), append(l.Y, f)
		}
		lines = append(lines, l)
	}
	for _, d := range rows {
		if len(d.was) > 0 {
			curve(d.name+", baseline", styles.Muted, d.was)
		}
	}
	for i := len(rows) - 1; i >= 0; i-- {
		curve(rows[i].name, rows[i].st, rows[i].d)
	}
	if high == 0 {
		low, high = 1e3, 1e6
	}
	c := &components.Chart{Lines: lines, LogX: true, Top: 1, Cursor: math.NaN(), FormatY: components.Percent}
	c.From, c.To = math.Pow(10, math.Floor(math.Log10(low))), math.Pow(10, math.Ceil(math.Log10(high)))
	if c.To <= c.From {
		c.To = c.From * 10
	}
	c.Ticks = components.DecadeTicks(c.From, c.To)
	if at := p.at(); at > 0 {
		c.Cursor = float64(at)
	}
	return c
}

// Figure returns the curves and the table.
func (p *Latency) Figure(e *Env) Figure {
	p.make(e)
	f := figureOf("Cumulative latency", &p.table)
	f.X, f.Y, f.LogX = "nanoseconds", "fraction", true
	f.Lines = p.chart(p.shown(e)).Lines
	return f
}
