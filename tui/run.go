package tui

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"runtime/debug"
	"strings"
	"syscall"
	"time"

	tea "github.com/charmbracelet/bubbletea"
	"github.com/charmbracelet/lipgloss"
	"github.com/charmbracelet/x/term"

	"github.com/farkv/farkv/node/telemetry"
	"github.com/farkv/farkv/tui/components"
	"github.com/farkv/farkv/tui/styles"
)

// Run shows the monitor until it is quit. When it returns the terminal is as it was: nil after the
// key for it, an error that wraps ErrInterrupted after Ctrl-C or a signal, one that wraps ErrGone
// when the pool went away, a *Panic after one.
func Run(ctx context.Context, o Options) error {
	m := newModel(ctx, o, themeOf(&o))
	defer m.pump.close()
	settings := []tea.ProgramOption{tea.WithAltScreen(), tea.WithMouseCellMotion(), tea.WithoutSignalHandler(),
		tea.WithFPS(30)}
	if o.In != nil {
		settings = append(settings, tea.WithInput(o.In))
	} else if term.IsTerminal(os.Stdin.Fd()) {
		settings = append(settings, tea.WithInput(answerless{os.Stdin}))
	}
	if o.Out != nil {
		settings = append(settings, tea.WithOutput(o.Out))
	}
	p := tea.NewProgram(&guard{m: m}, settings...)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP) // before the terminal is taken
	defer signal.Stop(signals)
	done := make(chan struct{})
	forwarded := make(chan struct{})
	go func() {
		defer close(forwarded)
		forward(ctx, p, signals, done)
	}()
	_, err := p.Run()
	close(done)
	<-forwarded
	return errors.Join(err, m.failure)
}

// forward turns signals and the end of ctx into a message. bubbletea's own handler ends with
// success and without a word.
func forward(ctx context.Context, p *tea.Program, signals <-chan os.Signal, done <-chan struct{}) {
	select {
	case s := <-signals:
		p.Send(quitMsg{fmt.Errorf("%w by a signal: %v", ErrInterrupted, s)})
	case <-ctx.Done():
		p.Send(quitMsg{fmt.Errorf("%w: %w", ErrInterrupted, context.Cause(ctx))})
	case <-done:
	}
}

// themeOf returns the theme of the terminal. It is asked for its background here, before the
// program reads its input.
func themeOf(o *Options) *styles.Theme {
	var out io.Writer = os.Stdout
	if o.Out != nil {
		out = o.Out
	}
	r := lipgloss.NewRenderer(out)
	r.SetHasDarkBackground(o.Dark || !o.Light && (o.Out != nil || darkBackground(os.Getenv)))
	return styles.New(r, UTF8(os.Getenv))
}

// UTF8 reports whether the locale that the environment names is one of UTF-8.
func UTF8(getenv func(string) string) bool {
	for _, name := range []string{"LC_ALL", "LC_CTYPE", "LANG"} {
		if v := strings.ToLower(getenv(name)); v != "" {
			return strings.Contains(v, "utf-8") || strings.Contains(v, "utf8")
		}
	}
	return false
}

// Dumb reports whether the terminal that the environment names cannot place a cursor, so that a
// frame as text (--once) is all it can show.
func Dumb(getenv func(string) string) bool {
	term := getenv("TERM")
	return term == "" || term == "dumb"
}

// Frame returns a page as text without styles, of w by h cells. Two samples and more have rates.
func Frame(samples []*telemetry.Sample, page, w, h int, unicode bool) string {
	m := newModel(context.Background(), Options{Pools: make([]Pool, 1), Page: page}, styles.NoColor(unicode))
	defer m.pump.close()
	m.session = &Session{WhyNot: "A frame as text can break nothing."}
	for _, s := range samples {
		m.add(s)
		m.pool = s.Pool
		m.now = func() time.Time { return s.At }
	}
	if began := m.history.Began(m.end()); m.end().Sub(began) < windows[m.window] {
		m.window = len(windows) - 1
	}
	screen := components.NewScreen(max(w, leastW), max(h, leastH), m.theme)
	m.draw(screen.Area())
	return screen.String() + "\n"
}

// A guard ends the program when its model panics, in place of bubbletea, which would write a stack
// to the terminal.
type guard struct{ m *model }

func (g *guard) catch(cmd *tea.Cmd) {
	if v := recover(); v != nil {
		g.m.failure = &Panic{v, debug.Stack()}
		if cmd != nil {
			*cmd = tea.Quit
		}
	}
}

// Init begins.
func (g *guard) Init() (cmd tea.Cmd) {
	defer g.catch(&cmd)
	return g.m.Init()
}

// Update takes a message. After a panic there is nothing but the end.
func (g *guard) Update(msg tea.Msg) (same tea.Model, cmd tea.Cmd) {
	same = g
	if g.m.failure != nil {
		return g, tea.Quit
	}
	defer g.catch(&cmd)
	_, cmd = g.m.Update(msg)
	return g, cmd
}

// View returns the frame; after a panic the next message ends the program.
func (g *guard) View() string {
	defer g.catch(nil)
	if g.m.failure != nil {
		return ""
	}
	return g.m.View()
}
