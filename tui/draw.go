package tui

import (
	"fmt"
	"strings"
	"time"

	"github.com/charmbracelet/bubbles/key"

	"github.com/farkv/farkv/tui/components"
	"github.com/farkv/farkv/tui/history"
	"github.com/farkv/farkv/tui/problems"
	"github.com/farkv/farkv/tui/styles"
)

type point = history.Point

// The least size.
const leastW, leastH = 60, 20

// draw draws a frame: tabs, the problem line, the page or what covers it, and keys.
func (m *model) draw(a components.Area) {
	if a.W < leastW || a.H < leastH {
		text := fmt.Sprintf("farkv monitor needs %d x %d; this is %d x %d", leastW, leastH, a.W, a.H)
		a.Sub(0, max(a.H/2-1, 0), a.W, a.H).WrapText(0, styles.Plain, text)
		return
	}
	head, rest := a.Top(1)
	problem, rest := rest.Top(1)
	body, foot := rest.Top(rest.H - 1)
	m.drawTabs(head)
	found := problems.Find(m.history, m.judged())
	m.drawProblem(problem, found)
	switch m.overlay {
	case helpOverlay:
		m.drawHelp(body)
	case problemsOverlay:
		m.drawProblems(body, found)
	case chooserOverlay:
		body.Heading(0, "Pools")
		m.chooser.Draw(body.Sub(0, 1, body.W, body.H-1))
	default:
		if m.history.Last != nil {
			m.pages[m.page].Draw(m.env(), body)
		}
	}
	m.drawFoot(foot)
}

// drawTabs draws the pages, the pool and its time. Where names have no room only that of the open
// page is drawn.
func (m *model) drawTabs(a components.Area) {
	m.tabs = m.tabs[:0]
	named := a.W >= 72
	x := 1
	for i, p := range m.pages {
		number := fmt.Sprint(i + 1)
		if i == m.page {
			a.Put(x-1, 0, styles.Accent, '▸') // colors alone do not tell which page is open where there are none
			x = a.Text(x, 0, styles.Accent, number+" "+p.Name())
		} else {
			x = a.Text(x, 0, styles.Accent, number)
			if named {
				x = a.Text(x, 0, styles.Muted, " "+p.Name())
			}
		}
		m.tabs = append(m.tabs, x+1)
		x += 2
	}
	right := a.W - 1
	if s := m.history.Last; s != nil {
		clock := m.end().Format(time.TimeOnly)
		if s.Virtual {
			clock = components.Tick(max(float64(m.end().UnixNano()), 0))
		}
		right = a.Right(right, 0, styles.Muted, clock) - 2
	}
	name := m.pool
	if s := m.history.Last; s != nil {
		name = strings.TrimSpace(s.Pool + " " + s.Store)
	}
	if room := right - x; room > 6 {
		a.Right(right, 0, styles.Strong, components.Fit(name, room))
	}
}

var severityStyles = [...]styles.ID{
	problems.Notice: styles.Muted, problems.Warning: styles.Warn, problems.Failure: styles.Bad,
	problems.Loss: styles.Alarm,
}

var severityGlyphs = [...]string{problems.Notice: "·", problems.Warning: "▲", problems.Failure: "✗", problems.Loss: "✗"}

// drawProblem draws the worst problem in one line.
func (m *model) drawProblem(a components.Area, found []problems.Problem) {
	if text, st := m.notSeen(); text != "" {
		a.Text(1, 0, st, components.Fit(text, a.W-2))
		return
	}
	if len(found) == 0 {
		a.Text(1, 0, styles.Good, components.Fit("● "+problems.Well(m.history.Last), a.W-2))
		return
	}
	worst, right := found[0], a.W-1
	if len(found) > 1 {
		right = a.Right(right, 0, styles.Muted, fmt.Sprintf("+%d more: !", len(found)-1)) - 2
	}
	a.Text(1, 0, severityStyles[worst.Severity], components.Fit(severityGlyphs[worst.Severity]+" "+worst.Text, right-1))
}

// notSeen says why there is no sample to judge.
func (m *model) notSeen() (string, styles.ID) {
	switch {
	case m.pool == "":
		return "choose a pool with enter", styles.Muted
	case m.openErr != nil && m.history.Last == nil:
		return "✗ cannot open " + m.pool + ": " + m.openErr.Error(), styles.Bad
	case m.openErr != nil:
		age := problems.Duration(m.judged().Sub(m.history.Last.At))
		return "✗ the pool cannot be seen, and was last seen " + age + " ago: " + m.openErr.Error(), styles.Bad
	case m.session == nil:
		return "opening " + m.pool, styles.Muted
	case m.history.Last == nil:
		return "waiting for the first sample", styles.Muted
	}
	return "", styles.Plain
}

