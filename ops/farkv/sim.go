package main

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/ops/command"
	"github.com/farkv/farkv/ops/virtual"
)

func (c *cli) sim() *cobra.Command {
	cmd := group("command", &cobra.Command{
		Use:   "sim",
		Short: "Run stores in virtual time, on the papers' clusters",
		Example: "  farkv sim run fusee --profile fusee-testbed --nodes 2 --clients 128 --workload ycsb-c\n" +
			"  farkv sim fuzz fusee --runs 10000",
	})
	cmd.AddCommand(c.simRun(), c.simProfiles(), c.simFuzz())
	return cmd
}

// oneStore wants the name of a store, and nothing else.
func oneStore(name *string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 {
			return fmt.Errorf("%s takes one STORE (there are: %s): see '%s --help'", cmd.Name(),
				strings.Join(stores.Names(), ", "), cmd.CommandPath())
		}
		*name = args[0]
		return nil
	}
}

func (c *cli) simRun() *cobra.Command {
	var s virtual.Simulation
	replicas := 0
	cmd := &cobra.Command{
		Use:   "run STORE",
		Short: "Measure a store on a simulated cluster",
		Long: longText(`
Run measures a store in virtual time: the code is that of real pools, the machines are a profile's. The same
command gives the same output, to the byte, on any machine. How long it really took goes to standard error.

Before what is measured, in no time, the records are loaded and the clients do --warmup operations of the mix.
Times such as 5s are virtual, and count from where measuring begins. ycsb-a to ycsb-f, or a to f, are YCSB's
mixes with YCSB's distributions, over 100,000 pairs of 1,024 bytes of one field each, as in the papers; other
workloads are property files, or those that 'go-ycsb help workloads' lists, and say themselves how many records
there are.

  trips, verbs      a call's, on average; verbs with two-sided calls
  read, written     bytes of payload of a call, on average
  busy              the share of the time in which a part of a machine was in use

-o json has the distributions of the latencies, and every compute node.`),
		Example: "  farkv sim run fusee --profile fusee-testbed --nodes 2 --clients 128 --workload ycsb-c\n" +
			"  farkv sim run fusee-cr --workload ycsb-a --nodes 5 --replicas 5 -o json\n" +
			"  farkv sim run fusee --duration 90ms --interval 10ms --crash 'node 1@50ms'\n" +
			"  farkv sim run fusee --clients 16 --duration 90ms --interval 10ms --join 16@30ms --leave 16@60ms",
		Args: oneStore(&s.Store),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := simNumbers(cmd, &s, replicas); err != nil {
				return err
			}
			simServed(cmd, &s)
			began := time.Now()
			r, err := s.Run(cmd.Context())
			if err == nil && !c.quiet {
				fmt.Fprintf(cmd.ErrOrStderr(), "simulated %.4g s in %.1f s\n", r.Seconds, time.Since(began).Seconds())
			}
			return answer(c, cmd, r, err)
		},
	}
	f := cmd.Flags()
	f.StringVar(&s.Profile, "profile", "fusee-testbed",
		"hardware: one that 'farkv sim profiles' lists; for stores with servers\n"+virtual.ServedProfile)
	f.StringArrayVar(&s.Hardware, "hardware", nil,
		"a figure of the profile that is changed, such as AtomicWordMops=100 or Doorbell=100ns; can be repeated")
	f.IntVar(&s.Pool.Nodes, "nodes", 2,
		fmt.Sprintf("memory nodes; %d for stores with servers on %s", virtual.ServedNodes, virtual.ServedProfile))
	f.IntVar(&s.Clients, "clients", 128, "clients")
	f.StringVar(&s.Name, "workload", "ycsb-c",
		"ycsb-a to ycsb-f (or a, workloada), one of ours such as fusee-a, or a property file")
	f.StringArrayVarP(&s.Properties, "property", "p", nil,
		"name=value: a property that counts more than the workload's")
	f.Int64Var(&s.Records, "records", 0, "records (default the workload's)")
	f.Var((*bytesFlag)(&s.Pool.Memory), "memory",
		"bytes of each memory node, such as 1GiB (default from records and clients)")
	f.Var((*pairFlag)(&s.PairBytes), "pair-bytes",
		"bytes of a key and its value, of one field (default the workload's)")
	f.Int64Var(&s.Ops, "ops", 0, "operations to measure, over all clients (default the workload's, else 1,000,000, "+
		"or 100,000 for\nstores with servers)")
	f.DurationVar(&s.Duration, "duration", 0, "virtual time to measure, such as 90ms, instead of --ops or at most")
	f.Int64Var(&s.WarmUp, "warmup", 0, "operations before those that are measured (default as many as --ops)")
	f.Uint64Var(&s.Seed, "seed", 1, "seed of everything that is drawn")
	f.IntVar(&replicas, "replicas", 0, "copies of index and data (default "+stores.DefaultReplicas()+")")
	f.IntVar(&s.Pool.IndexReplicas, "index-replicas", 0, "copies of the index alone (default --replicas)")
	f.IntVar(&s.Pool.DataReplicas, "data-replicas", 0, "copies of the data alone (default --replicas)")
	f.IntVar(&s.InFlight, "in-flight", 1, "operations of a client at a time, on one core; each has a cache of its own")
	s.Own = command.Options(f, map[string]string{stores.CacheBytes: "room for all records"}, stores.Made, stores.Opened)
	f.BoolVar(&s.NoDevice, "no-device", false,
		"keep in the nodes' memory what stores have in that of their NICs, such as locks")
	f.BoolVar(&s.Processes, "processes", false,
		"the clients of a compute node are one process: those of sherman hand locks over")
	f.BoolVar(&s.Known, "known", false, "clients have read all records once, before the warm-up")
	f.IntVar(&s.NodeCores, "node-cores", 0, "cores of a memory node that serve two-sided calls (default the profile's)")
	f.DurationVar(&s.Interval, "interval", 0, "print the throughput over time, in steps of this")
	f.StringVar(&s.Record, "record", "",
		"`file`, such as run.fkr, for a recording: a sample each --interval (default a hundredth of\n"+
			"--duration, else 1ms) for 'farkv plot' and 'farkv monitor --replay'")
	f.DurationVar(&s.Think, "think", 0, "what a client computes before each operation, beside posting and polling")
	wrongs(f, &s)
	return cmd
}

