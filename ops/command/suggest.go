// Package command is what the command lines of farkv and go-ycsb have in common: what they answer
// to a word that they do not know, what they complete, and which version they are.
package command

import (
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/farkv/farkv/workloads"
)

// FlagError is what to say of a flag that could not be read: a misspelt one is asked after, and the
// help is named. Where a group's command is misspelt, its flags are not the group's: what counts is
// the name.
func FlagError(cmd *cobra.Command, err error) error {
	if cmd.HasSubCommands() && cmd.Args != nil {
		if err := cmd.Args(cmd, cmd.Flags().Args()); err != nil {
			return err
		}
	}
	hint := ""
	var invalid *pflag.InvalidValueError
	if errors.As(err, &invalid) {
		if _, ours := invalid.GetFlag().Value.(*option); ours { // its errors already say what is wanted
			err = fmt.Errorf("--%s %s: %w", invalid.GetFlag().Name, invalid.GetValue(), invalid.Unwrap())
		}
	}
	var unknown *pflag.NotExistError
	if errors.As(err, &unknown) && unknown.GetSpecifiedShortnames() == "" {
		if near := workloads.Nearest(unknown.GetSpecifiedName(), flags(cmd)); near != nil {
			hint = "did you mean --" + strings.Join(near, " or --") + "? "
		}
	}
	return fmt.Errorf("%s: %ssee '%s --help'", parsing.ReplaceAllString(err.Error(), ""), hint, cmd.CommandPath())
}

// parsing is what Go's own functions say of a number that they cannot read, beside why.
var parsing = regexp.MustCompile(`strconv\.\w+: parsing "[^"]*": `)

// flags lists the flags of a command, inherited ones too.
func flags(cmd *cobra.Command) (names []string) {
	add := func(f *pflag.Flag) {
		if !f.Hidden {
			names = append(names, f.Name)
		}
	}
	cmd.Flags().VisitAll(add)
	cmd.InheritedFlags().VisitAll(add)
	return names
}

// Unknown asks after a misspelt name of a command below cmd, with a space behind the question; ""
// when none is near.
func Unknown(cmd *cobra.Command, name string) string {
	var names []string
	for _, sub := range cmd.Commands() {
		for _, other := range sub.SuggestFor {
			if strings.EqualFold(other, name) {
				return "did you mean " + sub.Name() + "? "
			}
		}
		if sub.Name() != cobra.ShellCompRequestCmd && sub.Name() != cobra.ShellCompNoDescRequestCmd {
			names = append(names, sub.Name())
		}
	}
	return workloads.DidYouMean(strings.ToLower(name), names)
}
