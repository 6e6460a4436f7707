package tui

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode"

	"go.uber.org/goleak"
	"pgregory.net/rapid"

	tea "github.com/charmbracelet/bubbletea"
	"github.com/charmbracelet/lipgloss"
	"github.com/charmbracelet/x/ansi"
	"github.com/muesli/termenv"

	"github.com/farkv/farkv/node/telemetry"
	"github.com/farkv/farkv/tui/components"
	"github.com/farkv/farkv/tui/pages"
	"github.com/farkv/farkv/tui/styles"
	"github.com/farkv/farkv/tui/tuitest"
)

// TestMain looks for goroutines that were left. teatest leaves one a test that waits for a signal.
func TestMain(m *testing.M) {
	goleak.VerifyTestMain(m, goleak.IgnoreTopFunction("github.com/charmbracelet/x/exp/teatest.NewTestModel.func2"))
}

var sizes = [][2]int{{60, 20}, {80, 24}, {160, 48}}

// TestPages compares a frame of each page at each size with what it was; FARKV_REMAKE=1 writes them
// anew.
func TestPages(t *testing.T) {
	const remake = "FARKV_REMAKE"
	samples := tuitest.NewPool(1, 3, 24).Samples(200)
	for i, p := range pages.All() {
		for _, size := range sizes {
			name := fmt.Sprintf("%s-%dx%d.txt", strings.ToLower(p.Name()), size[0], size[1])
			t.Run(name, func(t *testing.T) {
				compare(t, name, Frame(samples, i, size[0], size[1], true), os.Getenv(remake) != "")
			})
		}
	}
	compare(t, "overview-ascii.txt", Frame(samples, 0, 80, 24, false), os.Getenv(remake) != "")
	hurt := tuitest.NewPool(1, 3, 24)
	hurt.Spares = 0
	compare(t, "overview-hurt.txt", Frame(hurt.Samples(tuitest.Expelled+12), 0, 80, 24, true), os.Getenv(remake) != "")
}

func compare(t *testing.T, name, got string, remake bool) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if remake {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if got != string(want) {
		t.Errorf("%s is now\n%s\nFARKV_REMAKE=1 writes the frames anew", file, got)
	}
}

// colored returns a theme of 256 colors on a dark background.
func colored() *styles.Theme {
	r := lipgloss.NewRenderer(nil)
	r.SetColorProfile(termenv.ANSI256)
	r.SetHasDarkBackground(true)
	return styles.New(r, true)
}

// shown returns a model of a pool of which samples were taken, at the time of the last one.
func shown(t testing.TB, samples []*telemetry.Sample, w, h int) *model {
	m := newModel(context.Background(), Options{Pools: []Pool{{Name: "mine"}}, Folder: t.TempDir()}, colored())
	t.Cleanup(m.pump.close)
	m.pool, m.session = "mine", &Session{Breaker: newBreaker()}
	for _, s := range samples {
		m.add(s)
		m.now = func() time.Time { return s.At }
	}
	m.Update(tea.WindowSizeMsg{Width: w, Height: h})
	return m
}

// text returns the frame without styles.
func text(m *model) string {
	m.dirty = true
	return ansi.Strip(m.View())
}

// press sends keys, with a frame after each, as bubbletea does.
func press(m *model, keys ...string) {
	for _, k := range keys {
		m.Update(keyOf(k))
		m.View()
	}
}

func keyOf(k string) tea.KeyMsg {
	named := map[string]tea.KeyType{
		"enter": tea.KeyEnter, "esc": tea.KeyEsc, "left": tea.KeyLeft, "right": tea.KeyRight, "up": tea.KeyUp,
		"down": tea.KeyDown,
		"tab":  tea.KeyTab, "shift+tab": tea.KeyShiftTab, "end": tea.KeyEnd, "backspace": tea.KeyBackspace,
		"ctrl+c": tea.KeyCtrlC,
		"pgdown": tea.KeyPgDown, "pgup": tea.KeyPgUp,
	}
	if k == "space" {
		return tea.KeyMsg{Type: tea.KeySpace, Runes: []rune{' '}}
	}
	if t, ok := named[k]; ok {
		return tea.KeyMsg{Type: t}
	}
	return tea.KeyMsg{Type: tea.KeyRunes, Runes: []rune(k)}
}

