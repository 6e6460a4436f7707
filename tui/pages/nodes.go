package pages

import (
	"fmt"
	"time"

	"github.com/charmbracelet/bubbles/key"
	tea "github.com/charmbracelet/bubbletea"

	"github.com/farkv/farkv/node/telemetry"
	"github.com/farkv/farkv/tui/components"
	"github.com/farkv/farkv/tui/history"
	"github.com/farkv/farkv/tui/styles"
)

// Nodes are the memory nodes: role, lease, verbs and bytes, and what their persistent memory
// counts.
type Nodes struct {
	table  components.Table[nodeRow]
	detail bool
}

type nodeRow struct {
	telemetry.Node
	history *history.Node
	span    time.Duration
}

func (n nodeRow) state() string {
	switch {
	case n.Role == "gone" || !n.Up:
		return "gone"
	case n.Replaces > 0:
		return fmt.Sprintf("for node %d", n.Replaces-1)
	}
	return "up"
}

// media returns bytes that clients asked to write and that the media wrote, and the same of reads.
func (n nodeRow) media() (asked, wrote, askedRead, read uint64) {
	for _, d := range n.history.DIMMs {
		asked, wrote = asked+64*d.WriteRequests, wrote+64*d.MediaWrites
		askedRead, read = askedRead+64*d.ReadRequests, read+64*d.MediaReads
	}
	return asked, wrote, askedRead, read
}

// dlwa returns the device-level write amplification, or why it is not known.
func (n nodeRow) dlwa() string {
	if n.PMem == nil || n.PMem.Problem != "" || len(n.PMem.DIMMs) == 0 {
		return "–"
	}
	asked, wrote, _, _ := n.media()
	if asked == 0 {
		return "–"
	}
	return fmt.Sprintf("%.2f", float64(wrote)/float64(asked))
}

// NewNodes returns the page.
func NewNodes() *Nodes {
	rate := func(of func(*history.Node) uint64) func(nodeRow) float64 {
		return func(n nodeRow) float64 { return perSecond(of(n.history), n.span) }
	}
	verbs := rate((*history.Node).Verbs)
	read := rate(func(n *history.Node) uint64 { return n.BytesRead })
	wrote := rate(func(n *history.Node) uint64 { return n.BytesWrote })
	number := func(title string, drop int, of func(nodeRow) float64,
		text func(float64) string) components.Column[nodeRow] {
		return components.Column[nodeRow]{Title: title, Width: 8, Drop: drop,
			Text:  func(n nodeRow) string { return text(of(n)) },
			Order: func(a, b nodeRow) int { return compare(of(a), of(b)) }}
	}
	p := &Nodes{}
	p.table = components.Table[nodeRow]{
		Empty: "the pool tells of no nodes", Key: func(n nodeRow) string { return fmt.Sprint(n.ID) },
		Columns: []components.Column[nodeRow]{
			{Title: "node", Width: 4, Left: true, Text: func(n nodeRow) string { return fmt.Sprint(n.ID) },
				Order: func(a, b nodeRow) int { return compare(a.ID, b.ID) }},
			{Title: "role", Width: 6, Left: true, Text: func(n nodeRow) string { return n.Role }},
			{Title: "state", Width: 10, Left: true, Text: nodeRow.state, Style: func(n nodeRow) styles.ID {
				if n.state() == "gone" {
					return styles.Bad
				}
				return styles.Good
			}},
			number("memory", 2, func(n nodeRow) float64 { return float64(n.Bytes) }, components.Bytes),
			number("verbs/s", 0, verbs, components.Count),
			number("read/s", 0, read, components.Bytes),
			number("write/s", 0, wrote, components.Bytes),
			{Title: "lease", Width: 7, Drop: 3, Text: func(n nodeRow) string { return components.Latency(n.Lease) },
				Order: func(a, b nodeRow) int { return compare(a.Lease, b.Lease) }},
			{Title: "DLWA", Width: 5, Drop: 4, Text: nodeRow.dlwa},
			{Title: "address", Width: 14, Left: true, Grow: true, Drop: 5,
				Text: func(n nodeRow) string { return n.Address }},
		},
	}
	return p
}

