// Package early keeps bubbletea from asking the terminal for its background when the program
// starts. It asks in an init, whatever the command, and a terminal that does not answer costs five
// seconds. termenv asks none where $CI is set. Packages without imports left to initialize are
// initialized in the order of their paths, so this one is before termenv, lipgloss and bubbletea.
package early

import "os"

var set = os.Getenv("CI") == "" && os.Setenv("CI", "true") == nil

// Done puts the environment back as it was.
func Done() {
	if set {
		_ = os.Unsetenv("CI")
	}
}
