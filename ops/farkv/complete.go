package main

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/ops/chaos"
	"github.com/farkv/farkv/ops/command"
	"github.com/farkv/farkv/ops/doctor"
	"github.com/farkv/farkv/ops/format"
	"github.com/farkv/farkv/ops/measure"
	"github.com/farkv/farkv/ops/verbs"
	"github.com/farkv/farkv/reports"
	"github.com/farkv/farkv/workloads/check/explore"
	"github.com/farkv/farkv/workloads/runner"
	"github.com/farkv/farkv/workloads/simulate"
)

// completions tells the shell what operands and the values of flags may be.
func completions(root *cobra.Command) {
	at := func(path ...string) *cobra.Command {
		cmd, rest, err := root.Find(path)
		if err != nil || len(rest) > 0 {
			panic("no command " + strings.Join(path, " "))
		}
		return cmd
	}
	for _, name := range []string{"down", "status", "monitor", "check", "recover", "keep", "get", "put", "del",
		"perf"} {
		command.Operands(at(name), command.Pools)
	}
	parts := func() []string { return append(command.Pools(), "node", "client", "master") }
	command.Operands(at("crash"), parts, command.Fixed("node", "client", "master"))
	operations := func() []string { return append(command.Pools(), verbs.Operations...) }
	command.Operands(at("trace"), operations, command.Fixed(verbs.Operations...))
	command.Operands(at("sim", "run"), storeWords)
	command.Operands(at("sim", "fuzz"), storeWords)

	command.FlagOf(root, "output", outputsOf)
	command.Flag(at("up"), "store", storeWords)
	command.Flag(at("monitor"), "store", storeWords)
	command.Flag(at("up"), "fabric", command.Fixed(fabrics.NamedFabrics()...))
	command.Flag(at("node"), "fabric", command.Fixed(fabrics.NodeFabrics()...))
	command.Flag(at("crash"), "at", everyStep)
	command.FlagOrFile(at("crash"), "plan", command.Fixed("-"))
	command.FlagList(at("crash"), "kinds", command.Fixed(format.Words(chaos.BreakKinds)...))
	command.FlagList(at("bench"), "stores", func() []string {
		return append([]string{measure.AllStores}, stores.Names()...)
	})
	command.FlagList(at("bench"), "peers", command.Fixed("redis"))
	command.FlagOrFile(at("bench"), "workload", command.Workloads)
	command.FlagOrFile(at("sim", "run"), "workload", command.Workloads)
	command.Flag(at("sim", "run"), "profile", profileWords)
	command.FlagPair(at("sim", "run"), "property", command.Properties(runner.Properties), nil)
	command.FlagList(at("sim", "fuzz"), "only",
		command.Fixed(explore.Kinds()...))
	command.Flag(at("perf"), "profile", profileWords)
	command.FlagList(at("perf"), "fabrics", command.Fixed(measure.PerfFabrics...))
	command.FlagList(at("doctor"), "require", doctor.Topics)
	for _, p := range reports.Papers {
		cmd := at("report", strings.ToLower(p.Name))
		command.FlagList(cmd, "only", func() (names []string) {
			for _, part := range p.Parts {
				names = append(names, part[0])
			}
			return names
		})
	}
	files(at("plot"), "html", "svg", "csv")
	files(at("merge"), "json")
	command.NoFiles(root)
}

// files completes operands with the names of results, and -o with those of files of some kinds.
func files(cmd *cobra.Command, kinds ...string) {
	cmd.ValidArgsFunction = cobra.FixedCompletions([]string{"fkr", "json"}, cobra.ShellCompDirectiveFilterFileExt)
	_ = cmd.MarkFlagFilename("output", kinds...) // the flag exists
}

func storeWords() (words []string) {
	for _, k := range stores.Kinds() {
		words = append(words, cobra.CompletionWithDesc(k.Name, k.Doc))
	}
	return words
}

func profileWords() (words []string) {
	for _, p := range simulate.Profiles() {
		words = append(words, cobra.CompletionWithDesc(p.Name, p.Doc))
	}
	return words
}

func everyStep() (words []string) {
	for _, k := range stores.Kinds() {
		words = append(words, format.Words(k.Steps)...)
	}
	slices.Sort(words)
	return slices.Compact(words)
}
