package main

import (
	"cmp"
	"fmt"
	"math"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/cluster/local"
	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/node/telemetry"
	"github.com/farkv/farkv/ops"
	"github.com/farkv/farkv/ops/command"
)

// bytesFlag is a number of bytes, such as 8GiB.
type bytesFlag uint64

// String writes the number as Set reads it; 0, which is no default, is "".
func (b *bytesFlag) String() string {
	if *b == 0 {
		return ""
	}
	return stores.BytesText(uint64(*b))
}
func (b *bytesFlag) Type() string { return "size" }

func (b *bytesFlag) Set(s string) error {
	n, ok := stores.ParseBytes(s)
	if !ok || n == 0 {
		return fmt.Errorf("want a number of bytes such as 512MiB or 8GiB")
	}
	*b = bytesFlag(n)
	return nil
}

// pairFlag is a number of bytes that is also written as 1KiB; it is written in digits, as the
// records of pools have it.
type pairFlag int

func (p *pairFlag) String() string { return strconv.Itoa(int(*p)) }
func (p *pairFlag) Type() string   { return "size" }

func (p *pairFlag) Set(s string) error {
	n, ok := stores.ParseBytes(s)
	if !ok || n > math.MaxInt32 {
		return fmt.Errorf("want a number of bytes such as 256 or 1KiB")
	}
	*p = pairFlag(n)
	return nil
}

// upFlags are the flags of up.
type upFlags struct {
	params          stores.Params
	memory          bytesFlag
	nodes, replicas int
	telemetry       int
	store, fabric   string
	pmem            string
	power, model    bool
	addresses       []string
}

