// Package table prints the tables of all commands and reports.
package table

import (
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"
	"unicode/utf8"
)

// Print prints rows in columns as wide as they need to be: the first left-aligned, the others
// right-aligned, or left-aligned too where left names them. Cells that a row leaves out are empty.
//
// A tabwriter aligns all columns one way: those on the left are padded before it sees them.
func Print(w io.Writer, rows [][]string, left ...int) {
	width := Widths(rows)
	var text strings.Builder
	t := tabwriter.NewWriter(&text, 0, 0, 0, ' ', tabwriter.AlignRight)
	for _, row := range rows {
		for i := range width {
			cell := ""
			if i < len(row) {
				cell = row[i]
			}
			if i == 0 || slices.Contains(left, i) {
				cell = fmt.Sprintf("%-*s", width[i], cell)
			}
			if i > 0 {
				cell = "  " + cell
			}
			fmt.Fprint(t, cell, "\t")
		}
		fmt.Fprintln(t)
	}
	t.Flush() // a Builder takes everything
	for line := range strings.Lines(text.String()) {
		fmt.Fprintln(w, strings.TrimRight(line, " \n"))
	}
}

// Widths returns how many characters each column has at most.
func Widths(rows [][]string) (width []int) {
	for _, row := range rows {
		for i, cell := range row {
			if i == len(width) {
				width = append(width, 0)
			}
			width[i] = max(width[i], utf8.RuneCountInString(cell))
		}
	}
	return width
}

// Wrap breaks a text at its spaces into lines of at most width characters, one line at least. A
// longer word has a line of its own.
func Wrap(text string, width int) (lines []string) {
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && utf8.RuneCountInString(line+" "+word) > width {
			lines, line = append(lines, line), ""
		}
		line = strings.TrimPrefix(line+" "+word, " ")
	}
	return append(lines, line)
}
