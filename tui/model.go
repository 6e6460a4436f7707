package tui

import (
	"context"
	"errors"
	"io"
	"time"

	tea "github.com/charmbracelet/bubbletea"

	"github.com/farkv/farkv/node/telemetry"
	"github.com/farkv/farkv/tui/components"
	"github.com/farkv/farkv/tui/history"
	"github.com/farkv/farkv/tui/pages"
	"github.com/farkv/farkv/tui/styles"
)

// overlay is what covers the page.
type overlay int

const (
	noOverlay overlay = iota
	helpOverlay
	problemsOverlay
	chooserOverlay
)

// entry is what the last row asks for.
type entry int

const (
	noEntry entry = iota
	filterEntry
	exportEntry
)

// A model is the state of the program: a pool that is shown, a page, and what covers them. All of
// it belongs to the goroutine of bubbletea; what waits runs in the pump.
type model struct {
	o       Options
	theme   *styles.Theme
	now     func() time.Time
	pump    *pump
	chooser components.Table[Pool]

	pool    string // that is open, or being opened
	session *Session
	openErr error // why it could not be opened, or cannot be seen
	history *history.History
	replay  *replay
	ended   bool // the recording
	pages   []pages.Page
	page    int
	window  int       // in windows
	chosen  bool      // by a key; else it grows with what there is to see
	cursor  time.Time // zero: none
	filter  string
	paused  *telemetry.Sample // at which the view stands; nil: it goes on
	overlay overlay
	entry   entry
	said    string // in the last row, until a key is pressed

	w, h    int
	screen  *components.Screen
	frame   string
	drawn   time.Time
	dirty   bool
	due     bool  // a draw is scheduled
	tabs    []int // columns where each tab ends
	failure error // with which the program ends
}

// replay is a recording that is played.
type replay struct {
	from, to time.Time
	speed    float64
	paused   bool
}

// windows are those that + and - choose from; 0: everything.
var windows = []time.Duration{
	time.Second, 10 * time.Second, 30 * time.Second, time.Minute, 2 * time.Minute, 5 * time.Minute, 15 * time.Minute,
	time.Hour, 0,
}

// The window that no key chose is one of these: the narrowest that has room for all.
const firstWindow, lastWindow = 3, 5 // a minute, five

func newModel(ctx context.Context, o Options, theme *styles.Theme) *model {
	m := &model{
		o: o, theme: theme, now: time.Now, pump: newPump(ctx), history: history.New(), pages: pages.All(),
		window: firstWindow, dirty: true,
	}
	m.page = min(max(o.Page, 0), len(m.pages)-1)
	m.chooser = components.Table[Pool]{
		Empty: "there is no pool", Key: func(p Pool) string { return p.Name },
		Columns: []components.Column[Pool]{
			{Title: "pool", Width: 24, Left: true, Text: func(p Pool) string { return p.Name }},
			{Title: "", Width: 10, Left: true, Grow: true, Text: func(p Pool) string { return p.About },
				Style: func(Pool) styles.ID { return styles.Muted }},
		},
	}
	m.chooser.Set(o.Pools, "")
	if len(o.Pools) != 1 {
		m.overlay = chooserOverlay
	}
	return m
}

// Messages of the model to itself.
type (
	tickMsg struct{} // a second went by
	drawMsg struct{} // a draw is due
	quitMsg struct{ err error }
)

// Ticks and draws: figures like "gone for 12 s" change every second. Samples are drawn ten times a
// second at most, and less often where frames are large, so that a slow line gets no more than
// lineRate bytes a second of them. What a key changes is drawn at once.
const (
	tickEvery = time.Second
	drawEvery = 100 * time.Millisecond
	lineRate  = 20_000
)

// Init begins to wait, and opens the pool if there is one alone.
func (m *model) Init() tea.Cmd {
	if len(m.o.Pools) == 1 {
		m.open(m.o.Pools[0].Name)
	}
	return tea.Batch(m.pump.wait, m.pump.after(tickEvery, tickMsg{}))
}

// open ends the pool that is shown and opens another one.
func (m *model) open(pool string) {
	m.pool, m.session, m.openErr, m.replay, m.ended = pool, nil, nil, nil, false
	m.history, m.pages = history.New(), pages.All()
	m.cursor, m.filter, m.paused, m.overlay = time.Time{}, "", nil, noOverlay
	m.pump.run(func(ctx context.Context) (*Session, error) { return m.o.Open(ctx, pool) })
}

