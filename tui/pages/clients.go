package pages

import (
	"fmt"
	"strings"
	"time"

	"github.com/charmbracelet/bubbles/key"
	tea "github.com/charmbracelet/bubbletea"

	"github.com/farkv/farkv/node/telemetry"
	"github.com/farkv/farkv/tui/components"
	"github.com/farkv/farkv/tui/history"
	"github.com/farkv/farkv/tui/problems"
	"github.com/farkv/farkv/tui/styles"
)

// Clients are the identities in use with their processes, and processes that hold none.
type Clients struct {
	table  components.Table[clientRow]
	detail bool
	made   madeFor
	rows   []clientRow
}

// clientRow is a client and its process, of which either may be unknown. Clients of a process share
// its figures.
type clientRow struct {
	id          int
	name, state string
	pid         int
	process     *telemetry.Process
	shared      int // clients of the process
	rate        float64
	p99         time.Duration
	hits        float64 // of caches; negative: not known
}

func (c clientRow) host() string {
	if c.process == nil {
		return ""
	}
	return c.process.Host
}

// recentPoints is over how many points the p99 of a process is taken.
const recentPoints = 10

// NewClients returns the page.
func NewClients() *Clients {
	p := &Clients{}
	p.table = components.Table[clientRow]{
		Empty: "no client uses the pool", Key: func(c clientRow) string {
			return fmt.Sprintf("%d %s %d", c.id,
				c.host(), c.pid)
		},
		Columns: []components.Column[clientRow]{
			{Title: "client", Width: 6, Left: true, Text: func(c clientRow) string {
				if c.id == 0 {
					return "–"
				}
				return fmt.Sprint(c.id)
			}, Order: func(a, b clientRow) int { return compare(a.id, b.id) }},
			{Title: "state", Width: 9, Left: true, Text: func(c clientRow) string { return c.state },
				Style: func(c clientRow) styles.ID {
					return stateStyle(c.state)
				}},
			{Title: "name", Width: 10, Left: true, Grow: true, Text: func(c clientRow) string { return c.name }},
			{Title: "host", Width: 10, Left: true, Drop: 3, Text: clientRow.host},
			{Title: "process", Width: 7, Drop: 2, Text: func(c clientRow) string { return fmt.Sprint(c.pid) },
				Order: func(a, b clientRow) int { return compare(a.pid, b.pid) }},
			{Title: "ops/s", Width: 8, Text: func(c clientRow) string {
				if c.process == nil {
					return "–"
				}
				return components.Count(c.rate)
			}, Order: func(a, b clientRow) int { return compare(a.rate, b.rate) }},
			{Title: "p99", Width: 8, Text: func(c clientRow) string { return components.Latency(c.p99) },
				Order: func(a, b clientRow) int { return compare(a.p99, b.p99) }},
			{Title: "cached", Width: 6, Drop: 4, Text: func(c clientRow) string {
				if c.hits < 0 {
					return "–"
				}
				return components.Percent(c.hits)
			}, Order: func(a, b clientRow) int { return compare(a.hits, b.hits) }},
			{Title: "oldest", Width: 7, Drop: 5, Text: func(c clientRow) string {
				if c.process == nil {
					return "–"
				}
				return components.Latency(c.process.Oldest)
			}, Style: func(c clientRow) styles.ID {
				if c.process != nil && c.process.Oldest >= problems.StuckAfter {
					return styles.Bad
				}
				return styles.Plain
			}},
		},
	}
	return p
}

func stateStyle(state string) styles.ID {
	switch state {
	case "live", "":
		return styles.Good
	case "fenced":
		return styles.Warn
	}
	return styles.Bad
}

// Name returns the page's name.
func (*Clients) Name() string { return "Clients" }

// About says what is seen.
func (*Clients) About() string {
	return "The clients that hold an identity of the pool, and their processes. Operations, p99 of the last samples, " +
		"the part of cache lookups that hit, and the age of the oldest running operation are those of the whole " +
		"process. A dead client waits for its recovery; a fenced one can write nothing any more."
}

// Keys are the page's own.
func (*Clients) Keys() []key.Binding { return []key.Binding{keyEnter, keySort, keyReverse} }

// Key takes a key.
func (p *Clients) Key(_ *Env, k tea.KeyMsg) (tea.Cmd, bool) {
	return nil, tableKey(&p.table, &p.detail, k)
}

// Move selects another row.
func (p *Clients) Move(_ *Env, n int) { p.table.Move(n) }

// set joins clients and processes by their process numbers.
func (p *Clients) set(e *Env) {
	made := e.made(false)
	if made != p.made || p.rows == nil {
		p.made, p.rows = made, joinClients(e)
	}
	p.table.Set(p.rows, e.Filter)
}

