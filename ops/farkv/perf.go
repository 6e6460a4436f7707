package main

import (
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/farkv/farkv/ops"
	"github.com/farkv/farkv/ops/measure"
)

func (c *cli) perf() *cobra.Command {
	var p measure.Perf
	memory, sizes := bytesFlag(4<<20), []string{"8", "64", "256", "1KiB", "4KiB", "16KiB", "64KiB"}
	cmd := &cobra.Command{
		Use:   "perf [POOL]",
		Short: "Measure each verb's latency and rate",
		Long: longText(`
Perf measures READ, WRITE, SEND, APPEND, CAS, masked CAS, FAA, two-sided calls, and requests over messages: one at a
time, and many in flight in one batch. 'FAA, WRITE' is what APPEND is compared with: a FETCH AND ADD of a word, and then
a WRITE to the place that it took, with a READ behind it.
POOL is where:

  tcp:HOST:PORT,...    memory nodes that run, here or elsewhere, and serve no pool: 'farkv node' starts one
  rdma:HOST:PORT,...   the same with RDMA devices: 'farkv node --fabric rdma'
  mem:, shm:NAME       memory of this machine
  sim:PROFILE          a model of a cluster: 'farkv sim profiles' lists them

Without it perf measures the fabrics that this machine has, side by side; for tcp and rdma it starts a memory node, and
ends it.

It writes over memory. So it makes a pool of its own, which no other program can open, and which is gone when it ends,
whatever ends it; where there is a pool already it refuses.

A latency is what one worker waits, from one verb's end to the next one's. Rates are of batches of so many, each
posted at once and waited for; 1 MB is 10^6 bytes. READs and WRITEs go to random places of --memory, atomics to 512
words in turn, several nodes take turns, too. Every atomic's answer is checked. SENDs go to the worker's own mailbox,
by way of a node, and are over once they were taken from there; rates are of 512 KiB in flight at the most. So do
requests, of 48 bytes as a call's, and their answers. APPENDs go to rings of the worker's own. With an RDMA device
there are also the calls into libibverbs, and the packets that this machine's port sent and received; those of a memory
node at the same port count, too.`),
		Example: "  farkv perf\n" +
			"  farkv perf mem: --sizes 64,4KiB --batches 1,16\n" +
			"  farkv perf tcp:10.0.0.5:7070 -o json\n" +
			"  farkv perf rdma:10.0.0.5:7070 --sizes 8,64KiB --batches 1,16,64\n" +
			"  farkv perf sim:fusee-testbed",
		Args: operands(""),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			if len(args) > 0 {
				if cmd.Flags().Changed("fabrics") {
					return fmt.Errorf("--fabrics is for this machine's own memory, and %s is named", args[0])
				}
				if p.Pool, err = ops.Resolve(args[0]); err != nil {
					return failure{err}
				}
			}
			p.Memory = uint64(memory)
			if p.Sizes, err = sizesOf(sizes); err != nil {
				return err
			}
			return c.runPerf(cmd, &p)
		},
	}
	f := cmd.Flags()
	f.StringSliceVar(&p.Fabrics, "fabrics", measure.PerfFabrics,
		"without POOL: of "+strings.Join(measure.PerfFabrics, ", "))
	f.StringSliceVar(&sizes, "sizes", sizes,
		"of READs and WRITEs, and SENDs and APPENDs up to 64KiB, in bytes, such as 64 or 4KiB")
	f.IntSliceVar(&p.Batches, "batches", []int{1, 4, 16}, "how many are in flight where rates are measured")
	f.DurationVar(&p.Time, "time", 100*time.Millisecond, "for each number that is measured, at the most")
	f.IntVar(&p.Ops, "ops", 100_000, "verbs for each number, at the most")
	f.Var(&memory, "memory", "bytes of a node that verbs go over")
	f.StringVar(&p.Profile, "profile", "fusee-testbed",
		"hardware that sim stands for: one that 'farkv sim profiles' lists")
	f.Uint64Var(&p.Seed, "seed", 1, "seed of virtual time")
	return cmd
}

// sizesOf reads numbers of bytes.
func sizesOf(texts []string) (sizes []int, err error) {
	for _, text := range texts {
		var n bytesFlag
		if err := n.Set(text); err != nil || n > measure.MaxPerfSize {
			return nil, fmt.Errorf("--sizes %s: want numbers of bytes up to 1MiB, such as 64,4KiB", text)
		}
		sizes = append(sizes, int(n))
	}
	return sizes, nil
}

func (c *cli) runPerf(cmd *cobra.Command, p *measure.Perf) (err error) {
	if p.Program, err = os.Executable(); err != nil {
		return failure{err}
	}
	p.Say = c.progress(cmd)
	r, err := p.Run(cmd.Context())
	if err != nil && r != nil && len(r.Fabrics) == 0 {
		r = nil // nothing to show
	}
	return answer(c, cmd, r, err)
}