func (c *cli) up() *cobra.Command {
	u := new(upFlags)
	cmd := &cobra.Command{
		Use:   "up [POOL]",
		Short: "Make a pool",
		Long: "Up makes a pool for one store. --records sizes its index and its memory: it takes that many pairs of " +
			"--pair-bytes, and\n" +
			"most pools take more. --memory makes room for longer pairs, and for more where the index grows: " +
			"fusee, race*. A FUSEE\npool " +
			"takes pairs of up to 16,264 bytes, key and value together, or less when --memory is small; the others " +
			"of up to\n" +
			"--pair-bytes.\n\n" +
			"  NAME, shm:NAME             in this machine's shared memory, until 'farkv down' or the next boot; " +
			"memory is taken as it\n" +
			"                             is used\n" +
			"  shared:NAME                the same, for all users of this machine, each of which may change and " +
			"break it: shm:NAME\n" +
			"                             refuses a pool that is another user's, or that others may write to\n" +
			"  NAME with --fabric tcp     on memory nodes that it starts on this machine, until 'farkv down NAME' or " +
			"the next boot;\n" +
			"                             --fabric rdma for nodes whose verbs go through this machine's RDMA device\n" +
			"  tcp:HOST:PORT,...          on memory nodes that run, wherever they do: 'farkv node' starts one\n" +
			"  rdma:HOST:PORT,...         the same, on nodes that were started with --fabric rdma\n" +
			"  consul:HOST:PORT/POOL      on those that --addresses names, or that are registered there and free; " +
			"its record is in\n" +
			"                             Consul\n\n" +
			"Extra addresses beyond --nodes + --spares become witnesses: they store no data but vote, so that a pool " +
			"of two nodes\n" +
			"and a witness outlives the death of one.\n\n" +
			"With --pmem DIR nodes that it starts keep all that they remember in a file each there, and outlive " +
			"SIGKILL; with\n" +
			"--power a loss of power, too: see 'farkv help node'. After 'farkv down' up with the same DIR brings the " +
			"pool back\n" +
			"as it was, at the same ports: from 10000 to 19999, if Linux is set up as usual. 'farkv status' says " +
			"what each node\n" +
			"survives, and how; with --pmem-model also what modules of persistent memory would count: see " +
			"'farkv help node'.",
		Example: "  farkv up\n" +
			"  farkv up --records 1000000 --pair-bytes 256\n" +
			"  farkv up big --memory 8GiB --nodes 5 --spares 1 --replicas 3 --index-replicas 5\n" +
			"  farkv up --fabric tcp mine --nodes 3\n" +
			"  farkv up --fabric tcp mine --nodes 3 --pmem /var/lib/farkv/mine --power\n" +
			"  farkv up tcp:10.0.0.5:7070,10.0.0.6:7070,10.0.0.7:7070 --memory 8GiB\n" +
			"  farkv up consul:127.0.0.1:8500/mine --nodes 3 --memory 8GiB",
		Args: operands(""),
		RunE: func(cmd *cobra.Command, args []string) error { return c.runUp(cmd, u, args) },
	}
	p, f := &u.params, cmd.Flags()
	f.StringVar(&u.store, "store", "fusee", "one of\n"+storeNames())
	f.StringVar(&u.fabric, "fabric", "",
		"of a NAME: shm, or tcp or rdma, which start memory nodes (default shm"+servedOverTCP()+"); of a\n"+
			"consul: pool: tcp or rdma (default what its nodes were started for)")
	f.StringVar(&u.pmem, "pmem", "", "folder in which the memory nodes that it starts keep what they remember")
	f.BoolVar(&u.power, "power", false, "with --pmem: what was answered survives a loss of power")
	f.BoolVar(&u.model, "pmem-model", false,
		"memory nodes that it starts count what modules of persistent memory would do")
	f.StringSliceVar(&u.addresses, "addresses", nil,
		"memory nodes of a consul: pool (default those that are registered and free)")
	f.IntVar(&u.nodes, "nodes", 3, "memory nodes, spares apart; of those whose addresses are named, all")
	f.IntVar(&p.Spares, "spares", 0, "further memory nodes, each of which takes a dead one's place")
	f.Uint64Var(&p.Records, "records", 100_000, "pairs expected, which sizes the index")
	f.Var((*pairFlag)(&p.PairBytes), "pair-bytes",
		"bytes of a key and value together: typical ones (default 1024), or the largest that\n"+
			stores.Slotted()+" are to take (default 1152)")
	f.Var(&u.memory, "memory", "bytes of each memory node, such as 8GiB (default from the records)")
	f.BoolVar(&p.Overcommit, "overcommit", false,
		"make the pool even when this machine is to hold it and has less memory")
	f.IntVar(&u.replicas, "replicas", 0,
		"copies of index and data, or of each shard (default "+stores.DefaultReplicas()+")")
	f.IntVar(&p.IndexReplicas, "index-replicas", 0, "copies of the index alone (default --replicas)")
	f.IntVar(&p.DataReplicas, "data-replicas", 0, "copies of the data alone (default --replicas)")
	p.Own = command.Options(f, nil, stores.Made)
	f.IntVar(&p.Clients, "clients", 1024, "clients at a time")
	f.IntVar(&u.telemetry, "telemetry", telemetry.Records,
		"processes whose figures the pool keeps, in 16 KiB each on each node, beyond --memory;\n"+
			"0: it keeps neither figures nor events")
	return cmd
}

// check tells what is wrong with the flags of up, and completes the parameters.
func (u *upFlags) check(cmd *cobra.Command) error {
	p := &u.params
	p.Telemetry, p.NoTelemetry = u.telemetry, u.telemetry == 0
	p.Nodes, p.Memory, p.Fabric = u.nodes+p.Spares, uint64(u.memory), u.fabric
	p.IndexReplicas, p.DataReplicas = cmp.Or(p.IndexReplicas, u.replicas), cmp.Or(p.DataReplicas, u.replicas)
	return cmp.Or(bounded(cmd, 1, unbounded, "nodes", "pair-bytes", "replicas", "clients", "index-replicas",
		"data-replicas", "records"),
		bounded(cmd, 0, unbounded, "spares"), bounded(cmd, 0, telemetry.MaxRecords, "telemetry"), filled(cmd, "pmem"))
}

