package tui

import (
	"bytes"
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	tea "github.com/charmbracelet/bubbletea"
	"github.com/charmbracelet/x/exp/teatest"

	"github.com/farkv/farkv/node/telemetry"
	"github.com/farkv/farkv/tui/pages"
	"github.com/farkv/farkv/tui/tuitest"
	"github.com/farkv/farkv/workloads/check/wait"
)

// breaker is a pages.Breaker that breaks nothing and heals at once.
type breaker struct{ did chan pages.Break }

func newBreaker() *breaker { return &breaker{did: make(chan pages.Break, 1)} }

func (b *breaker) Offers(*telemetry.Sample) []pages.Offer {
	return []pages.Offer{
		{Kind: "kill node", About: "its memory is gone", Targets: []pages.Target{{Name: "node 0"}, {Name: "node 2"}}},
		{Kind: "kill client", Targets: []pages.Target{{Name: "client 7"}}, Steps: []string{"cas primary"}},
		{Kind: "stop node", Refused: "no processes"},
	}
}

func (b *breaker) Break(_ context.Context, what pages.Break, tell func(pages.Outcome)) error {
	b.did <- what
	tell(pages.Outcome{Text: "mending", UntilWhole: time.Second})
	tell(pages.Outcome{Done: true, UntilWhole: 4200 * time.Millisecond, Failed: 12, LongestGap: 800 * time.Millisecond})
	return nil
}

// fake is a source of samples that were made before; then it waits.
type fake struct {
	samples []*telemetry.Sample
	at      int
	end     error // when there are no more; nil: wait
	closed  atomic.Bool
}

func (f *fake) Next(ctx context.Context) (*telemetry.Sample, error) {
	if f.at == len(f.samples) {
		if f.end != nil {
			return nil, f.end
		}
		<-ctx.Done()
		return nil, ctx.Err()
	}
	f.at++
	return f.samples[f.at-1], nil
}

func (f *fake) Close() error {
	f.closed.Store(true)
	return nil
}

// recording is a fake that can be controlled.
type recording struct {
	fake
	speed  atomic.Int64 // in sixteenths
	sought atomic.Int64
	asked  atomic.Int64 // for samples since
}

func (r *recording) Next(ctx context.Context) (*telemetry.Sample, error) {
	r.asked.Add(1)
	return r.fake.Next(ctx)
}

func (r *recording) Span() (from, to time.Time) {
	return r.samples[0].At, r.samples[len(r.samples)-1].At
}

func (r *recording) Seek(to time.Time) error {
	r.sought.Add(1)
	r.asked.Store(0)
	for r.at = 0; r.at < len(r.samples) && !r.samples[r.at].At.After(to); r.at++ {
	}
	r.at = max(r.at-10, 0)
	return nil
}

func (r *recording) SetSpeed(f float64) { r.speed.Store(int64(f * 16)) }

// TestWindow: what no key chose grows with what there is to see.
func TestWindow(t *testing.T) {
	samples := tuitest.NewPool(1, 3, 24).Samples(400)
	for n, want := range map[int]string{2: "1 min", 61: "1 min", 62: "2 min", 121: "2 min", 122: "5 min",
		400: "5 min"} {
		if m := shown(t, samples[:n], 100, 30); !strings.HasSuffix(strings.TrimSpace(text(m)), want) {
			t.Errorf("after %d samples of a second the window is not %s:\n%s", n, want, text(m))
		}
	}
	m := shown(t, samples[:10], 100, 30)
	press(m, "-")
	for _, s := range samples[10:] {
		m.add(s)
	}
	if got := m.state(); got != "2 min" {
		t.Errorf("the window that was chosen became %s", got)
	}
}

