package command

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

// Width is that of a terminal which help fits.
const Width = 118

// Wrapped breaks what the help of root, and of the commands below it, says of flags into lines of
// Width, and at no other places.
func Wrapped(root *cobra.Command) {
	wrapped := fmt.Sprintf(".FlagUsagesWrapped %d ", Width)
	root.SetUsageTemplate(strings.ReplaceAll(root.UsageTemplate(), ".FlagUsages ", wrapped))
	joinLines(root)
}

func joinLines(cmd *cobra.Command) {
	cmd.LocalFlags().VisitAll(func(f *pflag.Flag) { f.Usage = strings.ReplaceAll(f.Usage, "\n", " ") })
	for _, sub := range cmd.Commands() {
		joinLines(sub)
	}
}

// NoOperands refuses operands, and says, where that is not "", what is meant instead.
func NoOperands(instead string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return nil
		}
		what := strings.TrimSuffix(cmd.Name()+" takes no operands, "+instead, ", ")
		return fmt.Errorf("%s: see '%s --help'", what, cmd.CommandPath())
	}
}