// runUp makes the pool where its address says.
func (c *cli) runUp(cmd *cobra.Command, u *upFlags, args []string) error {
	if err := u.check(cmd); err != nil {
		return err
	}
	pool, _ := poolAnd(args, 0)
	onNodes := func(fabric string) bool { return slices.Contains(fabrics.NodeFabrics(), fabric) }
	usual := cmp.Or(u.fabric, usualFabric(u.store))
	if len(args) == 0 && os.Getenv("FARKV_POOL") == "" && onNodes(usual) {
		pool = fabrics.UsualName
	}
	scheme, rest, named := strings.Cut(pool, ":")
	if !named {
		scheme = usual
	}
	switch {
	case u.fabric != "" && !slices.Contains(fabrics.NamedFabrics(), u.fabric):
		return fmt.Errorf("--fabric %s: want %s", u.fabric, fabrics.OneOf(fabrics.NamedFabrics()))
	case u.fabric != "" && u.fabric != scheme && (scheme != "consul" || !onNodes(u.fabric)):
		return fmt.Errorf("--fabric %s and %s contradict each other", u.fabric, pool)
	case len(u.addresses) > 0 && scheme != "consul":
		return fmt.Errorf("--addresses is for a consul: pool: name nodes as farkv up tcp:%s",
			strings.Join(u.addresses, ","))
	}
	if (u.pmem != "" || u.power || u.model) && (named || !onNodes(scheme)) {
		return fmt.Errorf("--pmem, --power and --pmem-model are for a NAME with --fabric tcp: nodes that run already " +
			"have their own")
	}
	var made *ops.Made
	var err error
	switch {
	case onNodes(scheme) && !named:
		program, wrong := os.Executable()
		if wrong != nil {
			return failure{fmt.Errorf("up --fabric %s: which program starts the nodes: %w", scheme, wrong)}
		}
		by := ops.Starter{
			Program: program, Fabric: scheme, PMem: u.pmem, Power: u.power, PMemModel: u.model, Shape: shape(cmd),
		}
		made, err = ops.UpStarted(cmd.Context(), by, pool, u.store, u.params)
	case onNodes(scheme), scheme == "consul" && len(u.addresses) > 0:
		if onNodes(scheme) {
			u.addresses = strings.Split(rest, ",")
		}
		if err := u.place(cmd); err != nil {
			return err
		}
		made, err = ops.Up(pool, u.store, u.params)
	default:
		if !named && started(pool) {
			return failure{fmt.Errorf("up %s: a pool of that name runs on nodes of this machine (hint: use it, "+
				"choose another name, or remove it with 'farkv down %s')", pool, pool)}
		}
		if !named {
			pool = scheme + ":" + pool
		}
		made, err = ops.Up(pool, u.store, u.params)
	}
	return answer(c, cmd, made, err)
}

// usualFabric returns what a pool of a NAME is on unless something else is said: servers of a store
// run in memory nodes that are processes.
func usualFabric(store string) string {
	if k, err := stores.Lookup(store); err == nil && k.Serve != nil {
		return fabrics.NodeFabrics()[0]
	}
	return fabrics.NamedFabrics()[0]
}

// servedOverTCP says for which stores that is not what it is for the others.
func servedOverTCP() string {
	var names []string
	for _, k := range stores.Kinds() {
		if k.Serve != nil {
			names = append(names, k.Name)
		}
	}
	if names == nil {
		return ""
	}
	return ", " + fabrics.NodeFabrics()[0] + " of " + strings.Join(names, ", ")
}

// shape returns the flags of up that were given and shape the pool, sorted.
func shape(cmd *cobra.Command) (all []string) {
	cmd.Flags().Visit(func(f *pflag.Flag) {
		other := []string{"fabric", "pmem", "power", "pmem-model", "overcommit"}
		if cmd.LocalFlags().Lookup(f.Name) != nil && !slices.Contains(other, f.Name) {
			all = append(all, "--"+f.Name+"="+f.Value.String())
		}
	})
	return all
}

// place takes the memory nodes from their addresses. Those beyond a number that was asked for are
// witnesses.
func (u *upFlags) place(cmd *cobra.Command) error {
	p, n := &u.params, len(u.addresses)
	p.Addresses = u.addresses
	if !cmd.Flags().Changed("nodes") {
		p.Nodes = n
	}
	if p.Nodes > n {
		return fmt.Errorf("--nodes %d and --spares %d need more than the %d addresses that are named", u.nodes,
			p.Spares, n)
	}
	return nil
}

// started reports whether memory nodes were started on this machine under a name.
func started(name string) bool {
	names, err := local.List()
	return err == nil && slices.Contains(names, name)
}