func TestKeys(t *testing.T) {
	samples := tuitest.NewPool(1, 3, 24).Samples(200)
	for _, c := range []struct{ name, keys, want, not string }{
		{"pages by number", "4", "compute-1", ""},
		{"the next page", "tab", "Cumulative latency", ""},
		{"the page before the first", "shift+tab", "Broken in this session", ""},
		{"help", "?", "Throughput by operation or by process", ""},
		{"help ends", "? esc", "Operations a second", "Throughput by operation or by process"},
		{"all problems", "!", "Problems, worst first", ""},
		{"a wider window", "-", "15 min", ""},
		{"a narrower window", "+", "-90 s", "-4 min"},
		{"two windows narrower", "+ +", "-20 s", "-90 s"},
		{"a cursor", "left left", "cursor 12:03:18", ""},
		{"no cursor", "left left esc", "Operations", "cursor 12"},
		{"by process", "o", "by process", ""},
		{"a filter", "4 / i n d e x enter", "8 of 23", "orders"},
		{"a filter that fits nothing", "/ x x x enter", "nothing matches the filter", ""},
		{"a filter is dropped", "4 / i n d e x enter esc", "orders", "8 of 23"},
		{"sorted by the next column", "4 s", "state▲", "client▲"},
		{"sorted the other way round", "4 S", "client▼", "client▲"},
		{"details", "3 down enter", "Node 1", "Memory nodes"},
		{"details end", "3 down enter esc", "Memory nodes", ""},
		{"a chart alone", "down enter", "p99.9", "Operations a second"},
		{"a baseline", "2 b", "baseline of 12:03:19", ""},
		{"no baseline", "2 b B", "Cumulative", "baseline of"},
		{"a cursor of durations", "2 left", "≤ ", ""},
		{"paused", "p", "‖ paused", ""},
		{"goes on", "p p", "5 min", "paused"},
		{"an event", "6 enter", "tenure", ""},
		{"a drawing without a drawer", "e s", "not exported: no drawings here", ""},
		{"a node of a name is confirmed", "7 enter enter", "type node 0", ""},
		{"a step", "7 down enter enter", "cas primary", ""},
		{"another name breaks nothing", "7 enter enter n o d e space 1 enter", "this is not the name", ""},
		{"refused", "7 down down enter", "not here: no processes", "Which"},
	} {
		t.Run(c.name, func(t *testing.T) {
			m := shown(t, samples, 100, 30)
			press(m, strings.Fields(c.keys)...)
			got := text(m)
			if !strings.Contains(got, c.want) || c.not != "" && strings.Contains(got, c.not) {
				t.Errorf("after %q, want %q and not %q:\n%s", c.keys, c.want, c.not, got)
			}
		})
	}
}

func TestPausedStaysAndGoesOn(t *testing.T) {
	all := tuitest.NewPool(1, 3, 24).Samples(60)
	m := shown(t, all[:50], 80, 24)
	press(m, "p")
	was := text(m)
	for _, s := range all[50:] {
		m.Update(sampleMsg{sample: s})
	}
	if text(m) != was {
		t.Error("a paused frame changed")
	}
	press(m, "p")
	if got := text(m); !strings.Contains(got, "12:00:59") {
		t.Errorf("it does not go on:\n%s", got)
	}
}

func TestExportAsCSV(t *testing.T) {
	m := shown(t, tuitest.NewPool(1, 3, 24).Samples(20), 80, 24)
	for page, want := range map[string]string{"1": "series,time,operations a second\nget,2026-03-01T12:00:01Z,",
		"4": "client,state,name,host",
		"3": "node,role,state,memory"} {
		press(m, page, "e", "c")
		name, ok := strings.CutPrefix(m.said, "wrote ")
		got, err := os.ReadFile(name)
		if !ok || err != nil || !strings.HasPrefix(string(got), want) {
			t.Errorf("%s, %v, and in the file %.80q, want %q", m.said, err, got, want)
		}
	}
	press(m, "e", "c")
	if !strings.HasPrefix(m.said, "not exported: ") {
		t.Errorf("wrote over a file: %s", m.said)
	}
	m.o.SVG = func(w io.Writer, f *pages.Figure) error {
		_, err := io.WriteString(w, f.Title)
		return err
	}
	press(m, "1", "e", "s")
	files, _ := filepath.Glob(filepath.Join(m.o.Folder, "*.svg"))
	if len(files) != 1 {
		t.Errorf("%s, and there are %v", m.said, files)
	}
}

