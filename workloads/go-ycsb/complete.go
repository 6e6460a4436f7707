package main

import (
	"github.com/spf13/cobra"

	"github.com/farkv/farkv/ops/command"
	"github.com/farkv/farkv/workloads/drivers"
	"github.com/farkv/farkv/workloads/runner"
)

// completions tells the shell what operands and the values of flags may be.
func completions(root *cobra.Command) {
	for _, cmd := range root.Commands() {
		if cmd.Flags().Lookup("prop") == nil {
			continue // a topic
		}
		command.Operands(cmd, drivers.Names)
		command.FlagOrFile(cmd, "property_file", command.Workloads)
		command.FlagPair(cmd, "prop", propertyWords, map[string]command.Words{
			"farkv.pool": command.Pools, "outputstyle": command.Fixed("plain", "table", "json"),
			"requestdistribution": command.Fixed("uniform", "zipfian", "latest", "hotspot", "exponential",
				"sequential"),
		})
	}
	command.NoFiles(root)
}

func propertyWords() []string { return command.Properties(drivers.Properties, runner.Properties)() }