func (c *cli) down() *cobra.Command {
	var force, purge, keep bool
	cmd := &cobra.Command{
		Use:   "down [POOL]",
		Short: "Remove a pool and what is in it",
		Long: longText(`
Down removes a pool and what is in it. It refuses while clients live, and what is no pool, unless forced.

Of a NAME under which 'farkv up --fabric' started memory nodes it ends these, and no other processes: by SIGTERM,
and by SIGKILL after a while. Nodes that were started otherwise are told that they belong to no pool any more, and
go on. What nodes remember in the folder of 'farkv up --pmem' stays there, and brings the pool back, unless --purge
is given. --keep says so: it is refused where nothing would be kept.`),
		Example: longText(`
  farkv down
  farkv down big --force
  farkv down mine --keep     # 'farkv up --fabric tcp mine --pmem DIR' brings it back
  farkv down mine --purge    # nothing does
  farkv down tcp:10.0.0.5:7070,10.0.0.6:7070,10.0.0.7:7070`),
		Args: operands(""),
		RunE: func(cmd *cobra.Command, args []string) error {
			pool, _ := poolAnd(args, 0)
			if keep && purge {
				return fmt.Errorf("--keep and --purge contradict each other")
			}
			if keep {
				if err := ops.MayKeep(pool); err != nil {
					return err
				}
			}
			removed, err := ops.Down(pool, force, purge)
			return answer(c, cmd, removed, err)
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "even when clients live, or when it is no pool")
	cmd.Flags().BoolVar(&purge, "purge", false, "remove what nodes remember in the folder of --pmem, too")
	cmd.Flags().BoolVar(&keep, "keep", false, "keep it, as without --purge; refuse what would remove all")
	return cmd
}

func (c *cli) status() *cobra.Command {
	var events bool
	cmd := &cobra.Command{
		Use:   "status [POOL]",
		Short: "Show a pool: store, nodes, how many more may die, how full it is, memory by purpose, clients",
		Long: longText(`
Status shows a pool as it is now. With --events it shows what happened to it instead: elections of masters, nodes that
are gone or replaced, clients that were recovered, and failures of that. The pool keeps the last 256 events or so
on each of two nodes, with the wall clock of the process that wrote them. A master of a moment, as each command is while
no program is master, adds its election only if it did something else.`),
		Example: "  farkv status\n  farkv status big -o json\n  farkv status big --events",
		Args:    operands(""),
		RunE: onPool(0, func(cmd *cobra.Command, pool string, _ []string) error {
			if events {
				all, err := ops.EventsOf(pool)
				return answer(c, cmd, all, err)
			}
			s, err := ops.Status(pool)
			return answer(c, cmd, s, err)
		}),
	}
	cmd.Flags().BoolVar(&events, "events", false, "what happened to the pool, oldest first")
	return cmd
}

func (c *cli) check() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "check [POOL]",
		Short: "Walk a pool's whole structure and look for damage",
		Long: longText(`
Check walks the whole pool: replicas are equal, slots point at intact pairs, no key is there twice, no block is
owned twice, none is leaked, every held lock has an owner. It exits 1 when there is damage, and when it could not read
all of the pool. What clients that died left for recovery is no damage. It refuses while clients live, unless
forced. Candidates for the pool's master, such as 'farkv keep', may live: they hold still until it ends, and the
pool has no other master meanwhile.`),
		Example: "  farkv check\n  farkv check big -o json",
		Args:    operands(""),
		RunE: onPool(0, func(cmd *cobra.Command, pool string, _ []string) error {
			f, err := ops.Check(cmd.Context(), pool, force)
			if err == nil {
				err = f.Err()
			}
			return answer(c, cmd, f, err)
		}),
	}
	cmd.Flags().BoolVar(&force, "force", false, "even while clients live: what they are doing may look like damage")
	return cmd
}

func (c *cli) list() *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Short:   "List this machine's pools",
		Example: "  farkv list\n  farkv list -o json",
		Args:    command.NoOperands(""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := ops.List()
			if err == nil {
				err = p.AddStarted()
			}
			return answer(c, cmd, p, err)
		},
	}
}