// Name returns the page's name.
func (*Nodes) Name() string { return "Nodes" }

// About says what is seen.
func (*Nodes) About() string {
	return "The memory nodes: their role, for how long they may serve yet, and verbs and bytes a second, counted by " +
		"clients where nodes do not count. DLWA is device-level write amplification: bytes that persistent memory " +
		"wrote for each byte that it was asked to write; enter shows it by DIMM, or why it is not known."
}

// Keys are the page's own.
func (*Nodes) Keys() []key.Binding { return []key.Binding{keyEnter, keySort, keyReverse} }

// Key takes a key.
func (p *Nodes) Key(_ *Env, k tea.KeyMsg) (tea.Cmd, bool) {
	return nil, tableKey(&p.table, &p.detail, k)
}

// Move selects another row.
func (p *Nodes) Move(_ *Env, n int) { p.table.Move(n) }

func (p *Nodes) set(e *Env) {
	var rows []nodeRow
	for _, n := range e.sample().Nodes {
		rows = append(rows, nodeRow{n, e.ofNode(n.ID), e.Point().Span})
	}
	p.table.Set(rows, e.Filter)
}

// Draw draws the page.
func (p *Nodes) Draw(e *Env, a components.Area) {
	p.set(e)
	n, ok := p.table.Selected()
	if p.detail && ok {
		p.details(e, a, n)
		return
	}
	s := e.sample()
	// The table comes first, then what memory is used for. The chart has its least height, or is
	// left out.
	const leastChart = 6
	memory := len(s.Memory) + len(s.Fill) + 2
	tableH := min(len(s.Nodes)+3, max(a.H-memory-leastChart, a.H/2))
	charted := a.H-tableH-memory >= leastChart
	if !charted {
		tableH = min(len(s.Nodes)+3, max(a.H-memory, a.H/2))
	}
	top, rest := a.Top(tableH)
	p.table.Draw(heading(top, "Memory nodes", &p.table))
	if charted {
		var chart components.Area
		chart, rest = rest.Top(rest.H - memory)
		p.chart(e, chart)
	}
	y := 0
	if len(s.Fill) > 0 {
		rest.Heading(y, "Fill")
		y++
		for _, f := range s.Fill {
			drawFill(rest.Sub(2, y, min(rest.W-2, 78), 1), f)
			y++
		}
	}
	if len(s.Memory) > 0 {
		rest.Heading(y, "Memory by purpose")
		y++
		var all uint64
		for _, u := range s.Memory {
			all += u.Bytes
		}
		for _, u := range s.Memory {
			w := min(rest.W-2, 78)
			row := rest.Sub(2, y, w, 1)
			row.Text(0, 0, styles.Muted, components.Fit(u.Purpose, 20))
			if w > 50 {
				row.Bar(22, 0, w-22-22, styles.Series, float64(u.Bytes)/float64(max(all, 1)))
			}
			row.Right(w-9, 0, styles.Plain, components.Bytes(float64(u.Bytes)))
			row.Right(w-1, 0, styles.Muted, components.Count(float64(u.Count)))
			y++
		}
	}
}

// chart draws the verbs of each node over time.
func (p *Nodes) chart(e *Env, a components.Area) {
	c := e.chart(a.W)
	var items []components.Span
	for i, n := range e.sample().Nodes {
		st := styles.OfSeries(i)
		c.Lines = append(c.Lines, verbsLine(e, n.ID, st))
		items = append(items, components.Span{Style: st, Text: fmt.Sprintf("node %d", n.ID)})
	}
	a.Heading(0, "Verbs a second", fitLegend(a.W-20, items)...)
	c.Draw(a.Sub(0, 1, a.W, a.H-1))
}

func verbsLine(e *Env, id int, st styles.ID) components.Line {
	return nodeLine(e, id, fmt.Sprintf("node %d", id), st, (*history.Node).Verbs)
}