func joinClients(e *Env) (rows []clientRow) {
	s, point := e.sample(), e.Point()
	byPID := map[int]*telemetry.Process{}
	twice, used := map[int]bool{}, map[int]int{}
	for i := range s.Processes {
		q := &s.Processes[i]
		twice[q.PID] = byPID[q.PID] != nil // of two hosts: not known which
		byPID[q.PID] = q
	}
	figures := map[history.ProcessID]clientRow{}
	for i := range s.Processes {
		q := &s.Processes[i]
		id := history.IDOf(q)
		figures[id] = clientRow{process: q, rate: point.RateOf(id), p99: e.recent(id).Percentile(99),
			hits: hitRate(point.Of(id))}
	}
	for _, c := range s.Clients {
		row := clientRow{hits: -1}
		if q := byPID[c.PID]; q != nil && !twice[c.PID] {
			row = figures[history.IDOf(q)]
			used[c.PID]++
		}
		row.id, row.name, row.state, row.pid = c.ID, c.Name, c.State, c.PID
		rows = append(rows, row)
	}
	for i := range s.Processes {
		q := &s.Processes[i]
		if used[q.PID] == 0 {
			row := figures[history.IDOf(q)]
			row.name, row.pid = q.Name, q.PID
			rows = append(rows, row)
		}
	}
	for i := range rows {
		rows[i].shared = used[rows[i].pid]
	}
	return rows
}

// recent returns the latencies of a process's last points.
func (e *Env) recent(id history.ProcessID) history.Distribution {
	points := e.Points()
	var all []history.Distribution
	for i := range points[max(len(points)-recentPoints, 0):] {
		if q := points[max(len(points)-recentPoints, 0)+i].Of(id); q != nil {
			for k := range q.Ops {
				all = append(all, q.Ops[k].Latency)
			}
		}
	}
	return history.Merge(all...)
}

// hitRate returns the part of lookups in caches that hit, by the counters that name them; negative:
// not known.
func hitRate(q *history.Process) float64 {
	var hits, misses float64
	if q != nil {
		for _, c := range q.Own {
			switch name := strings.ToLower(c.Name); {
			case strings.Contains(name, "cache") && strings.Contains(name, "hit"):
				hits += float64(c.Count)
			case strings.Contains(name, "cache") && strings.Contains(name, "miss"):
				misses += float64(c.Count)
			}
		}
	}
	if hits+misses == 0 {
		return -1
	}
	return hits / (hits + misses)
}

// Draw draws the page.
func (p *Clients) Draw(e *Env, a components.Area) {
	p.set(e)
	c, ok := p.table.Selected()
	if p.detail && ok {
		p.details(e, a, c)
		return
	}
	p.table.Draw(heading(a, "Clients", &p.table))
}

// details draws all that is known of a client and its process.
func (p *Clients) details(e *Env, a components.Area, c clientRow) {
	title := fmt.Sprintf("Client %d", c.id)
	if c.id == 0 {
		title = "A process without an identity"
	}
	a.Heading(0, title)
	rows := [][2]string{{"name", c.name}, {"state", c.state}, {"process", fmt.Sprint(c.pid)}}
	q := c.process
	if q == nil {
		rows = append(rows, [2]string{"figures",
			"not known: the process wrote no record, or two hosts have one of this number"})
		pairs(a, 1, rows...)
		return
	}
	rows = append(rows, [2]string{"host", q.Host}, [2]string{"program", q.Name},
		[2]string{"began", q.Began.Format("2006-01-02 15:04:05")},
		[2]string{"workers", fmt.Sprintf("%d, %s of the process", q.Workers, problems.Counted(uint64(c.shared),
			"client"))},
		[2]string{"oldest", components.Latency(q.Oldest)})
	id := history.IDOf(q)
	d := e.recent(id)
	rows = append(rows, [2]string{"latency", fmt.Sprintf("p50 %s, p99 %s, p99.9 %s",
		components.Latency(d.Percentile(50)),
		components.Latency(d.Percentile(99)), components.Latency(d.Percentile(99.9)))})
	y := pairs(a, 1, rows...)
	if point := e.Point().Of(id); point != nil {
		for _, o := range point.Own {
			if y+8 > a.H {
				break
			}
			a.Text(2, y, styles.Muted, components.Fit(o.Name, 28))
			a.Text(32, y, styles.Plain, rateOf(o.Count, e.Point().Span)+" a second")
			y++
		}
	}
	rest := a.Sub(0, y+1, a.W, a.H-y-1)
	rest.Heading(0, "Operations a second")
	chart := e.chart(a.W)
	chart.Lines = []components.Line{line(c.name, styles.Series, e.Points(),
		func(p *history.Point) float64 { return p.RateOf(id) })}
	chart.Draw(rest.Sub(0, 1, rest.W, rest.H-1))
}

// Figure returns the table.
func (p *Clients) Figure(e *Env) Figure {
	p.set(e)
	return figureOf("Clients", &p.table)
}
