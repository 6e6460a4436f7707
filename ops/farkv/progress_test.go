package main

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// A process that runs for long goes on to warn when it is to be quiet.
func TestQuietLog(t *testing.T) {
	for _, quiet := range []bool{false, true} {
		var errs strings.Builder
		cmd := new(cobra.Command)
		cmd.SetErr(&errs)
		c := &cli{quiet: quiet}
		log := c.logTo(cmd)
		log.Info("serving")
		log.Warn("expelled")
		c.progress(cmd)("%d rounds", 3)
		text := errs.String()
		if strings.Contains(text, "serving") == quiet || strings.Contains(text, "3 rounds") == quiet ||
			!strings.Contains(text, "expelled") {
			t.Errorf("quiet: %v: %q", quiet, text)
		}
	}
}