// nodeLine returns a counter of a node a second.
func nodeLine(e *Env, id int, name string, st styles.ID, of func(*history.Node) uint64) components.Line {
	return line(name, st, e.Points(), func(p *history.Point) float64 {
		for i := range p.Nodes {
			if p.Nodes[i].ID == id {
				return perSecond(of(&p.Nodes[i]), p.Span)
			}
		}
		return 0
	})
}

// details draws all that is known of a node.
func (p *Nodes) details(e *Env, a components.Area, n nodeRow) {
	a.Heading(0, fmt.Sprintf("Node %d", n.ID))
	lease := "needs none"
	if n.Lease > 0 {
		lease = components.Latency(n.Lease)
	}
	rows := [][2]string{
		{"role", n.Role + ", " + n.state()}, {"address", n.Address}, {"memory", components.Bytes(float64(n.Bytes))},
		{"lease", lease},
		{"verbs/s", fmt.Sprintf("%s READ, %s WRITE, %s atomics, %s calls", rateOf(n.history.Reads, n.span),
			rateOf(n.history.Writes, n.span), rateOf(n.history.Atomics, n.span), rateOf(n.history.Calls, n.span))},
	}
	if n.Problem != "" {
		rows = append(rows, [2]string{"problem", n.Problem})
	}
	switch {
	case n.PMem == nil:
		rows = append(rows, [2]string{"DLWA", "not known: the node tells nothing of persistent memory"})
	case n.PMem.Problem != "":
		rows = append(rows, [2]string{"DLWA", "not known: " + n.PMem.Problem})
	default:
		asked, wrote, askedRead, read := n.media()
		dlwa := n.dlwa()
		if n.PMem.Model {
			dlwa += ", by a model: there are no modules"
		}
		rows = append(rows, [2]string{"DLWA", dlwa},
			[2]string{"requests", byteRate(askedRead, n.span) + " read, " + byteRate(asked, n.span) + " written"},
			[2]string{"media", byteRate(read, n.span) + " read, " + byteRate(wrote, n.span) + " written"})
	}
	y := pairs(a, 1, rows...)
	for i, d := range n.history.DIMMs {
		if y+7 > a.H || i > 11 {
			break
		}
		a.Text(2, y, styles.Muted, "DIMM "+d.ID)
		a.Text(20, y, styles.Plain, components.Fit(fmt.Sprintf("requests %s, media %s written",
			byteRate(64*d.WriteRequests, n.span),
			byteRate(64*d.MediaWrites, n.span)), a.W-20))
		y++
	}
	rest := a.Sub(0, y+1, a.W, a.H-y-1)
	rest.Heading(0, "Verbs a second", fitLegend(rest.W-20, []components.Span{
		{Style: styles.OfSeries(0), Text: "READ"}, {Style: styles.OfSeries(1), Text: "WRITE"},
		{Style: styles.OfSeries(2), Text: "atomics"}})...)
	c := e.chart(a.W)
	c.Lines = []components.Line{
		nodeLine(e, n.ID, "READ", styles.OfSeries(0), func(n *history.Node) uint64 { return n.Reads }),
		nodeLine(e, n.ID, "WRITE", styles.OfSeries(1), func(n *history.Node) uint64 { return n.Writes }),
		nodeLine(e, n.ID, "atomics", styles.OfSeries(2), func(n *history.Node) uint64 { return n.Atomics }),
	}
	c.Draw(rest.Sub(0, 1, rest.W, rest.H-1))
}

func rateOf(n uint64, span time.Duration) string { return components.Count(perSecond(n, span)) }

func byteRate(n uint64, span time.Duration) string {
	return components.Bytes(perSecond(n, span)) + "/s"
}

// Figure returns the verbs of each node over time, and the table.
func (p *Nodes) Figure(e *Env) Figure {
	p.set(e)
	f := figureOf("Memory nodes", &p.table)
	f.X, f.Y, f.Time, f.Marks = "time", "verbs a second", true, e.chart(100).Marks
	for i, n := range e.sample().Nodes {
		f.Lines = append(f.Lines, verbsLine(e, n.ID, styles.OfSeries(i)))
	}
	return f
}