// wrongs adds the flags for faults, and for clients that join and leave.
func wrongs(f *pflag.FlagSet, s *virtual.Simulation) {
	f.StringArrayVar(&s.Crashes, "crash", nil,
		"what crashes when, such as 'node 1@5s' or 'client 3@200ms'; can be repeated")
	f.StringArrayVar(&s.Outages, "power", nil,
		"what loses power when, and for how long, of stores that outlive it, such as 'node 1@5s for 1ms' or\n"+
			"'all@5s for 1ms'; can be repeated")
	f.DurationVar(&s.Lease, "lease", 0,
		"lease of the pool's master, which there is when something goes wrong (default 100ms)")
	f.IntVar(&s.Pool.Spares, "spares", 0,
		"how many of the memory nodes hold nothing until one takes a dead node's place")
	f.Float64Var(&s.Failures, "failures", 0,
		"clients a second that die in the midst of an INSERT, beside --clients; needs --duration")
	f.StringArrayVar(&s.OtherFaults, "faults", nil,
		"what else goes wrong, such as 'slow node=0 factor=4 at=1s for=2s'; can be repeated")
	f.StringArrayVar(&s.Joins, "join", nil, "clients that join at a time, such as 16@3s; can be repeated")
	f.StringArrayVar(&s.Leaves, "leave", nil, "clients that leave at a time, those that came last; can be repeated")
}

// simServed fills in where a store with servers is simulated unless something else is said.
func simServed(cmd *cobra.Command, s *virtual.Simulation) {
	k, err := stores.Lookup(s.Store)
	if err != nil || k.Serve == nil {
		return // Run says which stores there are
	}
	if !cmd.Flags().Changed("profile") {
		s.Profile = virtual.ServedProfile
	}
	if s.Profile == virtual.ServedProfile && !cmd.Flags().Changed("nodes") {
		s.Pool.Nodes = virtual.ServedNodes
	}
}

// simNumbers checks what is wrong with numbers whatever the store, and fills in what others give.
func simNumbers(cmd *cobra.Command, s *virtual.Simulation, replicas int) error {
	if err := bounded(cmd, 1, unbounded, "nodes", "clients", "records", "pair-bytes", "ops", "replicas",
		"index-replicas", "data-replicas", "node-cores", "in-flight"); err != nil {
		return err
	}
	for _, d := range []struct {
		flag  string
		value time.Duration
	}{{"duration", s.Duration}, {"interval", s.Interval}, {"lease", s.Lease}, {"think", s.Think}} {
		if d.value < 0 || d.value == 0 && cmd.Flags().Changed(d.flag) {
			return fmt.Errorf("--%s %v: want a time above 0, such as 90ms", d.flag, d.value)
		}
	}
	if err := bounded(cmd, 0, unbounded, "spares", "warmup"); err != nil {
		return err
	}
	if len(s.Joins)+len(s.Leaves)+len(s.Crashes)+len(s.Outages) > 0 && s.Ops == 0 && s.Duration == 0 {
		return errors.New("--join, --leave, --crash and --power need --duration, or --ops: how long is the run?")
	}
	if !cmd.Flags().Changed("warmup") {
		s.WarmUp = -1 // as many as there are operations
	}
	s.Pool.IndexReplicas, s.Pool.DataReplicas = cmp.Or(s.Pool.IndexReplicas, replicas),
		cmp.Or(s.Pool.DataReplicas, replicas)
	return nil
}

func (c *cli) simProfiles() *cobra.Command {
	return &cobra.Command{
		Use:     "profiles",
		Short:   "List the clusters that can be simulated",
		Example: "  farkv sim profiles\n  farkv sim profiles -o json",
		Args:    command.NoOperands(""),
		RunE:    func(cmd *cobra.Command, _ []string) error { return answer(c, cmd, virtual.Profiles(), nil) },
	}
}
