package main

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/ops/command"
	"github.com/farkv/farkv/ops/virtual"
	"github.com/farkv/farkv/workloads/check/explore"
)

func (c *cli) simFuzz() *cobra.Command {
	z := virtual.Fuzz{}
	faults, only := explore.Widest.Faults, []string(nil)
	cmd := &cobra.Command{
		Use:   "fuzz STORE",
		Short: "Look for what breaks a store: random pools, networks, workloads and faults",
		Long: longText(`
Fuzz draws a plan from each seed: a pool of 1 to 7 replicas, a network that tears, reorders and delays, what a
few workers do to a few keys, and what goes wrong: clients, memory nodes and the recovering process crash, stall,
are slow or cut off. Servers beside nodes die with them. Where a store outlives it (rowan), nodes also lose power,
one or all at once, or are started anew, and come back after a while with what was durable. It runs the plans in
virtual time, on all cores, and judges each run: the answers are linearizable, live clients get theirs in time,
recovery comes to its end, and the structure is sound and leaks nothing.

The lowest seed that fails is shrunk and replayed: every verb with its time, client, address and step. The plan is
one line, which --plan replays; as a line of testdata/plans.txt it becomes a test. Progress goes to standard error.
An interrupt ends it with what was done. Exit status 1: a run went wrong, or could not be judged in --search-time.`),
		Example: "  farkv sim fuzz fusee --runs 20000\n" +
			"  farkv sim fuzz fusee --seed 1000 --runs 1000 --workers 2 --keys 1 --replicas 3\n" +
			"  farkv sim fuzz fusee --plan 'work=i0:8,u0:8/g0 faults=crash client=worker-0 verb=9' --trace\n" +
			"  farkv sim fuzz rowan --runs 1000 --only power,restart",
		Args: oneStore(&z.Store),
		RunE: func(cmd *cobra.Command, _ []string) error {
			err := fuzzNumbers(cmd, &z, faults)
			if err == nil {
				z.Limits.Kinds, err = explore.ParseKinds(only)
			}
			if err != nil {
				return err
			}
			z.Say = c.progress(cmd)
			r, err := z.Run(cmd.Context())
			return answer(c, cmd, r, err)
		},
	}
	f := cmd.Flags()
	f.Uint64Var(&z.Runs, "runs", 1000, "seeds to try, some of which have a second run")
	f.Uint64Var(&z.Seed, "seed", 1, "the first seed")
	f.IntVar(&z.Limits.Workers, "workers", explore.Widest.Workers, "workers, at most")
	f.IntVar(&z.Limits.Keys, "keys", explore.Widest.Keys, "keys, at most")
	f.IntVar(&z.Limits.Ops, "ops", explore.Widest.Ops, "operations of a worker, at most")
	f.IntVar(&z.Limits.Value, "value-bytes", 0, "bytes of a value, at most (default 300, in few pools 32 KiB "+
		"or as many as the store takes)")
	f.IntVar(&z.Limits.Replicas, "replicas", 0, "copies of index and data, exactly (default 1 to 5, in few pools 7)")
	f.IntVar(&faults, "faults", explore.Widest.Faults, "faults of a run, at most; 0 for none")
	f.StringSliceVar(&only, "only", nil, "kinds of faults: "+strings.Join(explore.Kinds(), ", ")+" (default all)")
	f.DurationVar(&z.Search, "search-time", explore.DefaultSearch,
		"real time for a search for an order of a run's answers; a run that takes longer is not judged")
	f.StringVar(&z.Plan, "plan", "", "run this plan alone")
	z.Own = command.Options(f, stores.ExploredText(), stores.Made, stores.Opened)
	f.BoolVar(&z.Trace, "trace", false, "replay --plan, or the first seed, even when nothing is wrong")
	return cmd
}

// fuzzNumbers checks what is wrong with numbers whatever the store.
func fuzzNumbers(cmd *cobra.Command, z *virtual.Fuzz, faults int) error {
	if err := cmp.Or(bounded(cmd, 1, 16, "workers"), bounded(cmd, 1, 64, "keys"), bounded(cmd, 1, 500, "ops"),
		bounded(cmd, 1, 300, "value-bytes"), bounded(cmd, 1, 5, "replicas"), bounded(cmd, 1, unbounded, "runs"),
		bounded(cmd, 0, 16, "faults")); err != nil {
		return err
	}
	if z.Search <= 0 {
		return fmt.Errorf("--search-time %v: want a time above 0, such as 2s", z.Search)
	}
	if z.Limits.Faults = faults; faults == 0 {
		z.Limits.Faults = -1 // none, where 0 means any
	}
	if cmd.Flags().Changed("plan") {
		for _, flag := range []string{"runs", "seed", "workers", "keys", "ops", "value-bytes", "replicas", "faults",
			"only"} {
			if cmd.Flags().Changed(flag) {
				return fmt.Errorf("--plan says everything: leave out --%s", flag)
			}
		}
	}
	return nil
}
