package command

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// What a flag says is broken where the terminal ends, and where nothing else wants it to be.
func TestWrapped(t *testing.T) {
	root := &cobra.Command{Use: "prog", Run: func(*cobra.Command, []string) {}}
	root.Flags().String("long", "", "one\nof "+strings.TrimSpace(strings.Repeat("word ", 50)))
	Wrapped(root)
	lines := strings.Split(root.UsageString(), "\n")
	flags := 0
	for _, line := range lines {
		if len(line) > Width {
			t.Errorf("%d bytes: %q", len(line), line)
		}
		if strings.Contains(line, "word") {
			flags++
		}
	}
	if flags < 3 || !strings.Contains(root.UsageString(), "  one of word word") {
		t.Errorf("%d lines: %s", flags, root.UsageString())
	}
}
