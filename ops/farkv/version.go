package main

import (
	"github.com/spf13/cobra"

	"github.com/farkv/farkv/ops"
	"github.com/farkv/farkv/ops/command"
)

func (c *cli) version() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Show the commit, and the versions of formats and protocols",
		Long: longText(`
Version shows what this program was built from, and the versions of what it speaks and reads. It talks to
memory nodes of the same wire and control versions, and opens pools whose store's format has the version that
is shown.
'farkv --version' is the same.`),
		Example: "  farkv version\n  farkv version -o json",
		Args:    command.NoOperands("it is about this program"),
		RunE:    c.showVersion,
	}
}

func (c *cli) showVersion(cmd *cobra.Command, _ []string) error {
	return answer(c, cmd, ops.ThisBuild("farkv"), nil)
}