// TestReadOnlyBreaksNothing presses what would break a node: in a monitor that may, where it is
// broken, and then where not.
func TestReadOnlyBreaksNothing(t *testing.T) {
	keys := strings.Fields("7 enter enter n o d e space 0 enter")
	m := shown(t, tuitest.NewPool(1, 3, 24).Samples(20), 80, 24)
	b := m.session.Breaker.(*breaker)
	press(m, keys...)
	if what := <-b.did; what != (pages.Break{Kind: "kill node", Target: "node 0"}) {
		t.Errorf("broke %+v", what)
	}
	for range 3 {
		m.Update(m.pump.wait())
	}
	if got := text(m); !strings.Contains(got, "✓ whole after 4.20 s, 12 failed, 0 unknown") {
		t.Errorf("what came of it is not shown:\n%s", got)
	}
	for name, not := range map[string]func(m *model){
		"a flag":      func(m *model) { m.o.ReadOnly = true },
		"a recording": func(m *model) { m.replay = &replay{} },
		"no breaker":  func(m *model) { m.session = &Session{WhyNot: "The token is one for reading."} },
	} {
		m := shown(t, tuitest.NewPool(1, 3, 24).Samples(20), 80, 24)
		b := m.session.Breaker.(*breaker)
		not(m)
		press(m, keys...)
		m.pump.close()
		select {
		case what := <-b.did:
			t.Errorf("%s: broke %+v", name, what)
		default:
		}
		if e := m.env(); e.Break != nil || e.WhyNot == "" {
			t.Errorf("%s: can break, or does not say why not", name)
		}
	}
}

// TestKeysInOnePiece: keys that the terminal sends together count each.
func TestKeysInOnePiece(t *testing.T) {
	m := shown(t, tuitest.NewPool(1, 3, 24).Samples(20), 80, 24)
	m.Update(tea.KeyMsg{Type: tea.KeyRunes, Runes: []rune("4S/index")})
	if got := text(m); !strings.Contains(got, "client▼") || !strings.Contains(got, "8 of 24") {
		t.Errorf("after 4S/index in one piece:\n%s", got)
	}
}

// TestHelpFits: the smallest terminal shows all keys of each page of a pool, none of them cut.
func TestHelpFits(t *testing.T) {
	for i := range pages.All() {
		m := shown(t, tuitest.NewPool(1, 3, 24).Samples(20), leastW, leastH)
		m.page, m.overlay = i, helpOverlay
		got := text(m)
		for _, b := range append(m.pages[i].Keys(), m.bindings()...) {
			if h := b.Help(); !strings.Contains(got, h.Key+" ") || !strings.Contains(got, h.Desc) {
				t.Errorf("the help of %s lacks %q, %s:\n%s", m.pages[i].Name(), h.Key, h.Desc, got)
			}
		}
	}
}

func TestMouse(t *testing.T) {
	m := shown(t, tuitest.NewPool(1, 3, 24).Samples(20), 80, 24)
	text(m)
	m.Update(tea.MouseMsg{X: 33, Y: 0, Button: tea.MouseButtonLeft, Action: tea.MouseActionPress})
	if got := text(m); !strings.Contains(got, "compute-1") {
		t.Errorf("the tab was not opened:\n%s", got)
	}
	m.Update(tea.MouseMsg{X: 3, Y: 5, Button: tea.MouseButtonWheelDown, Action: tea.MouseActionPress})
	if got := text(m); !strings.Contains(got, "▸ 4 ") {
		t.Errorf("the wheel did not move:\n%s", got)
	}
}

