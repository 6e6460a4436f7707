package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"github.com/farkv/farkv/workloads/runner"
)

func (c *cli) merge() *cobra.Command {
	var out string
	cmd := &cobra.Command{
		Use:   "merge RESULT...",
		Short: "Add results of go-ycsb that ran on several machines at once",
		Long: longText(`
Merge makes one file of those that several processes wrote by 'go-ycsb ... --results' while they worked on one pool
together. It adds counts and buckets of latencies, and takes percentiles of the sum: the mean of percentiles is none.
The run lasts from the first start to the last end, by the machines' clocks.`),
		Example: "  farkv merge n1.json n2.json -o all.json\n" +
			"  farkv plot all.json -o all.html",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return fmt.Errorf("merge takes files of results: see '%s --help'", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if out == "" {
				return errors.New("-o is missing: name the file to write")
			}
			sum, err := merged(args)
			if err == nil {
				err = sum.WriteFile(out)
			}
			if err != nil {
				return told(err)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%d results: %d operations in %.1f s, %.1f a second, %d failed\n",
				len(args), sum.Operations, sum.Seconds, sum.Throughput, sum.Failed)
			return nil
		},
	}
	cmd.Flags().StringVarP(&out, "output", "o", "", "the file to write, of results, such as all.json")
	return cmd
}

// merged reads results and merges them.
func merged(files []string) (*runner.Result, error) {
	var all []*runner.Result
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			return nil, err
		}
		r, err := runner.ReadResult(f)
		f.Close()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, r)
	}
	return runner.Merge(all)
}
