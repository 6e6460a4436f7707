package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/farkv/farkv/reports"
	"github.com/farkv/farkv/reports/eval"
	"github.com/farkv/farkv/reports/plot"
	"github.com/farkv/farkv/workloads/runner"
)

func (c *cli) plot() *cobra.Command {
	var out string
	cmd := &cobra.Command{
		Use:   "plot RESULT...",
		Short: "Draw saved results as a page, as SVG or as CSV",
		Long: longText(`
Plot draws recordings (.fkr), files of 'go-ycsb ... --results' and answers of 'farkv report ... -o json':
throughput over time with what happened, distributions and percentiles of latencies, bars by store, and a paper's
numbers beside ours. Several files of one kind are compared. The form is that of the name behind -o: .html is a page
of charts and tables that needs no network, .svg the charts alone, .csv their numbers. Charts follow the browser's
light or dark scheme; point at a line or a bar for its values.`),
		Example: "  farkv plot fusee.json swarm.json rcuckoo.json -o stores.html\n" +
			"  farkv plot run.fkr -o run.svg\n" +
			"  farkv report fusee --quick -o json > paper.json && farkv plot paper.json -o paper.html",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return fmt.Errorf("plot takes files of results: see '%s --help'", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(_ *cobra.Command, args []string) error {
			switch {
			case out == "":
				return errors.New("-o is missing: name a file that ends with .html, .svg or .csv")
			case !plot.Writable(out):
				return fmt.Errorf("--output %s: want the name of a file that ends with .html, .svg or .csv", out)
			}
			page, err := reports.Draw(args)
			if err == nil {
				err = save(out, page)
			}
			return told(err)
		},
	}
	cmd.Flags().StringVarP(&out, "output", "o", "", "the file to write: its name ends with .html, .svg or .csv")
	return cmd
}

// save writes a page to a file, whole or not at all.
func save(name string, page *plot.Page) error {
	var text bytes.Buffer
	if err := plot.Write(&text, name, page); err != nil {
		return err
	}
	return runner.Save(name, text.Bytes())
}

// plots makes a folder for the plots of a report before its simulations, which take long.
func plots(dir, paper string) error {
	if dir == "" {
		return nil
	}
	if err := os.MkdirAll(dir, 0o777); err != nil {
		return failure{err}
	}
	if err := runner.Savable(filepath.Join(dir, paper+".html")); err != nil {
		return failure{err}
	}
	return nil
}

// savePlots writes a page of all of a report, and each part as SVG.
func savePlots(dir, paper string, r *eval.Report) error {
	if dir == "" {
		return nil
	}
	err := save(filepath.Join(dir, paper+".html"), r.Page())
	for _, p := range r.Parts {
		err = errors.Join(err, save(filepath.Join(dir, paper+"-"+p.Name+".svg"), &plot.Page{Charts: p.Charts()}))
	}
	return err
}
