package main

import (
	"fmt"
	"sync"
	"time"

	"github.com/spf13/cobra"
)

// progress returns what says on standard error, with the seconds since now, what a command is
// about; with --quiet it says nothing. It may be called by several goroutines.
func (c *cli) progress(cmd *cobra.Command) func(format string, args ...any) {
	if c.quiet {
		return func(string, ...any) {}
	}
	began := time.Now()
	var mu sync.Mutex
	return func(format string, args ...any) {
		mu.Lock()
		defer mu.Unlock()
		fmt.Fprintf(cmd.ErrOrStderr(), "%5.1fs  %s\n", time.Since(began).Seconds(), fmt.Sprintf(format, args...))
	}
}
