// Package pages is what the monitor shows, a page a file: each draws a history into an area and
// takes keys. No page knows where samples come from.
package pages

import (
	"math"
	"time"

	"github.com/charmbracelet/bubbles/key"
	tea "github.com/charmbracelet/bubbletea"

	"github.com/farkv/farkv/node/telemetry"
	"github.com/farkv/farkv/tui/components"
	"github.com/farkv/farkv/tui/history"
	"github.com/farkv/farkv/tui/styles"
)

// A Page is one view of a pool.
type Page interface {
	Name() string
	// About says in a few sentences what is seen.
	About() string
	// Keys are those that Key takes beside those of all pages.
	Keys() []key.Binding
	// Key takes a key, and reports whether it was for the page.
	Key(e *Env, k tea.KeyMsg) (cmd tea.Cmd, taken bool)
	// Move selects what is n rows below.
	Move(e *Env, n int)
	// Draw draws the page.
	Draw(e *Env, a components.Area)
	// Figure returns what the page shows, for a file.
	Figure(e *Env) Figure
}

// An Env is what all pages share.
type Env struct {
	H *history.History
	// Last is the newest sample, or the one at which the view was paused; nil: none came yet.
	Last *telemetry.Sample
	// Now is the end of the window: the time of the newest sample, or of where the view is paused.
	Now    time.Time
	Window time.Duration // 0: everything
	Cursor time.Time     // zero: there is none
	Filter string
	// Break is nil where nothing can be broken; WhyNot says why.
	Break  Breaker
	WhyNot string
	// Start begins a break; what comes of it comes as BreakMsg with the number n.
	Start func(n int, what Break)
}

// A Figure is what a page shows, as data.
type Figure struct {
	Title      string
	X, Y       string // labels of the axes
	LogX, LogY bool
	Time       bool // X is in seconds since the epoch
	Lines      []components.Line
	Marks      []components.Mark
	Header     []string // of Rows
	Rows       [][]string
}

// All returns the pages in the order of their keys.
func All() []Page {
	return []Page{NewOverview(), NewLatency(), NewNodes(), NewClients(), NewStore(), NewEvents(), NewBreaks()}
}

// From returns the beginning of the window.
func (e *Env) From() time.Time {
	began := e.H.Began(e.Now)
	if e.Window == 0 {
		return began
	}
	return e.Now.Add(-e.Window)
}

// Points returns those of the window.
func (e *Env) Points() []history.Point { return e.H.In(e.From(), e.Now) }

var none history.Point

// Point returns the one at the cursor, or else the newest; an empty one if there is none.
func (e *Env) Point() *history.Point {
	at := e.Now
	if !e.Cursor.IsZero() {
		at = e.Cursor
	}
	points := e.H.In(time.Time{}, at)
	if len(points) == 0 {
		return &none
	}
	return &points[len(points)-1]
}

// ofNode returns what happened at a node at the cursor, or else last.
func (e *Env) ofNode(id int) *history.Node {
	p := e.Point()
	for i := range p.Nodes {
		if p.Nodes[i].ID == id {
			return &p.Nodes[i]
		}
	}
	return &history.Node{ID: id}
}

func seconds(t time.Time) float64 { return float64(t.UnixNano()) / 1e9 }

// Time returns the time at a place of the axis of X.
func Time(x float64) time.Time { return time.Unix(0, int64(x*1e9)).UTC() }

// chart returns a chart over the window, for an area of w columns. Its end is a multiple of what
// one dot stands for, so that lines move by whole dots and are not drawn anew at every sample.
func (e *Env) chart(w int) *components.Chart {
	to, from := seconds(e.Now), seconds(e.From())
	if to-from < 1e-6 {
		from = to - 1
	}
	plot := max(w-9, 1)
	dot := (to - from) / float64(2*plot)
	span := to - from
	to = math.Ceil(to/dot-1e-6) * dot
	c := &components.Chart{From: to - span, To: to, Cursor: math.NaN(), Gap: e.gap()}
	c.Ticks = components.TimeTicks(c.From, c.To, plot)
	if !e.Cursor.IsZero() {
		c.Cursor = seconds(e.Cursor)
	}
	for _, ev := range e.H.Events {
		if st, ok := markOf(ev.What); ok {
			c.Marks = append(c.Marks, components.Mark{X: seconds(ev.At), Style: st, Text: ev.Text})
		}
	}
	return c
}

