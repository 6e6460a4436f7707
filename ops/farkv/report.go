package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/farkv/farkv/ops/command"
	"github.com/farkv/farkv/ops/table"
	"github.com/farkv/farkv/reports"
	"github.com/farkv/farkv/reports/eval"
)

func (c *cli) report() *cobra.Command {
	cmd := group("paper", &cobra.Command{
		Use:   "report",
		Short: "Do a paper's evaluation again, in virtual time",
		Example: "  farkv report fusee --quick\n" +
			"  farkv report fusee --only pairs,crash -o markdown",
	})
	for _, p := range reports.Papers {
		cmd.AddCommand(c.reportOn(p))
	}
	return cmd
}

// group is a command that has others below it, and does nothing but explain them.
func group(of string, cmd *cobra.Command) *cobra.Command {
	cmd.Args = func(cmd *cobra.Command, args []string) error {
		if len(args) > 0 {
			return fmt.Errorf("unknown %s %q: %ssee '%s --help'", of, args[0], command.Unknown(cmd, args[0]),
				cmd.CommandPath())
		}
		return nil
	}
	cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
	return cmd
}

func (c *cli) reportOn(paper *eval.Paper) *cobra.Command {
	var o eval.Options
	var dir string
	var names []string
	var rows [][]string
	for _, p := range paper.Parts {
		names, rows = append(names, p[0]), append(rows, []string{"  " + p[0], p[1]})
	}
	var help strings.Builder
	table.Print(&help, rows, 1)
	use := strings.ToLower(paper.Name)
	some := strings.Join(names[len(names)-2:], ",")
	cmd := &cobra.Command{
		Use:   use,
		Short: fmt.Sprintf("%s's evaluation (%s, %s)", paper.Name, paper.Source, paper.Section),
		Long: fmt.Sprintf("%s simulates the runs of %s's evaluation and prints tables beside what the paper says, "+
			"with its numbers\n"+
			"where the words have some. A number HOLDS when it is the paper's to the last digit in print, any other "+
			"statement by the\n"+
			"criterion beside it. Of what DIFFERS an experiment shows the reason, or it is not known. What a "+
			"parameter was chosen\n"+
			"to match is FITTED and counts for nothing; for what is TOO SMALL --quick does not suffice. The same "+
			"command gives the\n"+
			"same output, to the byte. The full size takes some minutes. The parts are\n\n%s",
			strings.ToUpper(use[:1])+use[1:], paper.Name,
			strings.TrimRight(help.String(), "\n")),
		Example: fmt.Sprintf("  farkv report %s --quick\n  farkv report %[1]s --only %s\n"+
			"  farkv report %[1]s -o markdown > %[1]s.md", use, some),
		Annotations: map[string]string{outputs: "text json markdown"},
		Args:        command.NoOperands(""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("only") &&
				len(slices.DeleteFunc(o.Only, func(s string) bool { return s == "" })) == 0 {
				return errors.New("--only is empty: want some of " + strings.Join(names, ", "))
			}
			if err := plots(dir, use); err != nil {
				return err
			}
			o.Say = c.progress(cmd)
			r, err := paper.Report(cmd.Context(), o)
			if r != nil {
				err = savePlots(dir, use, r)
				r.Markdown = c.output == "markdown"
			}
			return answer(c, cmd, r, err)
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&o.Only, "only", nil, "parts: "+strings.Join(names, ", "))
	f.BoolVar(&o.Quick, "quick", false, "a size that ends in a minute")
	f.StringVar(&dir, "plot", "",
		"a folder for plots: a page of all, and each part as SVG, with what the paper prints beside ours")
	f.Uint64Var(&o.Seed, "seed", 1, "seed of everything that is drawn")
	return cmd
}
