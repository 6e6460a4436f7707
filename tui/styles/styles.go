// Package styles is how the monitor looks: a short list of styles, which colors they have on light
// and dark terminals of 16, 256 and 16 million colors, and what stands for its glyphs where the
// locale is not UTF-8.
package styles

import (
	"strings"

	"github.com/charmbracelet/lipgloss"
	"github.com/muesli/termenv"
)

// ID names a style. A cell of the screen has one.
type ID uint8

// The styles. Series and those after it are the colors of lines in a chart; there are SeriesCount
// of them.
const (
	Plain  ID = iota
	Muted     // labels, units, axes
	Faint     // rules, grids
	Strong    // what is looked at first
	Title     // of a section
	Accent    // the page that is open, keys
	Good
	Warn
	Bad
	Alarm // a line that must be seen
	Series
	count = Series + SeriesCount

	// Selected is added to the style of a cell in a selected row.
	Selected ID = 0x80

	// SeriesCount is how many lines of a chart differ in color.
	SeriesCount = 6
)

// OfSeries returns the style of a chart's i-th line.
func OfSeries(i int) ID { return Series + ID(i%SeriesCount) }

// ink is a color by the number that it has among 256 and among 16, on a light and on a dark
// background. Numbers are shorter on the wire than 16 million colors are.
func ink(light, light16, dark, dark16 string) lipgloss.CompleteAdaptiveColor {
	return lipgloss.CompleteAdaptiveColor{
		Light: lipgloss.CompleteColor{TrueColor: light, ANSI256: light, ANSI: light16},
		Dark:  lipgloss.CompleteColor{TrueColor: dark, ANSI256: dark, ANSI: dark16},
	}
}

// inks are the colors of the styles, in their order. The series differ in lightness, too.
var inks = [count]lipgloss.CompleteAdaptiveColor{
	Muted:      ink("243", "8", "246", "7"),
	Faint:      ink("251", "7", "239", "8"),
	Accent:     ink("25", "4", "75", "12"),
	Good:       ink("28", "2", "78", "2"),
	Warn:       ink("130", "3", "214", "3"),
	Bad:        ink("160", "1", "203", "9"),
	Series:     ink("26", "4", "75", "12"),
	Series + 1: ink("166", "3", "215", "11"),
	Series + 2: ink("29", "2", "79", "10"),
	Series + 3: ink("127", "5", "176", "13"),
	Series + 4: ink("31", "6", "116", "14"),
	Series + 5: ink("94", "1", "180", "3"),
}

// A Theme is the styles as escape sequences of a terminal. It does not change once it is made.
type Theme struct {
	// Unicode reports whether the terminal shows more than ASCII.
	Unicode bool
	open    [256]string
}

// New returns the theme of what r writes to.
func New(r *lipgloss.Renderer, unicode bool) *Theme {
	t := &Theme{Unicode: unicode}
	for id := range count {
		s := r.NewStyle()
		if inks[id] != (lipgloss.CompleteAdaptiveColor{}) {
			s = s.Foreground(inks[id])
		}
		switch id {
		case Strong, Title:
			s = s.Bold(true)
		case Accent:
			s = s.Bold(true)
		case Alarm:
			s = s.Bold(true).Foreground(ink("231", "15", "231", "15")).Background(ink("160", "1", "124", "1"))
		}
		t.open[id] = opening(s)
		t.open[id|Selected] = opening(selected(r, s))
	}
	return t
}

// selected returns style s in a selected row. Of 16 colors none is a background on which all others
// can be read, so the row is the terminal's own two colors the other way round.
func selected(r *lipgloss.Renderer, s lipgloss.Style) lipgloss.Style {
	if r.ColorProfile() == termenv.ANSI {
		return r.NewStyle().Bold(s.GetBold()).Reverse(true)
	}
	return s.Background(lipgloss.AdaptiveColor{Light: "254", Dark: "237"})
}

// NoColor returns a theme without a single escape sequence.
func NoColor(unicode bool) *Theme { return &Theme{Unicode: unicode} }

// opening returns the sequence that ends all other styles and begins s.
func opening(s lipgloss.Style) string {
	text := s.Render("x")
	open, _, _ := strings.Cut(text, "x")
	params, ok := strings.CutPrefix(open, "\x1b[")
	if !ok {
		return ""
	}
	return "\x1b[0;" + params
}

// Reset ends all styles.
const Reset = "\x1b[0m"

// Open returns the sequence that ends the style before and begins id's; "" without colors.
func (t *Theme) Open(id ID) string {
	if s := t.open[id]; s != "" {
		return s
	}
	if t.open[Alarm] == "" {
		return ""
	}
	return Reset
}

// Visible reports whether a space of style id differs from one of style other.
func Visible(id, other ID) bool {
	return id != other && (id&Selected != other&Selected || id == Alarm || other == Alarm)
}

// plain are the glyphs that the monitor draws, as ASCII.
var plain = map[rune]byte{
	'─': '-', '│': '|', '┤': '|', '└': '+', '┴': '+', '╭': '+', '╮': '+', '╰': '+', '╯': '+', '┆': ':', '┈': '.',
	'●': '*', '○': 'o', '◆': '*', '▲': '^', '▼': 'v', '▸': '>', '✓': '+', '✗': 'x', '‖': '|', '▶': '>',
	'█': '#', '░': '.', '·': '.', '…': '~', '–': '-', '±': '+', '×': 'x', 'µ': 'u', '≤': '<',
	'←': '<', '→': '>', '↑': '^', '↓': 'v', '⏎': '>', 'σ': 's', '∞': '*',
	'▁': '_', '▂': '.', '▃': '-', '▄': '-', '▅': '=', '▆': '=', '▇': '#',
}

// Glyph returns what stands for r in the theme.
func (t *Theme) Glyph(r rune) rune {
	if t.Unicode || r < 0x80 {
		return r
	}
	if b, ok := plain[r]; ok {
		return rune(b)
	}
	return '?'
}
