package main

import (
	"github.com/spf13/cobra"

	"github.com/farkv/farkv/ops"
	"github.com/farkv/farkv/ops/command"
)

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Show the commit, and the versions of formats and protocols",
		Long: "Version shows what this program was built from, and the versions of what it speaks and reads.\n" +
			"'go-ycsb --version' is the same.",
		Example: "  go-ycsb version",
		Args:    command.NoOperands(""),
		RunE:    showVersion,
	}
}

func showVersion(cmd *cobra.Command, _ []string) error {
	ops.ThisBuild("go-ycsb").Print(cmd.OutOrStdout())
	return nil
}
