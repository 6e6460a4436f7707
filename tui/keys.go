package tui

import (
	"fmt"
	"slices"
	"time"
	"unicode/utf8"

	"github.com/charmbracelet/bubbles/key"
	tea "github.com/charmbracelet/bubbletea"

	"github.com/farkv/farkv/tui/pages"
)

// keyMap are the keys of all pages.
type keyMap struct {
	Page, Next, Previous, Wider, Narrower, Left, Right, Newest, Up, Down, PageUp, PageDown   key.Binding
	Filter, Pause, Export, Help, Problems, Pools, Back, Slower, Faster, Earlier, Later, Quit key.Binding
}

func bind(shown, what string, keys ...string) key.Binding {
	return key.NewBinding(key.WithKeys(keys...), key.WithHelp(shown, what))
}

var keys = keyMap{
	Page:     bind("1-7", "page", "1", "2", "3", "4", "5", "6", "7"),
	Next:     bind("tab", "next page", "tab"),
	Previous: bind("shift+tab", "page before", "shift+tab"),
	Wider:    bind("-", "wider window", "-"),
	Narrower: bind("+", "narrower window", "+", "="),
	Left:     bind("←", "cursor to the left", "left", "h"),
	Right:    bind("→", "cursor to the right", "right", "l"),
	Newest:   bind("end", "no cursor", "end"),
	Up:       bind("↑", "row above", "up", "k"),
	Down:     bind("↓", "row below", "down", "j"),
	PageUp:   bind("pgup", "ten rows above", "pgup"),
	PageDown: bind("pgdn", "ten rows below", "pgdown"),
	Filter:   bind("/", "filter", "/"),
	Pause:    bind("p", "pause", "p"),
	Export:   bind("e", "export", "e"),
	Help:     bind("?", "help", "?"),
	Problems: bind("!", "all problems", "!"),
	Pools:    bind("P", "another pool", "P"),
	Back:     bind("esc", "back", "esc"),
	Slower:   bind("[", "half as fast", "["),
	Faster:   bind("]", "twice as fast", "]"),
	Earlier:  bind("<", "earlier", "<", ","),
	Later:    bind(">", "later", ">", "."),
	Quit:     bind("q", "quit", "q"),
}

// all returns the keys that the help lists.
func (m *model) bindings() []key.Binding {
	all := []key.Binding{
		keys.Page, keys.Next, bind("+ -", "narrower, wider window"), bind("← →", "cursor"),
		bind("↑ ↓", "row above, below"), bind("esc", "back, no cursor"), keys.Filter, keys.Pause, keys.Export,
		keys.Problems,
	}
	if len(m.o.Pools) > 1 {
		all = append(all, keys.Pools)
	}
	if m.replay != nil {
		all = append(all, bind("[ ]", "slower, faster"), bind("< >", "earlier, later"))
	}
	return append(all, keys.Quit)
}

// typing is a page that takes all keys while a name is typed.
type typing interface{ Typing() bool }

// typed takes keys. Those that come in one piece, as over a slow line, are one message.
func (m *model) typed(k tea.KeyMsg) tea.Cmd {
	if k.Type != tea.KeyRunes || k.Paste || len(k.Runes) < 2 {
		return m.key(k)
	}
	var all []tea.Cmd
	for _, r := range k.Runes {
		all = append(all, m.key(tea.KeyMsg{Type: tea.KeyRunes, Runes: []rune{r}, Alt: k.Alt}))
	}
	return tea.Batch(all...)
}

// key takes a key: what is asked for first, then what covers the page, then the page, then the
// program.
func (m *model) key(k tea.KeyMsg) tea.Cmd {
	m.said = ""
	switch k.String() {
	case "ctrl+c":
		m.failure = ErrInterrupted
		return tea.Quit
	case "ctrl+z":
		return tea.Suspend
	}
	switch {
	case m.entry != noEntry:
		m.enterKey(k)
		return nil
	case m.overlay == chooserOverlay:
		return m.chooserKey(k)
	case m.overlay != noOverlay:
		if key.Matches(k, keys.Quit) && m.overlay == noOverlay {
			return tea.Quit
		}
		m.overlay = noOverlay
		return nil
	}
	page := m.pages[m.page]
	if cmd, taken := page.Key(m.env(), k); taken {
		return cmd
	}
	if t, ok := page.(typing); ok && t.Typing() {
		return nil
	}
	return m.programKey(k)
}

// programKey takes a key that means the same on every page.
func (m *model) programKey(k tea.KeyMsg) tea.Cmd {
	page, e := m.pages[m.page], m.env()
	switch {
	case key.Matches(k, keys.Quit):
		return tea.Quit
	case key.Matches(k, keys.Page):
		m.page = int(k.Runes[0] - '1')
	case key.Matches(k, keys.Next):
		m.page = (m.page + 1) % len(m.pages)
	case key.Matches(k, keys.Previous):
		m.page = (m.page + len(m.pages) - 1) % len(m.pages)
	case key.Matches(k, keys.Wider):
		m.window, m.chosen = min(m.window+1, len(windows)-1), true
	case key.Matches(k, keys.Narrower):
		m.window, m.chosen = max(m.window-1, 0), true
	case key.Matches(k, keys.Left):
		m.moveCursor(-1)
	case key.Matches(k, keys.Right):
		m.moveCursor(1)
	case key.Matches(k, keys.Newest):
		m.cursor = time.Time{}
	case key.Matches(k, keys.Up):
		page.Move(e, -1)
	case key.Matches(k, keys.Down):
		page.Move(e, 1)
	case key.Matches(k, keys.PageUp):
		page.Move(e, -10)
	case key.Matches(k, keys.PageDown):
		page.Move(e, 10)
	case key.Matches(k, keys.Filter):
		m.entry = filterEntry
	case key.Matches(k, keys.Pause):
		m.pause()
	case key.Matches(k, keys.Export):
		m.entry = exportEntry
	case key.Matches(k, keys.Help):
		m.overlay = helpOverlay
	case key.Matches(k, keys.Problems):
		m.overlay = problemsOverlay
	case key.Matches(k, keys.Pools) && len(m.o.Pools) > 1:
		m.overlay = chooserOverlay
	case key.Matches(k, keys.Back):
		m.back()
	default:
		m.replayKey(k)
	}
	return nil
}