// started runs the program of o as a terminal would.
func started(t *testing.T, o Options) (*teatest.TestModel, *model) {
	o.Folder = t.TempDir()
	m := newModel(context.Background(), o, colored())
	m.now = func() time.Time { return tuitest.Begin.Add(20 * time.Second) }
	t.Cleanup(m.pump.close)
	tm := teatest.NewTestModel(t, &guard{m: m}, teatest.WithInitialTermSize(100, 30))
	return tm, m
}

func waitFor(t *testing.T, tm *teatest.TestModel, want string) {
	t.Helper()
	teatest.WaitFor(t, tm.Output(), func(out []byte) bool { return bytes.Contains(out, []byte(want)) },
		teatest.WithDuration(wait.Hang))
}

func opener(s Source) func(context.Context, string) (*Session, error) {
	return func(context.Context, string) (*Session, error) { return &Session{Source: s}, nil }
}

func TestChooser(t *testing.T) {
	f := &fake{samples: tuitest.NewPool(1, 3, 24).Samples(20)}
	opened := make(chan string, 1)
	tm, m := started(t, Options{Pools: []Pool{{Name: "a"}, {Name: "b", About: "fusee"}}, Open: func(_ context.Context,
		name string) (*Session, error) {
		opened <- name
		return &Session{Source: f}, nil
	}})
	waitFor(t, tm, "Pools")
	tm.Send(keyOf("down"))
	tm.Send(keyOf("enter"))
	if name := <-opened; name != "b" {
		t.Errorf("opened %s", name)
	}
	waitFor(t, tm, "all well")
	tm.Send(keyOf("q"))
	tm.WaitFinished(t, teatest.WithFinalTimeout(wait.Hang))
	m.pump.close()
	if m.failure != nil || !f.closed.Load() {
		t.Errorf("ended with %v; the source was closed: %v", m.failure, f.closed.Load())
	}
}

func TestWhatEndsTheProgram(t *testing.T) {
	samples := tuitest.NewPool(1, 3, 24).Samples(20)
	gone := errors.Join(ErrGone, errors.New("removed by farkv down"))
	for name, c := range map[string]struct {
		source Source
		do     func(tm *teatest.TestModel)
		want   func(err error) bool
	}{
		"the pool goes away": {&fake{samples: samples, end: gone}, func(*teatest.TestModel) {},
			func(err error) bool { return errors.Is(err, ErrGone) }},
		"Ctrl-C": {&fake{samples: samples}, func(tm *teatest.TestModel) { tm.Send(keyOf("ctrl+c")) },
			func(err error) bool { return errors.Is(err, ErrInterrupted) }},
		"a panic of the source": {&panics{}, func(*teatest.TestModel) {}, func(err error) bool {
			var p *Panic
			return errors.As(err, &p) && p.Error() == "internal error: a bug" && len(p.Stack) > 0
		}},
		"a panic of a page": {&fake{samples: samples},
			func(tm *teatest.TestModel) { tm.Send(tea.WindowSizeMsg{Width: -5, Height: 3}) },
			func(err error) bool { return errors.As(err, new(*Panic)) }},
	} {
		t.Run(name, func(t *testing.T) {
			tm, m := started(t, Options{Pools: []Pool{{Name: "a"}}, Open: opener(c.source)})
			c.do(tm)
			tm.WaitFinished(t, teatest.WithFinalTimeout(wait.Hang))
			if !c.want(m.failure) {
				t.Errorf("ended with %v", m.failure)
			}
		})
	}
}

type panics struct{ fake }

func (*panics) Next(context.Context) (*telemetry.Sample, error) { panic("a bug") }

