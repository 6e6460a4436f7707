package components_test

import (
	"strings"
	"testing"

	"github.com/charmbracelet/lipgloss"
	"github.com/charmbracelet/x/ansi"
	"github.com/muesli/termenv"
	"pgregory.net/rapid"

	"github.com/farkv/farkv/tui/components"
	"github.com/farkv/farkv/tui/styles"
)

// colors returns a theme of 256 colors.
func colors(dark bool) *styles.Theme {
	r := lipgloss.NewRenderer(nil)
	r.SetColorProfile(termenv.ANSI256)
	r.SetHasDarkBackground(dark)
	return styles.New(r, true)
}

func TestNothingIsDrawnOutside(t *testing.T) {
	theme := colors(true)
	rapid.Check(t, func(t *rapid.T) {
		w, h := rapid.IntRange(0, 30).Draw(t, "w"), rapid.IntRange(0, 8).Draw(t, "h")
		s := components.NewScreen(w, h, theme)
		for range rapid.IntRange(0, 12).Draw(t, "drawings") {
			n := func(what string) int { return rapid.IntRange(-5, 35).Draw(t, what) }
			a := s.Area().Sub(n("x"), n("y"), n("width"), n("height"))
			st := styles.ID(rapid.Byte().Draw(t, "style"))
			text := rapid.String().Draw(t, "text")
			switch rapid.IntRange(0, 5).Draw(t, "what") {
			case 0:
				a.Text(n("at"), n("row"), st, text)
			case 1:
				a.Right(n("at"), n("row"), st, text)
			case 2:
				a.Heading(n("row"), text, components.Span{Style: st, Text: text})
			case 3:
				a.WrapText(n("row"), st, text)
			case 4:
				a.Select(n("row"))
			case 5:
				a.Text(n("at"), n("row"), st, components.Fit(text, n("columns")))
			}
		}
		frame := s.String()
		checkFrame(t, frame, w, h)
	})
}

// checkFrame fails unless frame has h lines of at most w columns, and no control character but
// those of styles.
func checkFrame(t interface{ Fatalf(string, ...any) }, frame string, w, h int) {
	lines := strings.Split(frame, "\n")
	if len(lines) != max(h, 1) {
		t.Fatalf("%d lines, want %d", len(lines), h)
	}
	for _, line := range lines {
		if got := components.Columns(ansi.Strip(line)); got > w {
			t.Fatalf("%q takes %d columns of %d", line, got, w)
		}
	}
	for _, r := range ansi.Strip(frame) {
		if r != '\n' && components.Width(r) == 0 {
			t.Fatalf("%q holds the character %U", frame, r)
		}
	}
}

func TestControlCharactersAreLeftOut(t *testing.T) {
	s := components.NewScreen(20, 1, styles.NoColor(true))
	s.Area().Text(0, 0, styles.Plain, "a\x1b[31mb\x07\r\n\u202ec\u009bd")
	if got, want := s.String(), "a[31mbcd"; got != want {
		t.Errorf("drew %q, want %q", got, want)
	}
}

func TestStylesBeginOnce(t *testing.T) {
	s := components.NewScreen(20, 1, colors(true))
	a := s.Area()
	a.Text(0, 0, styles.Good, "up")
	a.Text(3, 0, styles.Good, "up")
	a.Text(8, 0, styles.Bad, "down")
	if got, want := s.String(), "\x1b[0;38;5;78mup up   \x1b[0;38;5;203mdown\x1b[0m"; got != want {
		t.Errorf("drew %q, want %q", got, want)
	}
}

func TestWideRunesKeepTheirPlace(t *testing.T) {
	s := components.NewScreen(8, 1, styles.NoColor(true))
	a := s.Area()
	a.Text(0, 0, styles.Plain, "一二三")
	a.Put(1, 0, styles.Plain, 'x')
	a.Put(2, 0, styles.Plain, 'y')
	if got, want := s.String(), " xy 三"; got != want {
		t.Errorf("drew %q, want %q", got, want)
	}
}

func TestASCIIAndNoColor(t *testing.T) {
	s := components.NewScreen(20, 1, styles.NoColor(false))
	s.Area().Text(0, 0, styles.Bad, "▲ 4.1 µs – … é")
	if got, want := s.String(), "^ 4.1 us - ~ ?"; got != want {
		t.Errorf("drew %q, want %q", got, want)
	}
}
