package pages

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/charmbracelet/bubbles/key"
	tea "github.com/charmbracelet/bubbletea"

	"github.com/farkv/farkv/node/telemetry"
	"github.com/farkv/farkv/tui/components"
	"github.com/farkv/farkv/tui/history"
	"github.com/farkv/farkv/tui/problems"
	"github.com/farkv/farkv/tui/styles"
)

// Overview is throughput, latency and errors over time, and how well the pool is.
type Overview struct {
	byProcess bool
	byName    bool // series are sorted by name, not by rate
	focus     int  // the chart that enter enlarges
	large     bool
}

// NewOverview returns the page.
func NewOverview() *Overview { return &Overview{} }

// Name returns the page's name.
func (*Overview) Name() string { return "Overview" }

// About says what is seen.
func (*Overview) About() string {
	return "Throughput by operation or by process, latency percentiles of all operations, and operations that failed " +
		"or whose outcome is unknown. A red mark is where something broke, a green one where it was healed, a blue " +
		"one where a master was elected. Figures are those of the newest sample, or those at the cursor."
}

var keyBy = binding("by operation, process", "o")

var (
	keyEnter   = binding("details", "enter")
	keyBack    = binding("back", "esc")
	keySort    = binding("sort by another column", "s")
	keyReverse = binding("sort in reverse", "S")
)

// Keys are the page's own.
func (*Overview) Keys() []key.Binding { return []key.Binding{keyBy, keyEnter, keySort} }

// Key takes a key.
func (p *Overview) Key(_ *Env, k tea.KeyMsg) (tea.Cmd, bool) {
	switch {
	case key.Matches(k, keyBy):
		p.byProcess = !p.byProcess
	case key.Matches(k, keyEnter):
		p.large = !p.large
	case key.Matches(k, keyBack) && p.large:
		p.large = false
	case key.Matches(k, keySort, keyReverse):
		p.byName = !p.byName
	default:
		return nil, false
	}
	return nil, true
}

// Move chooses the chart that enter enlarges.
func (p *Overview) Move(_ *Env, n int) { p.focus = min(max(p.focus+n, 0), 2) }

// Draw draws the page.
func (p *Overview) Draw(e *Env, a components.Area) {
	charts := []func(*Env, components.Area){p.throughput, p.latency, p.errors}
	if p.large {
		charts[p.focus](e, a)
		return
	}
	top, rest := a.Top(2)
	p.tiles(e, top)
	health := 1
	if a.W >= 120 {
		left, right := rest.Left(rest.W - 46)
		p.side(e, right.Sub(2, 1, right.W-2, right.H-1))
		rest, health = left, 0
	}
	top, rest = rest.Top(health)
	if health > 0 {
		p.health(e, top)
	}
	fill := 0
	if a.W < 120 && len(e.sample().Fill) > 0 {
		fill = 1
	}
	body := rest.H - fill
	var heights [3]int
	switch {
	case body >= 26:
		heights[2] = body / 4
	case body >= 16:
		heights[2] = 2
	default:
		heights[2] = 1
	}
	heights[0] = (body - heights[2] + 1) / 2
	heights[1] = body - heights[2] - heights[0]
	for i, draw := range charts {
		top, rest = rest.Top(heights[i])
		draw(e, top)
		if i == p.focus && heights[i] > 2 {
			top.Put(0, 0, styles.Accent, '▸')
		}
	}
	if fill > 0 {
		p.fill(e, rest)
	}
}

// sample returns the newest sample; an empty one if none came.
func (e *Env) sample() *telemetry.Sample {
	if e.Last == nil {
		return &telemetry.Sample{MayDie: -1}
	}
	return e.Last
}