// back drops the cursor, then the filter.
func (m *model) back() {
	if !m.cursor.IsZero() {
		m.cursor = time.Time{}
	} else {
		m.filter = ""
	}
}

// moveCursor moves the cursor over the points of the window; beyond the newest one there is none.
func (m *model) moveCursor(by int) {
	points := m.env().Points()
	if len(points) == 0 {
		return
	}
	step := max(len(points)/150, 1) * by
	at := len(points)
	if !m.cursor.IsZero() {
		at, _ = slices.BinarySearchFunc(m.env().Points(), m.cursor, func(p point,
			t time.Time) int {
			return p.At.Compare(t)
		})
	}
	at = max(at+step, 0)
	if at >= len(points) {
		m.cursor = time.Time{}
		return
	}
	m.cursor = points[at].At
}

// enterKey takes a key of what the last row asks for.
func (m *model) enterKey(k tea.KeyMsg) {
	switch {
	case m.entry == exportEntry:
		m.entry = noEntry
		switch k.String() {
		case "c":
			m.export("csv")
		case "s":
			m.export("svg")
		}
	case k.Type == tea.KeyEsc:
		m.entry, m.filter = noEntry, ""
	case k.Type == tea.KeyEnter:
		m.entry = noEntry
	case k.Type == tea.KeyBackspace:
		_, n := utf8.DecodeLastRuneInString(m.filter)
		m.filter = m.filter[:len(m.filter)-n]
	case (k.Type == tea.KeyRunes || k.Type == tea.KeySpace) && len(m.filter) < 64:
		m.filter += string(k.Runes)
	}
}

// chooserKey takes a key of the list of pools.
func (m *model) chooserKey(k tea.KeyMsg) tea.Cmd {
	switch {
	case key.Matches(k, keys.Quit):
		return tea.Quit
	case key.Matches(k, keys.Up):
		m.chooser.Move(-1)
	case key.Matches(k, keys.Down):
		m.chooser.Move(1)
	case k.Type == tea.KeyEnter:
		if p, ok := m.chooser.Selected(); ok {
			m.open(p.Name)
		}
	case key.Matches(k, keys.Back) && m.pool != "":
		m.overlay = noOverlay
	}
	return nil
}

// pause stops a recording, or what is shown of a pool: its samples are kept meanwhile.
func (m *model) pause() {
	switch {
	case m.replay != nil:
		m.replay.paused = !m.replay.paused
		m.setSpeed()
	case m.paused == nil:
		m.paused = m.history.Last
	default:
		m.paused = nil
	}
}

func (m *model) setSpeed() {
	speed := m.replay.speed
	if m.replay.paused {
		speed = 0
	}
	m.pump.order(func(r Replay) (bool, error) {
		r.SetSpeed(speed)
		return false, nil
	})
}

// Speeds of a recording.
const slowest, fastest = 1.0 / 16, 64

// replayKey takes a key that controls a recording.
func (m *model) replayKey(k tea.KeyMsg) {
	if m.replay == nil {
		return
	}
	switch {
	case key.Matches(k, keys.Slower):
		m.replay.speed = max(m.replay.speed/2, slowest)
		m.setSpeed()
	case key.Matches(k, keys.Faster):
		m.replay.speed = min(m.replay.speed*2, fastest)
		m.setSpeed()
	case key.Matches(k, keys.Earlier):
		m.seek(-1)
	case key.Matches(k, keys.Later):
		m.seek(1)
	}
}

// seek goes a tenth of the window, or of the recording, back or forth.
func (m *model) seek(by time.Duration) {
	step := windows[m.window]
	if all := m.replay.to.Sub(m.replay.from); step == 0 || step > all {
		step = all
	}
	to := m.end().Add(by * max(step/10, 1))
	if to.Before(m.replay.from) {
		to = m.replay.from
	}
	if to.After(m.replay.to) {
		to = m.replay.to
	}
	m.pump.order(func(r Replay) (bool, error) {
		if err := r.Seek(to); err != nil {
			return false, fmt.Errorf("go to %s: %w", to.Format(time.TimeOnly), err)
		}
		return true, nil
	})
}

// mouse takes clicks on tabs and the wheel.
func (m *model) mouse(e tea.MouseMsg) tea.Cmd {
	switch {
	case e.Button == tea.MouseButtonWheelUp, e.Button == tea.MouseButtonWheelDown:
		by := 3
		if e.Button == tea.MouseButtonWheelUp {
			by = -3
		}
		if m.overlay == chooserOverlay {
			m.chooser.Move(by)
		} else if m.overlay == noOverlay {
			m.pages[m.page].Move(m.env(), by)
		}
	case e.Button == tea.MouseButtonLeft && e.Action == tea.MouseActionPress && e.Y == 0 && m.overlay != chooserOverlay:
		for i, end := range m.tabs {
			if e.X < end {
				m.page, m.overlay = i, noOverlay
				break
			}
		}
	default:
		return nil
	}
	m.dirty = true
	return nil
}

var _ typing = (*pages.Breaks)(nil)
