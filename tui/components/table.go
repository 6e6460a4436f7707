package components

import (
	"slices"
	"strings"

	"github.com/farkv/farkv/tui/styles"
)

// A Column of a table of R.
type Column[R any] struct {
	Title string
	Width int
	Left  bool        // text; numbers are aligned to the right
	Grow  bool        // takes the room that is left
	Drop  int         // columns with the highest are left out first where there is no room; 0: never
	Hide  func() bool // leaves the column out; nil: never
	Text  func(R) string
	Style func(R) styles.ID // nil: Plain
	// Order compares for sorting; nil: by the text. Numbers have the greatest first.
	Order func(a, b R) int
}

// A Table shows rows, sorted by a column, with one of them selected.
type Table[R any] struct {
	Columns []Column[R]
	Key     func(R) string // names a row, so that it stays selected while others come and go
	Empty   string         // is shown where there are no rows
	Fixed   bool           // rows stay in the order in which they come

	rows     []R
	sorted   int // column
	reverse  bool
	selected string
	at, top  int
	all      int // rows before the filter
}

// SortBy sorts by the column with the title.
func (t *Table[R]) SortBy(title string) {
	t.sorted = max(slices.IndexFunc(t.Columns, func(c Column[R]) bool { return c.Title == title }), 0)
}

// Set replaces the rows by those of which filter is a part of any column's text.
func (t *Table[R]) Set(rows []R, filter string) {
	t.all = len(rows)
	t.rows = rows
	if filter != "" {
		filter = strings.ToLower(filter)
		t.rows = slices.DeleteFunc(slices.Clone(rows), func(r R) bool {
			return !slices.ContainsFunc(t.Columns, func(c Column[R]) bool {
				return strings.Contains(strings.ToLower(c.Text(r)), filter)
			})
		})
	}
	t.sort()
}

func (t *Table[R]) sort() {
	if !t.Fixed {
		t.order()
	}
	if i := slices.IndexFunc(t.rows, func(r R) bool { return t.Key(r) == t.selected }); i >= 0 && t.selected != "" {
		t.at = i
	}
	t.at = min(max(t.at, 0), max(len(t.rows)-1, 0))
}

func (t *Table[R]) order() {
	c := &t.Columns[t.sorted]
	less := c.Order
	if less == nil {
		less = func(a, b R) int { return strings.Compare(c.Text(a), c.Text(b)) }
	}
	slices.SortStableFunc(t.rows, func(a, b R) int {
		n := less(a, b)
		if !c.Left {
			n = -n
		}
		if t.reverse {
			n = -n
		}
		if n == 0 {
			n = strings.Compare(t.Key(a), t.Key(b))
		}
		return n
	})
}

// Sort sorts by the next column, from the last one by the first; or the other way round if reverse
// is set.
func (t *Table[R]) Sort(reverse bool) {
	if reverse {
		t.reverse = !t.reverse
	} else {
		t.sorted, t.reverse = (t.sorted+1)%len(t.Columns), false
	}
	t.sort()
}

// Move selects the row that is n rows below.
func (t *Table[R]) Move(n int) {
	t.at = min(max(t.at+n, 0), max(len(t.rows)-1, 0))
	if len(t.rows) > 0 {
		t.selected = t.Key(t.rows[t.at])
	}
}

// Selected returns the selected row.
func (t *Table[R]) Selected() (r R, ok bool) {
	if len(t.rows) == 0 {
		return r, false
	}
	return t.rows[t.at], true
}

// Count returns how many rows are shown, and of how many.
func (t *Table[R]) Count() (shown, all int) { return len(t.rows), t.all }

// Texts returns the rows as text, with the titles of the columns before them.
func (t *Table[R]) Texts() (titles []string, rows [][]string) {
	for _, c := range t.Columns {
		titles = append(titles, c.Title)
	}
	for _, r := range t.rows {
		row := make([]string, 0, len(t.Columns))
		for _, c := range t.Columns {
			row = append(row, c.Text(r))
		}
		rows = append(rows, row)
	}
	return titles, rows
}

// Draw draws the head and the rows around the selected one.
func (t *Table[R]) Draw(a Area) {
	if a.H < 2 {
		return
	}
	fits := t.fit(a.W - 4)
	x := 2
	for _, f := range fits {
		title, st := t.Columns[f.column].Title, styles.Muted
		if f.column == t.sorted && !t.Fixed {
			st = styles.Strong
			down := !t.Columns[f.column].Left
			if down != t.reverse {
				title += "▼"
			} else {
				title += "▲"
			}
		}
		t.place(a, x, 0, f, st, title)
		x += f.width + 2
	}
	_, rows := a.Top(1)
	if len(t.rows) == 0 {
		text := t.Empty
		if t.all > 0 {
			text = "nothing matches the filter"
		}
		rows.Text(2, 0, styles.Muted, Fit(text, a.W-2))
		return
	}
	t.top = min(max(t.top, t.at-rows.H+1, 0), t.at, max(len(t.rows)-rows.H, 0))
	for y := range min(rows.H, len(t.rows)-t.top) {
		i := t.top + y
		x := 2
		for _, f := range fits {
			c, st := &t.Columns[f.column], styles.Plain
			if c.Style != nil {
				st = c.Style(t.rows[i])
			}
			t.place(rows, x, y, f, st, c.Text(t.rows[i]))
			x += f.width + 2
		}
		if i == t.at {
			rows.Put(0, y, styles.Accent, '▸')
			rows.Select(y)
		}
	}
	t.drawBar(rows)
}

// drawBar shows at the right edge which part of the rows is seen.
func (t *Table[R]) drawBar(a Area) {
	n := len(t.rows)
	if n <= a.H || a.H == 0 {
		return
	}
	long := max(a.H*a.H/n, 1)
	from := t.top * (a.H - long) / (n - a.H)
	for y := range a.H {
		r, st := '│', styles.Faint
		if y >= from && y < from+long {
			r, st = '█', styles.Muted
		}
		a.Put(a.W-1, y, st, r)
	}
}

// fitted is a column that has room.
type fitted struct{ column, width int }

// fit returns the columns that fit into w, the least needed ones left out.
func (t *Table[R]) fit(w int) (fits []fitted) {
	used := 0
	for i, c := range t.Columns {
		if c.Hide == nil || !c.Hide() {
			f := fitted{i, max(c.Width, Columns(c.Title)+1)}
			fits = append(fits, f)
			used += f.width + 2
		}
	}
	for used-2 > w {
		worst := -1
		for i, f := range fits {
			if d := t.Columns[f.column].Drop; d > 0 && (worst < 0 || d >= t.Columns[fits[worst].column].Drop) {
				worst = i
			}
		}
		if worst < 0 {
			break
		}
		used -= fits[worst].width + 2
		fits = slices.Delete(fits, worst, worst+1)
	}
	for i, f := range fits {
		if t.Columns[f.column].Grow && used-2 < w {
			fits[i].width += w - used + 2
			break
		}
	}
	return fits
}

// place draws text into a column of width f.width at x.
func (t *Table[R]) place(a Area, x, y int, f fitted, st styles.ID, text string) {
	text = Fit(text, f.width)
	if !t.Columns[f.column].Left {
		x += f.width - Columns(text)
	}
	a.Text(x, y, st, text)
}