// gap returns how far points may be apart to be connected: a few times the usual distance.
func (e *Env) gap() float64 {
	points := e.Points()
	if len(points) == 0 {
		return 0
	}
	var longest time.Duration
	for _, p := range points[max(len(points)-8, 0):] {
		longest = max(longest, p.Span)
	}
	for _, p := range points[:min(len(points), 8)] {
		longest = max(longest, p.Span)
	}
	return longest.Seconds() * history.Gap
}

// markOf returns the style of an event's mark in charts; some have none.
func markOf(what string) (styles.ID, bool) {
	switch what {
	case "broken", "expelled", "failed":
		return styles.Bad, true
	case "restored", "recovered", "mended":
		return styles.Good, true
	case "elected":
		return styles.Accent, true
	}
	return styles.Plain, false
}

// line returns a series over the points of the window.
func line(name string, st styles.ID, points []history.Point, value func(p *history.Point) float64) components.Line {
	l := components.Line{Name: name, Style: st, X: make([]float64, len(points)), Y: make([]float64, len(points))}
	for i := range points {
		l.X[i], l.Y[i] = seconds(points[i].At), value(&points[i])
	}
	return l
}

// orNaN leaves a gap where there is nothing.
func orNaN(d time.Duration) float64 {
	if d <= 0 {
		return math.NaN()
	}
	return float64(d)
}

// perSecond returns a count as a rate.
func perSecond(n uint64, over time.Duration) float64 {
	if over <= 0 {
		return 0
	}
	return float64(n) / over.Seconds()
}

// legend returns the spans of a chart's legend.
func legend(items ...components.Span) (spans []components.Span) {
	for i, it := range items {
		if i > 0 {
			spans = append(spans, components.Span{Text: "  "})
		}
		spans = append(spans, components.Span{Style: it.Style, Text: "─ "}, components.Span{Style: styles.Muted,
			Text: it.Text})
	}
	return spans
}

// fitLegend leaves out the last items while the legend takes more than w columns.
func fitLegend(w int, items []components.Span) []components.Span {
	for len(items) > 0 {
		n := 0
		for _, it := range items {
			n += components.Columns(it.Text) + 4
		}
		if n <= w {
			break
		}
		items = items[:len(items)-1]
	}
	return legend(items...)
}

// binding returns a key map's entry.
func binding(what string, keys ...string) key.Binding {
	return key.NewBinding(key.WithKeys(keys...), key.WithHelp(keys[0], what))
}

// usedKinds returns the kinds of operations that happened in points.
func usedKinds(points []history.Point) (kinds []telemetry.Kind) {
	var used [telemetry.Kinds]bool
	for i := range points {
		for k := range points[i].Ops {
			o := &points[i].Ops[k]
			used[k] = used[k] || o.Rate > 0 || o.OK+o.Failed+o.Unknown > 0
		}
	}
	for k := range telemetry.Kinds {
		if used[k] {
			kinds = append(kinds, k)
		}
	}
	return kinds
}

// pairs draws labels and values in two columns from row y on, and returns the row behind them.
func pairs(a components.Area, y int, rows ...[2]string) int {
	w := 0
	for _, r := range rows {
		w = max(w, components.Columns(r[0]))
	}
	for _, r := range rows {
		a.Text(2, y, styles.Muted, r[0])
		a.Text(2+w+2, y, styles.Plain, components.Fit(r[1], a.W-w-4))
		y++
	}
	return y
}

// buckets returns the greatest value of l in each of n parts of the window.
func buckets(e *Env, l components.Line, n int) []float64 {
	values := make([]float64, max(n, 0))
	from, to := seconds(e.From()), seconds(e.Now)
	for i, v := range l.Y {
		if at := int((l.X[i] - from) / (to - from) * float64(n)); at >= 0 && len(values) > 0 {
			at = min(at, n-1)
			values[at] = max(values[at], v)
		}
	}
	return values
}