// tiles draws the figures that matter most.
func (p *Overview) tiles(e *Env, a components.Area) {
	point := e.Point()
	sum := point.Sum()
	var failed, unknown uint64
	for _, q := range e.Points() {
		s := q.Sum()
		failed, unknown = failed+s.Failed, unknown+s.Unknown
	}
	trips := "–"
	if sum.OK > 0 {
		trips = fmt.Sprintf("%.2f", float64(sum.Trips)/float64(sum.OK))
	}
	alarm := func(n uint64, st styles.ID) styles.ID {
		if n > 0 {
			return st
		}
		return styles.Strong
	}
	tiles := []struct {
		label, value string
		st           styles.ID
	}{
		{"ops/s", components.Count(sum.Rate), styles.Strong},
		{"p50", components.Latency(point.Total.P50), styles.Strong},
		{"p99", components.Latency(point.Total.P99), styles.Strong},
		{"p99.9", components.Latency(point.Total.P999), styles.Strong},
		{"failed", components.Count(float64(failed)), alarm(failed, styles.Bad)},
		{"unknown", components.Count(float64(unknown)), alarm(unknown, styles.Warn)},
		{"trips/op", trips, styles.Strong},
	}
	w := min(a.W/len(tiles), 16)
	for i, t := range tiles {
		a.Text(i*w+1, 0, styles.Muted, t.label)
		a.Text(i*w+1, 1, t.st, components.Fit(t.value, w-1))
	}
}

// healthSpans says whether replicas are whole and what may yet happen.
func healthSpans(e *Env) []components.Span {
	s := e.sample()
	whole := components.Span{Style: styles.Good, Text: "● whole"}
	switch {
	case s.Lost:
		whole = components.Span{Style: styles.Bad, Text: "✗ data lost"}
	case s.Busy:
		whole = components.Span{Style: styles.Warn, Text: "○ being mended"}
	case !s.Whole:
		whole = components.Span{Style: styles.Warn, Text: "○ not whole"}
	}
	deaths := components.Span{Style: styles.Muted, Text: "may die: not known"}
	switch {
	case s.MayDie == 0:
		deaths = components.Span{Style: styles.Warn, Text: "no more may die"}
	case s.MayDie > 0:
		deaths = components.Span{Text: fmt.Sprintf("%d more may die", s.MayDie)}
	}
	master := components.Span{Style: styles.Warn, Text: "no master"}
	if s.Master != 0 {
		master = components.Span{Text: fmt.Sprintf("master client %d", s.Master)}
	}
	return []components.Span{
		whole, deaths, {Text: problems.Counted(uint64(s.Spares), "spare")}, master, {Style: styles.Muted,
			Text: fmt.Sprintf("epoch %d", s.Epoch)},
	}
}

// health draws the spans in one row, as far as they fit as a whole.
func (p *Overview) health(e *Env, a components.Area) {
	x := 1
	for i, s := range healthSpans(e) {
		if i > 0 {
			if x+3+components.Columns(s.Text) > a.W {
				return
			}
			x = a.Text(x, 0, styles.Faint, " · ")
		}
		x = a.Text(x, 0, s.Style, s.Text)
	}
}

// side draws what has room beside the charts on wide terminals.
func (p *Overview) side(e *Env, a components.Area) {
	a.Heading(0, "Pool")
	y := 1
	for _, s := range healthSpans(e) {
		a.Text(1, y, s.Style, components.Fit(s.Text, a.W-1))
		y++
	}
	y++
	a.Heading(y, "Fill")
	y++
	for _, f := range e.sample().Fill {
		drawFill(a.Sub(1, y, a.W-1, 1), f)
		y++
	}
	y++
	if all := p.processes(e); len(all) > 0 {
		a.Heading(y, "Processes", components.Span{Style: styles.Muted, Text: "ops/s"})
		y++
		room := max((a.H-y)/2-1, 1)
		for i, x := range all[:min(len(all), room)] {
			a.Put(1, y, styles.OfSeries(i), '●')
			a.Text(3, y, styles.Plain, components.Fit(x.name, a.W-13))
			a.Right(a.W-1, y, styles.Plain, components.Count(x.rate))
			y++
		}
		if len(all) > room {
			a.Text(3, y, styles.Muted, fmt.Sprintf("and %d more", len(all)-room))
			y++
		}
		y++
	}
	a.Heading(y, "Events")
	y++
	for i := len(e.H.Events) - 1; i >= 0 && y < a.H; i-- {
		ev := &e.H.Events[i]
		a.Put(1, y, eventStyle(ev.What), '●')
		end := a.Text(3, y, styles.Muted, clock(e, ev.At))
		a.Text(end+1, y, styles.Plain, components.Fit(eventText(ev), a.W-end-1))
		y++
	}
}