// drawFoot draws what is asked for, what was said, or the keys; and the state of the view at the
// right.
func (m *model) drawFoot(a components.Area) {
	right := a.Right(a.W-1, 0, styles.Muted, m.state())
	a = a.Sub(0, 0, right-1, 1)
	switch {
	case m.entry == filterEntry:
		x := a.Spans(1, 0, components.Span{Style: styles.Accent, Text: "/"}, components.Span{Text: m.filter})
		a.Text(x, 0, styles.Muted, "▁")
		return
	case m.entry == exportEntry:
		a.Spans(1, 0, components.Span{Style: styles.Muted, Text: "export: "}, components.Span{Style: styles.Accent,
			Text: "c"},
			components.Span{Style: styles.Muted, Text: " CSV  "}, components.Span{Style: styles.Accent, Text: "s"},
			components.Span{Style: styles.Muted, Text: " SVG  "}, components.Span{Style: styles.Accent, Text: "esc"})
		return
	case m.said != "":
		a.Text(1, 0, styles.Plain, components.Fit(m.said, a.W-1))
		return
	}
	x := 1
	for _, b := range m.hints() {
		h := b.Help()
		if x+components.Columns(h.Key)+1+components.Columns(h.Desc) > a.W {
			break
		}
		x = a.Spans(x, 0, components.Span{Style: styles.Accent, Text: h.Key}, components.Span{Style: styles.Muted,
			Text: " " + h.Desc}) + 2
	}
}

// hints are the keys that the last row shows, the most useful first.
func (m *model) hints() []key.Binding {
	if m.overlay == chooserOverlay {
		return []key.Binding{bind("⏎", "open"), keys.Quit}
	}
	if m.overlay != noOverlay {
		return []key.Binding{keys.Back}
	}
	list := []key.Binding{keys.Help}
	if m.replay != nil {
		list = append(list, bind("p", "pause"), bind("< >", "seek"), bind("[ ]", "speed"))
	}
	list = append(list, bind("⏎", "details"), bind("←→", "cursor"), bind("+-", "window"))
	if m.replay == nil {
		list = append(list, bind("p", "pause"))
	}
	return append(list, bind("s", "sort"), keys.Filter, bind("e", "export"), keys.Quit)
}

// state says which part of time is shown.
func (m *model) state() string {
	var parts []string
	if m.filter != "" && m.entry != filterEntry {
		parts = append(parts, "/"+components.Fit(m.filter, 12))
	}
	if !m.cursor.IsZero() {
		at := m.cursor.Format("15:04:05")
		if m.history.Last != nil && m.history.Last.Virtual {
			at = components.Tick(float64(m.cursor.UnixNano()))
		}
		parts = append(parts, "cursor "+at)
	}
	window := "all"
	if w := windows[m.window]; w > 0 {
		window = strings.TrimPrefix(components.Ago(w), "-")
	}
	parts = append(parts, window)
	switch {
	case m.ended:
		parts = append(parts, "‖ end of the recording")
	case m.replay != nil && m.replay.paused:
		parts = append(parts, "‖ paused")
	case m.replay != nil:
		parts = append(parts, fmt.Sprintf("▶ %vx", m.replay.speed))
	case m.paused != nil:
		parts = append(parts, "‖ paused")
	}
	return strings.Join(parts, " · ")
}

// drawHelp draws what the page shows, and the keys.
func (m *model) drawHelp(a components.Area) {
	page := m.pages[m.page]
	a.Heading(0, page.Name())
	y := a.Sub(2, 1, min(a.W-4, 96), a.H).WrapText(0, styles.Plain, page.About()) + 2
	all := append(page.Keys(), m.bindings()...)
	columns := max(min(a.W/30, 3), 1)
	rows := (len(all) + columns - 1) / columns
	if y+1+rows > a.H {
		y-- // no empty row before the keys
	}
	a.Heading(y, "Keys")
	for i, b := range all {
		cell := a.Sub(2+i/rows*(a.W/columns), y+1+i%rows, a.W/columns-2, 1)
		h := b.Help()
		x := cell.Text(0, 0, styles.Accent, h.Key)
		x = max(x, 5) + 1
		cell.Text(x, 0, styles.Plain, components.Fit(h.Desc, cell.W-x))
	}
}

// drawProblems draws all of them, worst first.
func (m *model) drawProblems(a components.Area, found []problems.Problem) {
	a.Heading(0, "Problems, worst first")
	if len(found) == 0 {
		a.Text(2, 1, styles.Good, problems.Well(m.history.Last))
	}
	y := 1
	for _, p := range found {
		a.Text(1, y, severityStyles[p.Severity], severityGlyphs[p.Severity])
		y += a.Sub(3, y, a.W-4, a.H-y).WrapText(0, styles.Plain, p.Text)
	}
}
