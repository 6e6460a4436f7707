// Package components is what pages are made of: charts, tables, bars and sparklines, drawn into
// areas of a screen of cells. Nothing is drawn outside an area, no cell holds a control character,
// and a frame is turned into text once, so components need not know of escape sequences, widths of
// strings or each other.
package components

import (
	"strings"
	"unicode"

	"github.com/mattn/go-runewidth"

	"github.com/farkv/farkv/tui/styles"
)

// cell is a place of the screen. 0 stands for a space; the second half of a wide rune is continued.
type cell struct {
	r  rune
	st styles.ID
}

const continued = -1

// A Screen is the cells of a terminal.
type Screen struct {
	w, h  int
	cells []cell
	theme *styles.Theme
	text  strings.Builder
}

// NewScreen returns an empty screen of w by h cells.
func NewScreen(w, h int, theme *styles.Theme) *Screen {
	return &Screen{w: w, h: h, cells: make([]cell, w*h), theme: theme}
}

// Clear empties the screen.
func (s *Screen) Clear() { clear(s.cells) }

// Area returns all of the screen.
func (s *Screen) Area() Area { return Area{s: s, W: s.w, H: s.h} }

// String returns the screen as lines without a newline after the last one. Spaces at the end of a
// line are left out: the renderer clears what is right of it.
func (s *Screen) String() string {
	s.text.Reset()
	s.text.Grow(len(s.cells) * 2)
	for y := range s.h {
		if y > 0 {
			s.text.WriteByte('\n')
		}
		s.line(s.cells[y*s.w : (y+1)*s.w])
	}
	return s.text.String()
}

// line writes one row: an escape sequence where a style begins, and none for a space that looks the
// same in both.
func (s *Screen) line(row []cell) {
	for n := len(row); n > 0 && row[n-1].blank() && !styles.Visible(row[n-1].st, styles.Plain); n-- {
		row = row[:n-1]
	}
	now := styles.Plain
	for _, c := range row {
		if c.r == continued {
			continue
		}
		if c.st != now && (!c.blank() || styles.Visible(c.st, now)) {
			s.text.WriteString(s.theme.Open(c.st))
			now = c.st
		}
		if c.r == 0 {
			s.text.WriteByte(' ')
		} else {
			s.text.WriteRune(s.theme.Glyph(c.r))
		}
	}
	if now != styles.Plain {
		s.text.WriteString(s.theme.Open(styles.Plain))
	}
}

func (c cell) blank() bool { return c.r == 0 || c.r == ' ' }

// An Area is a rectangle of a screen, W by H cells. Coordinates begin at its upper left corner;
// what lies outside is not drawn.
type Area struct {
	s    *Screen
	x, y int
	W, H int
}

// Theme returns the theme of the screen.
func (a Area) Theme() *styles.Theme { return a.s.theme }

// Sub returns the part of a that is w by h cells at (x, y), or less where a ends.
func (a Area) Sub(x, y, w, h int) Area {
	x, y = min(max(x, 0), a.W), min(max(y, 0), a.H)
	return Area{s: a.s, x: a.x + x, y: a.y + y, W: min(max(w, 0), a.W-x), H: min(max(h, 0), a.H-y)}
}

// Top cuts n rows from the top, and returns them and the rest.
func (a Area) Top(n int) (top, rest Area) { return a.Sub(0, 0, a.W, n), a.Sub(0, n, a.W, a.H-n) }

// Left cuts n columns from the left, and returns them and the rest.
func (a Area) Left(n int) (left, rest Area) { return a.Sub(0, 0, n, a.H), a.Sub(n, 0, a.W-n, a.H) }

var widths = runewidth.Condition{}

// Put draws a rune of one column. What is left of a wide rune that it covers half of is a space.
func (a Area) Put(x, y int, st styles.ID, r rune) {
	if x < 0 || y < 0 || x >= a.W || y >= a.H {
		return
	}
	row, x := a.s.cells[(a.y+y)*a.s.w:][:a.s.w], a.x+x
	if row[x].r == continued && r != continued {
		row[x-1].r = 0
	}
	if x+1 < len(row) && row[x+1].r == continued {
		row[x+1].r = 0
	}
	row[x] = cell{r, st}
}

