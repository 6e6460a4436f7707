package main

import (
	"cmp"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/farkv/farkv/ops"
	"github.com/farkv/farkv/ops/format"
)

func (c *cli) soak() *cobra.Command {
	var s ops.Soak
	cmd := &cobra.Command{
		Use:   "soak STORE|POOL",
		Short: "Put ordinary load on a pool in real time, and judge the store",
		Long: longText(`
Soak fills a pool and empties it, has workers use it in ways of their own for a while, and fills and empties it again.
Some workers insert and delete keys, always others; some write a few hot keys; some fill the pool and clear it; some
come, work and go. Values have all sizes that the pool has room for. It compares each answer with what the worker
knows, and fails when

  an operation fails, gives a wrong answer (raw's hot keys have some), or takes longer than 10 s
  the pool is full while less than half of the bytes are live that it took of one worker (sherman: 30 %;
  a quarter, if one bucket of swarm's directory is full, which has room for other keys)
  it takes less than 90 % of those pairs after the load, or farkv check finds damage

STORE makes a small pool of this process's memory. POOL is one in which no client is at work, and which is empty, or
nearly so; write shm:NAME for one with the name of a store. Other pairs stay. A soak that fails or is killed leaves
keys, which make the next one fail: make the pool anew. "pool full" counts operations that found no room, and may.`),
		Example: "  farkv soak race-rtx\n" +
			"  farkv soak fusee --for 10m --workers 16 --seed 7\n" +
			"  farkv up --fabric tcp mine --store sherman-rtx --records 2000 && farkv soak mine --for 1m\n" +
			"  farkv crash mine node 1 --stop 500ms --force        # meanwhile: no operation may fail",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 1 {
				return fmt.Errorf("soak takes a store or a pool, not %s: see 'farkv soak --help'",
					format.Plural(len(args), "operand", "operands"))
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := cmp.Or(bounded(cmd, 1, maxThreads, "workers"), bounded(cmd, 0, unbounded, "keys")); err != nil {
				return err
			}
			s.Of, s.Say = args[0], c.progress(cmd)
			r, err := s.Run(cmd.Context())
			return answer(c, cmd, r, err)
		},
	}
	f := cmd.Flags()
	f.DurationVar(&s.Length, "for", 10*time.Second,
		"real time of the load; what comes before and after it takes some, too")
	f.StringVar(&s.Store, "store", "",
		"the store that uses the pool, such as fusee-nc or swarm-apart (default the pool's)")
	f.IntVar(&s.Workers, "workers", 64, "workers at a time")
	f.IntVar(&s.Keys, "keys", 0, "keys that each worker uses again and again (default always others; sherman: 200)")
	f.Uint64Var(&s.Seed, "seed", 1, "seed of keys and sizes")
	return cmd
}