// TestSIGTERM sends the signal to this process while the program runs: it says so, and leaves the
// terminal as it was.
func TestSIGTERM(t *testing.T) {
	in, feed := io.Pipe()
	defer feed.Close()
	out := &output{shown: make(chan struct{})}
	o := Options{Pools: []Pool{{Name: "a"}}, Open: opener(&fake{samples: tuitest.NewPool(1, 3, 24).Samples(20)}),
		In: in, Out: out, Dark: true}
	ended := make(chan error, 1)
	go func() { ended <- Run(context.Background(), o) }()
	<-out.shown
	if err := syscall.Kill(os.Getpid(), syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	err := <-ended
	if !errors.Is(err, ErrInterrupted) || !strings.Contains(err.Error(), "terminated") {
		t.Errorf("ended with %v", err)
	}
	if text := out.b.String(); !strings.Contains(text, "\x1b[?1049h") || !strings.Contains(text, "\x1b[?1049l") ||
		!strings.HasSuffix(text, "\x1b[?25h") && !strings.Contains(text[strings.LastIndex(text, "\x1b[?1049l"):],
			"\x1b[?25h") {
		t.Errorf("the terminal is not as it was: ends with %q", text[max(len(text)-80, 0):])
	}
}

// output is what a terminal would be sent; shown is closed when there is anything.
type output struct {
	b     bytes.Buffer
	shown chan struct{}
	once  bool
}

func (o *output) Write(p []byte) (int, error) {
	if !o.once {
		o.once = true
		close(o.shown)
	}
	return o.b.Write(p)
}

func TestReplay(t *testing.T) {
	r := &recording{fake: fake{samples: tuitest.NewPool(1, 3, 24).Samples(60), end: io.EOF}}
	tm, m := started(t, Options{Pools: []Pool{{Name: "run.fkr"}}, Open: opener(r)})
	waitFor(t, tm, "end of the recording")
	tm.Send(keyOf("]"))
	tm.Send(keyOf("<"))
	// The third sample is asked for when the program has taken the second one, which it does behind
	// the first.
	until(t, func() bool { return r.sought.Load() == 1 && r.speed.Load() == 32 && r.asked.Load() >= 3 })
	tm.Send(keyOf("p"))
	until(t, func() bool { return r.speed.Load() == 0 })
	tm.Send(keyOf("q"))
	tm.WaitFinished(t, teatest.WithFinalTimeout(wait.Hang))
	m.pump.close()
	if len(m.history.Points) == 0 || len(m.history.Points) > 20 {
		t.Errorf("%d points after a seek", len(m.history.Points))
	}
}

func until(t *testing.T, ok func() bool) {
	t.Helper()
	wait.Until(t, "what the keys do", ok)
}

func TestTerminals(t *testing.T) {
	env := func(kv ...string) func(string) string {
		return func(k string) string {
			for i := 0; i < len(kv); i += 2 {
				if kv[i] == k {
					return kv[i+1]
				}
			}
			return ""
		}
	}
	if !Dumb(env()) || !Dumb(env("TERM", "dumb")) || Dumb(env("TERM", "xterm")) {
		t.Error("dumb terminals are not told from others")
	}
	if UTF8(env()) || UTF8(env("LANG", "C.UTF-8", "LC_ALL", "C")) || !UTF8(env("LANG",
		"de_DE.utf8")) || !UTF8(env("LC_CTYPE", "C.UTF-8", "LANG", "C")) {
		t.Error("locales of UTF-8 are not told from others")
	}
	t.Setenv("NO_COLOR", "1")
	if got := themeOf(&Options{Out: io.Discard, Dark: true}).Open(0); got != "" {
		t.Errorf("NO_COLOR, and a style begins with %q", got)
	}
}

func TestSmallTerminalsAreToldWhatIsNeeded(t *testing.T) {
	m := shown(t, nil, 59, 20)
	if got := text(m); !strings.Contains(got, "needs 60 x 20; this is 59 x 20") {
		t.Errorf("shows\n%s", got)
	}
	m.Update(tea.WindowSizeMsg{Width: 60, Height: 20})
	if got := text(m); !strings.Contains(got, "1 Overview") {
		t.Errorf("shows\n%s", got)
	}
}
