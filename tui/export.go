package tui

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/farkv/farkv/tui/pages"
)

// export writes what the page shows to a file, and says where.
func (m *model) export(kind string) {
	name, err := m.write(kind)
	if err != nil {
		m.said = "not exported: " + err.Error()
		return
	}
	m.said = "wrote " + name
}

func (m *model) write(kind string) (name string, err error) {
	page := m.pages[m.page]
	f := page.Figure(m.env())
	name = filepath.Join(m.o.Folder, fmt.Sprintf("farkv-%s-%s.%s", strings.ToLower(page.Name()),
		m.now().Format("20060102-150405"), kind))
	write := CSV
	if kind == "svg" {
		if write = m.o.SVG; write == nil {
			return "", errors.New("no drawings here: use c for CSV")
		}
		if len(f.Lines) == 0 {
			return "", errors.New("the page has no chart: use c for CSV")
		}
	}
	out, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return "", err
	}
	if err := errors.Join(write(out, &f), out.Close()); err != nil {
		return "", errors.Join(err, os.Remove(name))
	}
	return name, nil
}

// CSV writes a figure: its table where it has one, and else its lines as rows of series, x and y.
func CSV(w io.Writer, f *pages.Figure) error {
	out := csv.NewWriter(w)
	if len(f.Header) > 0 {
		if err := out.WriteAll(append([][]string{f.Header}, f.Rows...)); err != nil {
			return err
		}
	}
	if len(f.Lines) > 0 {
		if len(f.Header) > 0 { // a blank line separates two tables
			if _, err := io.WriteString(w, "\n"); err != nil {
				return err
			}
		}
		rows := [][]string{{"series", f.X, f.Y}}
		for _, l := range f.Lines {
			for i, y := range l.Y {
				if math.IsNaN(y) {
					continue
				}
				x := strconv.FormatFloat(l.X[i], 'g', -1, 64)
				if f.Time {
					x = pages.Time(l.X[i]).Format(time.RFC3339Nano)
				}
				rows = append(rows, []string{l.Name, x, strconv.FormatFloat(y, 'g', -1, 64)})
			}
		}
		if err := out.WriteAll(rows); err != nil {
			return err
		}
	}
	return out.Error()
}