// TestWorstProblemFirst: of several problems the second row shows the worst.
func TestWorstProblemFirst(t *testing.T) {
	samples := tuitest.NewPool(1, 3, 24).Samples(20)
	last := samples[len(samples)-1]
	last.MayDie, last.Lost, last.Processes[1].Oldest = 0, true, 4*time.Second
	second := strings.Split(text(shown(t, samples, 100, 30)), "\n")[1]
	if !strings.Contains(second, "data lost") || !strings.Contains(second, "more: !") {
		t.Errorf("the problem line: %q", second)
	}
}

// TestNoSampleBreaksAFrame draws any samples after any keys at any size: nothing panics, nothing
// leaves the frame, and no control character of theirs reaches the terminal.
func TestNoSampleBreaksAFrame(t *testing.T) {
	theme := colored()
	pressed := []string{"1", "2", "3", "4", "5", "6", "7", "enter", "esc", "left", "right", "up", "down", "pgdown",
		"s", "S", "o", "b", "B",
		"+", "-", "/", "a", "p", "?", "!", "tab", "backspace", "end", "[", ">"}
	rapid.Check(t, func(t *rapid.T) {
		m := newModel(context.Background(), Options{Pools: []Pool{{Name: "m\x1bine"}}}, theme)
		defer m.pump.close()
		m.pool, m.session = "mine", &Session{Breaker: newBreaker()}
		w, h := rapid.IntRange(0, 170).Draw(t, "w"), rapid.IntRange(0, 50).Draw(t, "h")
		m.Update(tea.WindowSizeMsg{Width: w, Height: h})
		for range rapid.IntRange(0, 5).Draw(t, "rounds") {
			if rapid.Bool().Draw(t, "sample") {
				m.history.Add(anySample(t))
			}
			press(m, rapid.SliceOfN(rapid.SampledFrom(pressed), 0, 6).Draw(t, "keys")...)
			m.dirty = true
			checkFrame(t, m.View(), w, h)
		}
	})
}

func checkFrame(t *rapid.T, frame string, w, h int) {
	lines := strings.Split(frame, "\n")
	if len(lines) != max(h, 1) {
		t.Fatalf("%d lines, want %d", len(lines), h)
	}
	for _, line := range lines {
		plain := ansi.Strip(line)
		if got := components.Columns(plain); got > w {
			t.Fatalf("%q takes %d columns of %d", plain, got, w)
		}
		for _, r := range plain {
			if components.Width(r) == 0 || unicode.IsControl(r) {
				t.Fatalf("%q holds the character %U", plain, r)
			}
		}
	}
}

