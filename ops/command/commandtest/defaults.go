// Package commandtest is what the tests of both command lines have in common.
package commandtest

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Defaults wants the default of every flag, of root and of all commands below it, to be in the help
// once: cobra writes that of a flag which has one, and the flag's text all others. A negative
// number stands for something else, which the help would not say. It returns how many flags it saw.
func Defaults(t testing.TB, root *cobra.Command) (flags int) {
	t.Helper()
	root.LocalFlags().VisitAll(func(f *pflag.Flag) {
		flags++
		lone := pflag.NewFlagSet("", pflag.ContinueOnError)
		lone.AddFlag(&pflag.Flag{Name: f.Name, Value: f.Value, DefValue: f.DefValue})
		shown := strings.Contains(lone.FlagUsages(), "(default ")
		if shown && strings.Contains(f.Usage, "default") {
			t.Errorf("%s --%s: its text has a default, %q, and cobra adds %s", root.CommandPath(), f.Name, f.Usage,
				f.DefValue)
		}
		if shown && strings.HasPrefix(f.DefValue, "-") {
			t.Errorf("%s --%s: the default is %s", root.CommandPath(), f.Name, f.DefValue)
		}
	})
	for _, sub := range root.Commands() {
		flags += Defaults(t, sub)
	}
	return flags
}
