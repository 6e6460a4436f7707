package styles_test

import (
	"testing"

	"github.com/charmbracelet/lipgloss"
	"github.com/muesli/termenv"

	"github.com/farkv/farkv/tui/styles"
)

// TestSelectedRowCanBeRead: in 16 colors no text of a selected row has a color of its own, for none
// can be read on all backgrounds.
func TestSelectedRowCanBeRead(t *testing.T) {
	for _, dark := range []bool{true, false} {
		r := lipgloss.NewRenderer(nil)
		r.SetColorProfile(termenv.ANSI)
		r.SetHasDarkBackground(dark)
		theme := styles.New(r, true)
		for id := styles.Plain; id < styles.Series+styles.SeriesCount; id++ {
			if got := theme.Open(id | styles.Selected); got != "\x1b[0;7m" && got != "\x1b[0;1;7m" {
				t.Errorf("style %d of a selected row begins with %q, want reverse video, and no color", id, got)
			}
		}
	}
}