// anySample draws a sample of any values, as a broken or hostile process could make it.
func anySample(t *rapid.T) *telemetry.Sample {
	name := rapid.OneOf(rapid.String(), rapid.Just("\x1b[2J\x07worker"), rapid.Just("客户端")).Draw(t, "name")
	count := rapid.OneOf(rapid.Uint64(), rapid.Uint64Range(0, 1000))
	some := rapid.IntRange(-3, 5)
	at := tuitest.Begin.Add(time.Duration(rapid.Int64Range(-1e12, 1e12).Draw(t, "at")))
	s := &telemetry.Sample{At: at, Pool: name, Store: name, Virtual: rapid.Bool().Draw(t, "virtual"),
		Problem: rapid.SampledFrom([]string{"", name}).
			Draw(t, "problem"), Epoch: count.Draw(t, "epoch"), Busy: rapid.Bool().Draw(t, "busy"), Master: some.Draw(t,
			"master"),
		MayDie: some.Draw(t, "may die"), Spares: some.Draw(t, "spares"), Lost: rapid.Bool().Draw(t, "lost"),
		More:   some.Draw(t, "more"),
		Fill:   []telemetry.Fill{{Of: name, Used: count.Draw(t, "used"), All: count.Draw(t, "all")}},
		Memory: []telemetry.Use{{Purpose: name, Count: count.Draw(t, "count"), Bytes: count.Draw(t, "bytes")}},
		Events: []telemetry.Event{{At: at, What: rapid.SampledFrom([]string{"broken", "restored", name}).Draw(t,
			"what"), Text: name,
			Node: some.Draw(t, "node"), Client: some.Draw(t, "client"), Took: time.Duration(rapid.Int64().Draw(t,
				"took"))}},
	}
	for range rapid.IntRange(0, 4).Draw(t, "nodes") {
		n := telemetry.Node{ID: some.Draw(t, "id"), Address: name, Role: rapid.SampledFrom([]string{"member", "gone",
			name}).Draw(t, "role"),
			Up: rapid.Bool().Draw(t, "up"), Replaces: some.Draw(t, "stands for"),
			Lease: time.Duration(rapid.Int64().Draw(t, "lease"))}
		if rapid.Bool().Draw(t, "counts") {
			n.Counts = &telemetry.NodeCounts{Reads: count.Draw(t, "reads"), BytesWrote: count.Draw(t, "wrote")}
			n.PMem = &telemetry.PMem{DIMMs: []telemetry.DIMM{{ID: name, MediaWrites: count.Draw(t, "media"),
				WriteRequests: count.Draw(t, "asked")}}}
		}
		s.Nodes = append(s.Nodes, n)
	}
	for range rapid.IntRange(0, 3).Draw(t, "processes") {
		p := telemetry.Process{Host: name, PID: some.Draw(t, "pid"), Life: uint64(rapid.IntRange(0, 2).Draw(t,
			"life")), Name: name,
			At:     at.Add(time.Duration(rapid.Int64Range(-1e10, 1e10).Draw(t, "told"))),
			Oldest: time.Duration(rapid.Int64().Draw(t, "oldest")),
			Own:    []telemetry.Counter{{Name: name, Count: count.Draw(t, "own")}}}
		for k := range p.Ops {
			p.Ops[k] = telemetry.Ops{OK: count.Draw(t, "ok"), Failed: count.Draw(t, "failed"), Unknown: count.Draw(t,
				"unknown"), Trips: count.Draw(t, "trips")}
			if rapid.Bool().Draw(t, "latency") {
				p.Ops[k].Latency = new(telemetry.Histogram)
				p.Ops[k].Latency.Record(time.Duration(rapid.Int64().Draw(t, "ns")))
			}
		}
		s.Processes = append(s.Processes, p)
	}
	for range rapid.IntRange(0, 3).Draw(t, "clients") {
		s.Clients = append(s.Clients, telemetry.Client{ID: some.Draw(t, "client"), Name: name, PID: some.Draw(t,
			"pid"), State: name})
	}
	return s
}

// BenchmarkFrame draws a frame of each page of a pool of 500 clients at 160 by 48, as after a
// sample.
func BenchmarkFrame(b *testing.B) {
	samples := tuitest.NewPool(1, 64, 500).Samples(310)
	for i, p := range pages.All() {
		b.Run(p.Name(), func(b *testing.B) {
			m := shown(b, samples, 160, 48)
			m.page = i
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				m.dirty = true
				n = len(m.View())
			}
			b.ReportMetric(float64(n), "bytes/frame")
		})
	}
}

// BenchmarkSample adds samples of 64 processes and 500 clients.
func BenchmarkSample(b *testing.B) {
	m := shown(b, nil, 160, 48)
	samples := tuitest.NewPool(1, 64, 500).Samples(40)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		s := *samples[i%len(samples)]
		s.At = tuitest.Begin.Add(time.Duration(i) * time.Second)
		m.history.Add(&s)
	}
}
