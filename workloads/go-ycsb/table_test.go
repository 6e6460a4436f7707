package main

import (
	"strings"
	"testing"
)

func TestTable(t *testing.T) {
	long := strings.TrimSpace(strings.Repeat("word ", 40))
	got := columns(func(line func(...string)) {
		line("name", "1", long)
		line("longer-name", "", "doc")
		line("none", "22", "")
	})
	lines := strings.Split(strings.TrimSuffix(got, "\n"), "\n")
	if len(lines) != 4 || lines[2] != "  longer-name      doc" || lines[3] != "  none         22" {
		t.Errorf("%q", lines)
	}
	for i, line := range lines[:2] {
		if len(line) > terminal || strings.Index(line, "word") != 19 ||
			(i == 0) != strings.HasPrefix(line, "  name         1   word") {
			t.Errorf("%q", line)
		}
	}
}

// No help is wider than a terminal.
func TestHelpFits(t *testing.T) {
	for _, topic := range helpTopics() {
		for line := range strings.Lines(topic.Long) {
			if len(line) > terminal+1 {
				t.Errorf("%s: %d bytes: %s", topic.Name(), len(line), line)
			}
		}
	}
}
