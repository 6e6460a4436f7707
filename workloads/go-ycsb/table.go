package main

import (
	"strings"
	"unicode/utf8"

	"github.com/farkv/farkv/ops/command"
)

// terminal is the width that help texts fit.
const terminal = command.Width

// table lays rows out in columns, of which it breaks the last into lines.
func table(fill func(line func(cells ...string))) string {
	var rows [][]string
	fill(func(cells ...string) { rows = append(rows, cells) })
	var width []int // of the columns but the last
	for _, cells := range rows {
		for i, cell := range cells[:len(cells)-1] {
			if i == len(width) {
				width = append(width, 0)
			}
			width[i] = max(width[i], utf8.RuneCountInString(cell))
		}
	}
	indent := 2
	for _, w := range width {
		indent += w + 2
	}
	var b strings.Builder
	for _, cells := range rows {
		line := "  "
		for i, cell := range cells[:len(cells)-1] {
			line += cell + strings.Repeat(" ", width[i]-utf8.RuneCountInString(cell)+2)
		}
		for _, text := range broken(cells[len(cells)-1], terminal-indent) {
			b.WriteString(strings.TrimRight(line+text, " ") + "\n")
			line = strings.Repeat(" ", indent)
		}
	}
	return b.String()
}

// prose breaks a paragraph into lines.
func prose(text string) string { return strings.Join(broken(text, terminal), "\n") + "\n" }

// broken breaks a text at its spaces into lines of at most width, one line at least. A longer word has a line of its
// own.
func broken(text string, width int) (lines []string) {
	line := ""
	for _, word := range strings.Fields(text) {
		if line != "" && utf8.RuneCountInString(line+" "+word) > width {
			lines, line = append(lines, line), ""
		}
		line = strings.TrimPrefix(line+" "+word, " ")
	}
	return append(lines, line)
}
