package pages

import (
	"fmt"
	"strconv"
	"time"

	"github.com/charmbracelet/bubbles/key"
	tea "github.com/charmbracelet/bubbletea"

	"github.com/farkv/farkv/node/telemetry"
	"github.com/farkv/farkv/tui/components"
	"github.com/farkv/farkv/tui/styles"
)

// Events lists what happened to the pool.
type Events struct {
	table  components.Table[telemetry.Event]
	detail bool
}

// NewEvents returns the page.
func NewEvents() *Events {
	p := &Events{}
	text := func(n uint64) string {
		if n == 0 {
			return ""
		}
		return strconv.FormatUint(n, 10)
	}
	p.table = components.Table[telemetry.Event]{
		Empty: "no events in the window: the arrows and +, - change it",
		Key:   func(e telemetry.Event) string { return e.At.String() + e.What + e.Text },
		Columns: []components.Column[telemetry.Event]{
			{Title: "time", Width: 12, Text: func(e telemetry.Event) string { return e.At.Format("15:04:05.000") },
				Style: func(telemetry.Event) styles.ID { return styles.Muted },
				Order: func(a, b telemetry.Event) int { return a.At.Compare(b.At) }},
			{Title: "what", Width: 9, Left: true, Text: func(e telemetry.Event) string { return e.What },
				Style: func(e telemetry.Event) styles.ID { return eventStyle(e.What) }},
			{Title: "node", Width: 4, Drop: 2, Text: func(e telemetry.Event) string {
				if !aboutNode(&e) {
					return ""
				}
				return strconv.Itoa(e.Node)
			}, Order: func(a, b telemetry.Event) int { return a.Node - b.Node }},
			{Title: "client", Width: 6, Drop: 2, Text: func(e telemetry.Event) string { return text(uint64(e.Client)) },
				Order: func(a, b telemetry.Event) int { return a.Client - b.Client }},
			{Title: "took", Width: 8, Drop: 1, Text: func(e telemetry.Event) string {
				if e.Took == 0 {
					return ""
				}
				return components.Latency(e.Took)
			}, Order: func(a, b telemetry.Event) int { return int(a.Took - b.Took) }},
			{Title: "epoch", Width: 5, Drop: 3, Text: func(e telemetry.Event) string { return text(epochOf(&e)) },
				Order: func(a, b telemetry.Event) int { return int(epochOf(&a)) - int(epochOf(&b)) }},
			{Title: "text", Width: 28, Left: true, Grow: true,
				Text: func(e telemetry.Event) string { return eventText(&e) }},
		},
	}
	return p
}

// aboutNode reports whether an event names a node. 0 is a node, and what an event about none may
// leave there.
func aboutNode(e *telemetry.Event) bool {
	switch e.What {
	case "expelled", "restored", "broken":
		return e.Node >= 0 && e.Client == 0
	}
	return e.Node > 0
}

// epochOf returns the epoch of an event, 0 if it has none: an election has its tenure there.
func epochOf(e *telemetry.Event) uint64 {
	if e.What == "elected" || e.What == "lost" {
		return 0
	}
	return e.Epoch
}

func eventText(e *telemetry.Event) string {
	if e.Text == "" {
		return e.What
	}
	return e.Text
}

func eventStyle(what string) styles.ID {
	switch what {
	case "broken", "expelled", "failed", "lost":
		return styles.Bad
	case "restored", "recovered", "mended":
		return styles.Good
	case "elected":
		return styles.Accent
	}
	return styles.Muted
}

// clock returns a time as it is said on the page: of virtual time since its beginning.
func clock(e *Env, t time.Time) string {
	if e.sample().Virtual {
		return components.Tick(max(float64(t.UnixNano()), 0))
	}
	return t.Format("15:04:05")
}

// Name returns the page's name.
func (*Events) Name() string { return "Events" }

// About says what is seen.
func (*Events) About() string {
	return "What happened to the pool in the window: masters elected, nodes expelled, replicas mended, spares " +
		"filled, clients recovered, and what was broken on purpose. A master tells it, so nothing is told while " +
		"there is none."
}

// Keys are the page's own.
func (*Events) Keys() []key.Binding { return []key.Binding{keyEnter, keySort, keyReverse} }

// Key takes a key.
func (p *Events) Key(_ *Env, k tea.KeyMsg) (tea.Cmd, bool) {
	return nil, tableKey(&p.table, &p.detail, k)
}

// tableKey takes a key for a table with details.
func tableKey[R any](t *components.Table[R], detail *bool, k tea.KeyMsg) bool {
	switch {
	case key.Matches(k, keyBack) && *detail:
		*detail = false
	case key.Matches(k, keyEnter):
		_, any := t.Selected()
		*detail = any && !*detail
	case key.Matches(k, keySort):
		t.Sort(false)
	case key.Matches(k, keyReverse):
		t.Sort(true)
	default:
		return false
	}
	return true
}

// Move selects another row.
func (p *Events) Move(_ *Env, n int) { p.table.Move(n) }

func (p *Events) set(e *Env) {
	var rows []telemetry.Event
	for _, ev := range e.H.Events {
		if !ev.At.Before(e.From()) && !ev.At.After(e.Now.Add(time.Second)) {
			rows = append(rows, ev)
		}
	}
	p.table.Set(rows, e.Filter)
}

// Draw draws the page.
func (p *Events) Draw(e *Env, a components.Area) {
	p.set(e)
	ev, ok := p.table.Selected()
	if p.detail && ok {
		a.Heading(0, "Event")
		rows := [][2]string{{"time", ev.At.Format("2006-01-02 15:04:05.000000")}, {"what", ev.What}}
		if aboutNode(&ev) {
			rows = append(rows, [2]string{"node", strconv.Itoa(ev.Node)})
		}
		if ev.Client > 0 {
			rows = append(rows, [2]string{"client", strconv.Itoa(ev.Client)})
		}
		rows = append(rows, [2]string{"took", components.Latency(ev.Took)})
		if epoch := epochOf(&ev); epoch > 0 {
			rows = append(rows, [2]string{"epoch", fmt.Sprint(epoch)})
		}
		if ev.Tenure > 0 { // a master told it
			rows = append(rows, [2]string{"tenure", fmt.Sprint(ev.Tenure)})
		}
		y := pairs(a, 1, rows...)
		a.Sub(2, y+1, a.W-4, a.H-y-1).WrapText(0, styles.Plain, ev.Text)
		return
	}
	p.table.Draw(heading(a, "Events", &p.table))
}

// heading draws a title with how many rows of a table are shown, and returns the area below.
func heading[R any](a components.Area, title string, t *components.Table[R]) components.Area {
	shown, all := t.Count()
	count := fmt.Sprint(all)
	if shown != all {
		count = fmt.Sprintf("%d of %d", shown, all)
	}
	a.Heading(0, title, components.Span{Style: styles.Muted, Text: count})
	_, rest := a.Top(1)
	return rest
}

// Figure returns the list.
func (p *Events) Figure(e *Env) Figure {
	p.set(e)
	return figureOf("Events", &p.table)
}

// figureOf returns a table as a figure.
func figureOf[R any](title string, t *components.Table[R]) Figure {
	header, rows := t.Texts()
	return Figure{Title: title, Header: header, Rows: rows}
}
