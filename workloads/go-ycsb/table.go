package main

import (
	"slices"
	"strings"

	"github.com/farkv/farkv/ops/command"
	"github.com/farkv/farkv/ops/table"
)

// terminal is the width that help texts fit.
const terminal = command.Width

// columns lays rows out in columns, of which it breaks the last into lines.
func columns(fill func(line func(cells ...string))) string {
	var rows [][]string
	fill(func(cells ...string) { rows = append(rows, cells) })
	width := table.Widths(rows)
	room, last := terminal-2, len(width)-1
	for _, w := range width[:last] {
		room -= w + 2
	}
	var lines [][]string
	for _, cells := range rows {
		for _, text := range table.Wrap(cells[last], room) {
			lines = append(lines, append(slices.Clone(cells[:last]), text))
			cells = make([]string, last+1)
		}
	}
	all := make([]int, last+1)
	for i := range all {
		all[i] = i
	}
	var b strings.Builder
	table.Print(&b, lines, all...)
	return "  " + strings.ReplaceAll(strings.TrimSuffix(b.String(), "\n"), "\n", "\n  ") + "\n"
}

// prose breaks a paragraph into lines.
func prose(text string) string { return strings.Join(table.Wrap(text, terminal), "\n") + "\n" }