// drawFill draws one part of the pool and how full it is.
func drawFill(a components.Area, f telemetry.Fill) {
	part := 0.0
	if f.All > 0 {
		part = float64(f.Used) / float64(f.All)
	}
	st := styles.Good
	switch {
	case part > problems.NearlyFullAt:
		st = styles.Bad
	case part > problems.FullAt:
		st = styles.Warn
	}
	label := min(max(a.W/2-1, 10), 18)
	a.Text(0, 0, styles.Muted, components.Fit(f.Of, label-1))
	a.Bar(label, 0, a.W-label-7, st, part)
	a.Right(a.W-1, 0, styles.Plain, components.Percent(part))
}

// fill draws as many parts as have room in one row.
func (p *Overview) fill(e *Env, a components.Area) {
	all := e.sample().Fill
	n := min(len(all), max(a.W/30, 1))
	for i, f := range all[:n] {
		w := a.W / n
		drawFill(a.Sub(i*w+1, 0, w-1, 1), f)
	}
}

// named is a process and its rate.
type named struct {
	id   history.ProcessID
	name string
	rate float64
}

// processes returns those of the point that are no less than the filter, fastest first.
func (p *Overview) processes(e *Env) (all []named) {
	point := e.Point()
	names := map[history.ProcessID]string{}
	for i := range e.sample().Processes {
		q := &e.sample().Processes[i]
		names[history.IDOf(q)] = fmt.Sprintf("%s %s:%d", q.Name, q.Host, q.PID)
	}
	for i := range point.Processes {
		q := &point.Processes[i]
		name, ok := names[q.ID]
		if !ok {
			name = fmt.Sprintf("%s:%d", q.ID.Host, q.ID.PID)
		}
		if strings.Contains(strings.ToLower(name), strings.ToLower(e.Filter)) {
			all = append(all, named{q.ID, name, q.Sum().Rate})
		}
	}
	slices.SortFunc(all, func(a, b named) int {
		if p.byName {
			return cmp.Compare(a.name, b.name)
		}
		return cmp.Or(-cmp.Compare(a.rate, b.rate), cmp.Compare(a.name, b.name))
	})
	return all
}

// series returns the lines of throughput and their legend.
func (p *Overview) series(e *Env) (lines []components.Line, items []components.Span) {
	points, at := e.Points(), e.Point()
	if p.byProcess {
		all := p.processes(e)
		for i, q := range all[:min(len(all), styles.SeriesCount)] {
			st := styles.OfSeries(i)
			lines = append(lines, line(q.name, st, points, func(pt *history.Point) float64 { return pt.RateOf(q.id) }))
			items = append(items, components.Span{Style: st, Text: q.name + " " + components.Count(q.rate)})
		}
		return lines, items
	}
	kinds := usedKinds(points)
	kinds = slices.DeleteFunc(kinds, func(k telemetry.Kind) bool {
		return !strings.Contains(k.String(),
			strings.ToLower(e.Filter))
	})
	if !p.byName {
		slices.SortStableFunc(kinds, func(a, b telemetry.Kind) int {
			return -cmp.Compare(at.Ops[a].Rate,
				at.Ops[b].Rate)
		})
	}
	for _, k := range kinds {
		st := styles.OfSeries(int(k))
		lines = append(lines, line(k.String(), st, points, func(pt *history.Point) float64 { return pt.Ops[k].Rate }))
		items = append(items, components.Span{Style: st, Text: k.String() + " " + components.Count(at.Ops[k].Rate)})
	}
	return lines, items
}

