package main

import (
	"cmp"
	"errors"

	"github.com/spf13/cobra"

	"github.com/farkv/farkv/ops/command"
	"github.com/farkv/farkv/ops/measure"
)

func (c *cli) bench() *cobra.Command {
	var b measure.Bench
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Compare stores: load and run a YCSB mix on pools of their own",
		Long: longText(`
Bench loads and runs a YCSB mix on an embedded pool for each store, one after the other, checks the pool, and
prints one table. Before the first run it makes sure that each store takes the flags. Progress goes to
standard error.

  replicas      of index and data: each store has its own default, unless --replicas is given
  trips/call    round trips a call, which decide on a network and cost next to nothing on memory of this machine;
                an update of one field of a record reads the record first
  memory/byte   bytes of the pool in use, all replicas, for each byte of keys and values
  Get, Update   time of a whole-record operation by one worker alone, with a warm cache
  floor         time of the batches of verbs alone that the store posts for it, on a copy of its pool, and in half
                of the rounds how many times that the store takes

Peers run where they are installed: redis-server on the PATH gets a process of its own on the loopback.`),
		Example: "  farkv bench\n" +
			"  farkv bench --stores fusee,swarm --workload b --threads 2 --replicas 3\n" +
			"  farkv bench --stores fusee --peers '' --records 1000000 --operations 5000000 -o json",
		Args: command.NoOperands("it makes pools of its own"),
		RunE: func(cmd *cobra.Command, _ []string) error { return c.runBench(cmd, &b) },
	}
	f := cmd.Flags()
	f.StringSliceVar(&b.Stores, "stores", []string{measure.AllStores}, "all, or of\n"+storeNames())
	f.StringSliceVar(&b.Peers, "peers", []string{"redis"}, "other systems, where they are installed; '' for none")
	f.StringVar(&b.Workload, "workload", "a",
		"a to f (or workloada, ycsb-a), one of ours such as fusee-a, or a property file")
	f.Int64Var(&b.Records, "records", 100_000, "records")
	f.Int64Var(&b.Ops, "operations", 500_000, "operations of each run")
	f.IntVar(&b.Threads, "threads", 8, "worker threads")
	f.IntVar(&b.Nodes, "nodes", 3, "memory nodes")
	f.IntVar(&b.Replicas, "replicas", 0, "copies of index and data of every store (default each store's own)")
	f.Uint64Var(&b.Seed, "seed", 1, "seed of the generators")
	f.BoolVar(&b.Shared, "shared", false, "pools in shared memory, as processes share them, instead of private memory")
	return cmd
}

// maxThreads bounds a slip of the keyboard.
const maxThreads = 4096

func (c *cli) runBench(cmd *cobra.Command, b *measure.Bench) error {
	if err := cmp.Or(bounded(cmd, 1, unbounded, "records", "operations"),
		bounded(cmd, 1, maxThreads, "threads")); err != nil {
		return err
	}
	if len(b.Stores) == 0 && len(b.Peers) == 0 {
		return errors.New("nothing to compare: --stores and --peers are empty")
	}
	b.Say = c.progress(cmd)
	t, err := b.Run(cmd.Context())
	if err != nil && t != nil && len(t.Rows) == 0 {
		t = nil // nothing to show
	}
	return answer(c, cmd, t, err)
}
