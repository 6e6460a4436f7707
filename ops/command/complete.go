package command

import (
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/farkv/farkv/node/cluster/local"
	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/workloads/runner"
	"github.com/farkv/farkv/workloads/ycsb"
)

// Words complete operands or a flag's value. A word may have a description behind a tab.
type Words func() []string

// Pools lists the names of this machine's pools. A folder that cannot be read has none: a
// completion cannot fail.
func Pools() (names []string) {
	shared, _ := fabrics.List()
	for _, pool := range shared {
		names = append(names, strings.TrimPrefix(fabrics.AsListed(pool), "shm:"))
	}
	started, _ := local.List()
	for _, name := range started {
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return names
}

// Workloads lists the names of the workloads that come with the programs.
func Workloads() (names []string) {
	for _, name := range ycsb.Names() {
		names = append(names, cobra.CompletionWithDesc(name, ycsb.Title(name)))
		if letter, ok := strings.CutPrefix(name, "workload"); ok {
			names = append(names, cobra.CompletionWithDesc("ycsb-"+letter, ycsb.Title(name)))
		}
	}
	return names
}

// Properties are the names of properties, with what they are for.
func Properties(lists ...[]runner.Property) Words {
	return func() (words []string) {
		for _, q := range slices.Concat(lists...) {
			words = append(words, cobra.CompletionWithDesc(q.Name, q.Doc))
		}
		return words
	}
}

// Fixed are words that do not change.
func Fixed(words ...string) Words { return func() []string { return words } }

// Operands completes the operands of cmd, the first by the first of all, and so on. Those beyond
// have none.
func Operands(cmd *cobra.Command, all ...Words) {
	cmd.ValidArgsFunction = func(_ *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
		if len(args) >= len(all) {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return all[len(args)](), cobra.ShellCompDirectiveNoFileComp
	}
}

// Flag completes the value of a flag of cmd. It panics when there is no such flag.
func Flag(cmd *cobra.Command, flag string, words Words) {
	FlagOf(cmd, flag, func(*cobra.Command) []string { return words() })
}

// FlagOf is Flag for a flag with words that depend on the command that has the flag.
func FlagOf(cmd *cobra.Command, flag string, words func(*cobra.Command) []string) {
	register(cmd, flag, func(given *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
		return words(given), cobra.ShellCompDirectiveNoFileComp
	})
}

// FlagOrFile completes the value of a flag that is a word or the path of a file.
func FlagOrFile(cmd *cobra.Command, flag string, words Words) {
	register(cmd, flag, func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
		return words(), cobra.ShellCompDirectiveDefault
	})
}

// FlagList completes the value of a flag that is a list of words, with commas between: the last of
// them.
func FlagList(cmd *cobra.Command, flag string, words Words) {
	register(cmd, flag, func(_ *cobra.Command, _ []string, typed string) (all []string, _ cobra.ShellCompDirective) {
		before := typed[:strings.LastIndex(typed, ",")+1]
		for _, word := range words() {
			all = append(all, before+word)
		}
		return all, cobra.ShellCompDirectiveNoFileComp
	})
}

// FlagPair completes the value of a flag that is name=value: the name, and behind it what values
// lists for that name.
func FlagPair(cmd *cobra.Command, flag string, names Words, values map[string]Words) {
	register(cmd, flag, func(_ *cobra.Command, _ []string, typed string) (all []string, _ cobra.ShellCompDirective) {
		name, _, valued := strings.Cut(typed, "=")
		if !valued {
			for _, known := range names() {
				word, doc, _ := strings.Cut(known, "\t")
				all = append(all, cobra.CompletionWithDesc(word+"=", doc))
			}
			return all, cobra.ShellCompDirectiveNoFileComp | cobra.ShellCompDirectiveNoSpace
		}
		if words := values[name]; words != nil {
			for _, word := range words() {
				all = append(all, name+"="+word)
			}
		}
		return all, cobra.ShellCompDirectiveNoFileComp
	})
}

// Topics completes the operands of a help command with the names of the commands and topics below
// root.
func Topics(root *cobra.Command) cobra.CompletionFunc {
	return func(_ *cobra.Command, args []string, _ string) (words []string, _ cobra.ShellCompDirective) {
		above, rest, err := root.Find(args)
		if err != nil || len(rest) > 0 {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		for _, sub := range above.Commands() {
			if !sub.Hidden {
				words = append(words, cobra.CompletionWithDesc(sub.Name(), sub.Short))
			}
		}
		return words, cobra.ShellCompDirectiveNoFileComp
	}
}

func register(cmd *cobra.Command, flag string, f cobra.CompletionFunc) {
	if err := cmd.RegisterFlagCompletionFunc(flag, f); err != nil {
		panic(err) // the flag is named in the same place as its command
	}
}

// NoFiles keeps the names of files from completing the values of all flags, of root and the
// commands below it, that are not texts, and operands that nothing else completes.
func NoFiles(root *cobra.Command) {
	nothing := cobra.FixedCompletions(nil, cobra.ShellCompDirectiveNoFileComp)
	root.LocalFlags().VisitAll(func(f *pflag.Flag) {
		text := strings.HasPrefix(f.Value.Type(), "string") || f.Value.Type() == "bool"
		if _, known := root.GetFlagCompletionFunc(f.Name); !known && !text {
			register(root, f.Name, nothing)
		}
	})
	if root.ValidArgsFunction == nil && root.ValidArgs == nil && !root.HasSubCommands() {
		root.ValidArgsFunction = nothing
	}
	for _, sub := range root.Commands() {
		NoFiles(sub)
	}
}