// Update takes a message.
func (m *model) Update(msg tea.Msg) (tea.Model, tea.Cmd) {
	switch msg := msg.(type) {
	case tea.WindowSizeMsg:
		m.w, m.h = msg.Width, msg.Height
		m.screen = components.NewScreen(m.w, m.h, m.theme)
		m.dirty = true
	case tea.KeyMsg:
		m.dirty = true
		return m, m.typed(msg)
	case tea.MouseMsg:
		return m, m.mouse(msg)
	case tickMsg:
		return m, tea.Batch(m.schedule(), m.pump.after(tickEvery, tickMsg{}))
	case drawMsg:
		m.dirty, m.due = true, false
	case quitMsg:
		m.failure = msg.err
		return m, tea.Quit
	case tea.ResumeMsg:
		m.dirty = true
	case openedMsg:
		m.opened(msg)
		return m, m.pump.wait
	case sampleMsg:
		return m, m.sampled(msg)
	case pages.BreakMsg:
		for _, p := range m.pages {
			if b, ok := p.(*pages.Breaks); ok {
				b.Told(msg)
			}
		}
		m.dirty = true
		return m, m.pump.wait
	}
	return m, nil
}

func (m *model) opened(msg openedMsg) {
	if msg.number != m.pump.number {
		return
	}
	m.dirty = true
	m.session, m.openErr = msg.session, msg.err
	if msg.replay {
		m.replay = &replay{from: msg.from, to: msg.to, speed: 1}
	}
}

// sampled takes a sample, or why there is none.
func (m *model) sampled(msg sampleMsg) tea.Cmd {
	if msg.number != m.pump.number {
		return m.pump.wait
	}
	var internal *Panic
	switch {
	case errors.Is(msg.err, ErrGone), errors.As(msg.err, &internal):
		m.failure = msg.err
		return tea.Quit
	case msg.restart:
		m.history, m.cursor, m.ended = history.New(), time.Time{}, false
	case errors.Is(msg.err, io.EOF):
		m.ended = true
	case msg.err != nil:
		m.openErr = msg.err
	default:
		m.openErr = nil
		m.add(msg.sample)
	}
	return tea.Batch(m.pump.wait, m.schedule())
}

// add takes a sample, and chooses the window by the age of what there is to see, unless a key chose
// it.
func (m *model) add(s *telemetry.Sample) {
	m.history.Add(s)
	switch {
	case m.chosen:
	case s.Virtual:
		m.window = len(windows) - 1
	default:
		age := s.At.Sub(m.history.Began(s.At))
		for m.window = firstWindow; m.window < lastWindow && windows[m.window] < age; m.window++ {
		}
	}
}

// schedule draws at once if the last draw is long enough ago, and else when it is.
func (m *model) schedule() tea.Cmd {
	every := max(drawEvery, time.Duration(len(m.frame))*time.Second/lineRate)
	rest := every - m.now().Sub(m.drawn)
	if rest <= 0 {
		m.dirty = true
		return nil
	}
	if m.due {
		return nil
	}
	m.due = true
	return m.pump.after(rest, drawMsg{})
}

// View returns the frame, drawn anew if something changed.
func (m *model) View() string {
	if m.screen == nil {
		return ""
	}
	if m.dirty {
		m.screen.Clear()
		m.draw(m.screen.Area())
		m.frame, m.dirty, m.drawn = m.screen.String(), false, m.now()
	}
	return m.frame
}

// live reports whether samples are of now.
func (m *model) live() bool {
	return m.replay == nil && (m.history.Last == nil || !m.history.Last.Virtual)
}

// end returns the end of the window.
func (m *model) end() time.Time {
	switch {
	case m.paused != nil:
		return m.paused.At
	case m.history.Last != nil:
		return m.history.Last.At
	}
	return m.now()
}

// judged returns the time for which problems are found.
func (m *model) judged() time.Time {
	if m.live() {
		return m.now()
	}
	return m.end()
}

// env returns what the pages share.
func (m *model) env() *pages.Env {
	e := &pages.Env{H: m.history, Now: m.end(), Window: windows[m.window], Cursor: m.cursor, Filter: m.filter}
	if e.Last = m.paused; e.Last == nil {
		e.Last = m.history.Last
	}
	if m.session == nil {
		return e
	}
	switch e.WhyNot = m.session.WhyNot; {
	case m.o.ReadOnly:
		e.WhyNot = "Nothing can be broken: the monitor runs with --readonly."
	case m.replay != nil:
		e.WhyNot = "Nothing can be broken: this is a recording."
	case m.session.Breaker != nil:
		b := m.session.Breaker
		e.Break = b
		e.Start = func(n int, what pages.Break) { m.pump.start(b, n, what) }
	}
	return e
}