// Text draws s at (x, y), as far as the row goes, and returns the column behind it. A control
// character, and one without a width, is left out.
func (a Area) Text(x, y int, st styles.ID, s string) int {
	for _, r := range s {
		switch w := Width(r); {
		case w == 0:
		case x+w > a.W:
			return a.W
		default:
			a.Put(x, y, st, r)
			if w == 2 {
				a.Put(x+1, y, st, continued)
			}
			x += w
		}
	}
	return x
}

// Width returns how many columns a rune takes: 0 for what is never drawn.
func Width(r rune) int {
	if r >= ' ' && r < 0x7f {
		return 1
	}
	if !unicode.IsPrint(r) {
		return 0
	}
	return widths.RuneWidth(r)
}

// Columns returns how many columns s takes.
func Columns(s string) (n int) {
	for _, r := range s {
		n += Width(r)
	}
	return n
}

// Fit returns s, or its beginning and an ellipsis where it takes more than n columns.
func Fit(s string, n int) string {
	if len(s) <= n && n > 0 || Columns(s) <= n {
		return s
	}
	if n <= 0 {
		return ""
	}
	at, used := 0, 0
	for i, r := range s {
		if used+Width(r) > n-1 {
			break
		}
		used += Width(r)
		at = i + len(string(r))
	}
	return s[:at] + "…"
}

// Right draws s so that it ends before column x, and returns the column where it begins.
func (a Area) Right(x, y int, st styles.ID, s string) int {
	from := max(x-Columns(s), 0)
	a.Text(from, y, st, s)
	return from
}

// Fill draws r in each cell of row y from column x on.
func (a Area) Fill(x, y int, st styles.ID, r rune) {
	for ; x < a.W; x++ {
		a.Put(x, y, st, r)
	}
}

// Select makes row y a selected one, in all of its width.
func (a Area) Select(y int) {
	if y < 0 || y >= a.H {
		return
	}
	row := a.s.cells[(a.y+y)*a.s.w+a.x:][:a.W]
	for i := range row {
		row[i].st |= styles.Selected
	}
}

// Heading draws the title of a section with a rule behind it, and what legend holds at its right.
// It returns the columns between which the legend stands.
func (a Area) Heading(y int, title string, legend ...Span) {
	a.Fill(0, y, styles.Faint, '─')
	x := a.W
	for i := len(legend) - 1; i >= 0; i-- {
		x -= Columns(legend[i].Text)
	}
	room := a.W
	if len(legend) > 0 {
		x = max(x-2, 2)
		room = x
		for i, l := range legend {
			if i == 0 {
				x = a.Text(x, y, styles.Plain, " ")
			}
			x = a.Text(x, y, l.Style, l.Text)
		}
		a.Text(x, y, styles.Plain, " ")
	}
	if room > 4 {
		title = Fit(title, room-2)
		end := a.Text(0, y, styles.Title, title)
		a.Text(end, y, styles.Plain, " ")
	}
}

// A Span is text in one style.
type Span struct {
	Style styles.ID
	Text  string
}

// Spans draws spans one behind the other, and returns the column behind them.
func (a Area) Spans(x, y int, spans ...Span) int {
	for _, s := range spans {
		x = a.Text(x, y, s.Style, s.Text)
	}
	return x
}

// WrapText draws text from row y on, broken at spaces, and returns the row behind it.
func (a Area) WrapText(y int, st styles.ID, text string) int {
	x := 0
	for word := range strings.FieldsSeq(text) {
		n := Columns(word)
		if x > 0 && x+1+n > a.W {
			x, y = 0, y+1
		} else if x > 0 {
			x++
		}
		x = a.Text(x, y, st, Fit(word, a.W))
	}
	return y + 1
}
