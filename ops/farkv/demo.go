package main

import (
	"fmt"
	"strconv"

	"github.com/spf13/cobra"

	"github.com/farkv/farkv/ops/chaos"
)

// demoClient is how a demo starts the processes that use its pool. It is no command for people.
func (c *cli) demoClient() *cobra.Command {
	return &cobra.Command{
		Use: "demo-client NAME SEED", Hidden: true, Args: cobra.ExactArgs(2),
		RunE: func(cmd *cobra.Command, args []string) error {
			seed, err := strconv.ParseUint(args[1], 10, 64)
			if err != nil {
				return fmt.Errorf("seed %q: want a number", args[1])
			}
			return told(chaos.DemoClient(cmd.Context(), cmd.InOrStdin(), args[0], seed))
		},
	}
}