func (p *Overview) throughput(e *Env, a components.Area) {
	title := "  Operations a second"
	if p.byProcess {
		title = "  Operations a second by process"
	}
	c := e.chart(a.W)
	var items []components.Span
	c.Lines, items = p.series(e)
	c.Bare = a.H < 11 && !p.large
	a.Heading(0, title, fitLegend(a.W-components.Columns(title)-4, items)...)
	c.Draw(a.Sub(0, 1, a.W, a.H-1))
	if len(c.Lines) == 0 && e.Filter != "" {
		a.Text(12, 2, styles.Muted, "nothing matches the filter")
	}
}

func (p *Overview) latency(e *Env, a components.Area) {
	lines, items := latencyLines(e)
	a.Heading(0, "  Latency", fitLegend(a.W-14, items)...)
	c := e.chart(a.W)
	c.LogY, c.FormatY, c.Lines = true, components.Tick, lines
	c.Draw(a.Sub(0, 1, a.W, a.H-1))
}

func latencyLines(e *Env) (lines []components.Line, items []components.Span) {
	points, at := e.Points(), e.Point().Total
	for i, q := range []struct {
		name string
		now  string
		of   func(history.Quantiles) float64
	}{
		{"p50", components.Latency(at.P50), func(q history.Quantiles) float64 { return orNaN(q.P50) }},
		{"p99", components.Latency(at.P99), func(q history.Quantiles) float64 { return orNaN(q.P99) }},
		{"p99.9", components.Latency(at.P999), func(q history.Quantiles) float64 { return orNaN(q.P999) }},
	} {
		st := styles.OfSeries([]int{2, 0, 3}[i])
		lines = append(lines, line(q.name, st, points, func(p *history.Point) float64 { return q.of(p.Total) }))
		items = append(items, components.Span{Style: st, Text: q.name + " " + q.now})
	}
	return lines, items
}

func errorLines(e *Env) []components.Line {
	points := e.Points()
	return []components.Line{
		line("failed", styles.Bad, points, func(p *history.Point) float64 { return perSecond(p.Sum().Failed, p.Span) }),
		line("unknown", styles.Warn, points, func(p *history.Point) float64 {
			return perSecond(p.Sum().Unknown,
				p.Span)
		}),
	}
}

// errors draws failed operations and unknown outcomes: as a chart, or in few rows as one row each.
func (p *Overview) errors(e *Env, a components.Area) {
	lines := errorLines(e)
	if a.H >= 5 {
		sum := e.Point().Sum()
		a.Heading(0, "  Not done, a second", legend(
			components.Span{Style: styles.Bad, Text: "failed " + components.Count(float64(sum.Failed))},
			components.Span{Style: styles.Warn, Text: "unknown " + components.Count(float64(sum.Unknown))})...)
		c := e.chart(a.W)
		c.Lines = lines
		c.Draw(a.Sub(0, 1, a.W, a.H-1))
		return
	}
	for y, l := range lines[:min(len(lines), a.H)] {
		text := l.Name + "/s"
		if a.H == 1 {
			text = "errors/s"
			for i, n := range lines[1].Y {
				l.Y[i] += n
			}
		}
		a.Right(8, y, styles.Muted, text)
		values := buckets(e, l, a.W-9)
		a.Fill(9, y, styles.Faint, '·')
		a.Sparkline(9, y, a.W-9, l.Style, values)
	}
}

// Figure returns throughput, percentiles and errors over time.
func (p *Overview) Figure(e *Env) Figure {
	f := Figure{Title: "Operations a second", X: "time", Y: "operations a second", Time: true,
		Marks: e.chart(100).Marks}
	if p.large && p.focus == 1 {
		f.Title, f.Y, f.LogY = "Latency", "nanoseconds", true
		f.Lines, _ = latencyLines(e)
		return f
	}
	f.Lines, _ = p.series(e)
	if p.large && p.focus == 2 {
		f.Title, f.Lines = "Operations not done", errorLines(e)
	}
	return f
}
