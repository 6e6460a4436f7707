package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"time"

	"github.com/spf13/cobra"

	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/ops"
	"github.com/farkv/farkv/ops/chaos"
)

// crashFlags are the flags of crash.
type crashFlags struct {
	at                      string
	stop, slow, lasts, each time.Duration
	cut, plan               string
	kinds                   []string
	seed                    uint64
	force                   bool
}

const crashOperands = "crash takes [POOL] node|client NUMBER, [POOL] master, or [POOL] with --cut, --every or --plan"

// crashLong returns the help of 'farkv crash'.
func crashLong() string {
	return longText(`
Crash node makes a memory node one that is down for all programs, for good; of a NAME under which 'farkv up --fabric'
started nodes it kills that one's process by SIGKILL. Crash client kills the process of a client of this machine
by SIGKILL, and all clients of that process with it; with --at, which only pools in shared memory know, the process
kills itself when the client comes to that step of the store's protocol. Crash master kills the client that is the
master, likewise. 'farkv status' numbers nodes from 0 and lists the clients.

What is for a time is mended when the time is over, or the command is interrupted, which lasts until then:

  node|client N, or master, --stop 5s   the process stands still (SIGSTOP): of nodes that 'farkv up' started here,
                                        and of clients of this machine
  node N --slow 10ms --for 5s           verbs of the node take that much longer
  --cut N --for 5s                      node N is cut off from everything
  --cut N,M --for 5s                    nodes are cut off from each other: they exchange no leases
  --cut clients,N --for 5s              node N is cut off from clients, and not from other nodes

--slow and --cut are told to processes of memory nodes, which need the full token, and end them by themselves. A node
that is silent for longer than about a second is expelled, and stays gone. What costs data, or the pool, is refused
without --force.

With --every it draws what to break, by --seed and the pool's state, for the time of --for, and with --plan a file
says what to break. Between two it waits until the pool is whole. A small load of its own, of two workers on keys that
begin with ~crash-, removed in the end, counts operations that fail and the longest gap between two answers: so what is
told does not depend on other programs. Another program has to keep the pool, such as a load or 'farkv keep'. Stops and
cuts last for --stop, and slow nodes are slower by --slow. An interrupt mends what was broken for a time, and the table
so far is printed. The exit status is 1 when the pool is not whole in the end, or 'farkv check' finds damage.

` + chaos.PlanText + `

The steps, separated by semicolons, of which go-ycsb's fusee-nc, a client of a fusee pool without a cache, never comes
to "read slot and pair" and "write object, read slot":
  ` + steps())
}

func (c *cli) crash() *cobra.Command {
	o := new(crashFlags)
	cmd := &cobra.Command{
		Use:   "crash [POOL] [node|client NUMBER | master]",
		Short: "Break a memory node, a client or the network on purpose, once or by a schedule",
		Long:  crashLong(),
		Example: "  farkv crash node 1\n" +
			"  farkv crash big client 7\n" +
			"  farkv crash big client 7 --at " + anyStep() + "\n" +
			"  farkv crash mine master --stop 5s\n" +
			"  farkv crash mine --cut 1 --for 500ms\n" +
			"  farkv crash mine --every 20s --kinds node,client,master,stop,cut --seed 7 --for 10m\n" +
			"  farkv crash mine --plan breaks.txt -o json\n" +
			"  farkv status big && farkv recover big && farkv check big",
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.check(cmd); err != nil {
				return err
			}
			switch {
			case o.each > 0 || o.plan != "":
				return c.crashSchedule(cmd, o, args)
			case o.cut != "":
				return c.crashCut(cmd, o, args)
			}
			return c.crashOne(cmd, o, args)
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.at, "at", "", "the step of its protocol at which a client is to crash")
	f.DurationVar(&o.stop, "stop", 0,
		"stop the process for so long; of a schedule, how long stops, cuts and slowness last (default 5s)")
	f.DurationVar(&o.slow, "slow", 0, "how much longer verbs of the node take (default of a schedule 10ms)")
	f.StringVar(&o.cut, "cut", "", "cut nodes off: N, N,M or clients,N")
	f.DurationVar(&o.lasts, "for", 0,
		"how long --slow and --cut last (default 5s), or a schedule goes on (default 10m)")
	f.DurationVar(&o.each, "every", 0, "break something so often")
	f.StringSliceVar(&o.kinds, "kinds", []string{"node", "client", "master"},
		"what --every draws from: node, client, master, stop, slow, cut")
	f.Uint64Var(&o.seed, "seed", 1, "of what is drawn")
	f.StringVar(&o.plan, "plan", "", "file that says what to break, - for standard input")
	f.BoolVar(&o.force, "force", false, "even if it costs data, or the pool")
	return cmd
}

// check refuses flags that do not go together.
func (o *crashFlags) check(cmd *cobra.Command) error {
	set := cmd.Flags().Changed
	for _, name := range []string{"stop", "slow", "for", "every"} {
		if d, err := cmd.Flags().GetDuration(name); err == nil && set(name) && d <= 0 {
			return fmt.Errorf("--%s %v: want more than 0", name, d)
		}
	}
	for _, name := range []string{"cut", "plan"} {
		if set(name) && cmd.Flag(name).Value.String() == "" {
			return fmt.Errorf("--%s is empty (hint: see 'farkv help crash')", name)
		}
	}
	scheduled := set("every") || set("plan")
	switch {
	case set("every") && set("plan"):
		return errors.New("--every and --plan contradict each other (hint: a plan says when)")
	case scheduled && (set("cut") || set("at")):
		return errors.New("--cut and --at are for one break (hint: --kinds cut draws cuts, and a plan has lines such " +
			"as '20s cut 1')")
	case set("kinds") && !set("every"):
		return errors.New("--kinds is for --every (hint: name what to break, as in farkv crash node 1)")
	case set("seed") && !scheduled:
		return errors.New("--seed is for --every and --plan (hint: nothing is drawn without)")
	case set("for") && set("plan"):
		return errors.New("--for is not for --plan, which says how long each break lasts (hint: see 'farkv " +
			"help crash')")
	case set("for") && !scheduled && !set("slow") && !set("cut"):
		return errors.New("--for is for --slow, --cut and --every (hint: --stop 5s says itself how long)")
	case scheduled:
		return nil
	case set("stop") && set("slow"), set("cut") && (set("stop") || set("slow")),
		set("at") && (set("stop") || set("slow") || set("cut")):
		return errors.New("--stop, --slow, --cut and --at contradict each other (hint: a plan breaks several things, " +
			"one after another)")
	}
	return nil
}

// broke tells of a break that lasts.
func (c *cli) broke(cmd *cobra.Command) func(*chaos.Broken) {
	say := c.progress(cmd)
	return func(b *chaos.Broken) {
		if b.For > 0 {
			say("%s; an interrupt ends it", b.Text)
		}
	}
}

// crashTarget reads what is to break: [POOL] node|client NUMBER, or [POOL] master.
func crashTarget(cmd *cobra.Command, args []string) (pool string, what chaos.Break, err error) {
	parts := []string{"node", "client"}
	if n := len(args); (n == 1 || n == 2) && args[n-1] == "master" && !slices.Contains(parts, args[0]) {
		pool, _ = poolAnd(args, 1)
		return pool, chaos.Break{Kind: chaos.BreakMaster, Target: chaos.Target{Master: true}}, nil
	}
	if n := len(args); n < 2 || n > 3 {
		return "", what, fmt.Errorf("%s, not %d operands: see 'farkv crash --help'", crashOperands, n)
	}
	if err := operands("node|client NUMBER")(cmd, args); err != nil {
		return "", what, err
	}
	pool, rest := poolAnd(args, 2)
	if !slices.Contains(parts, rest[0]) && slices.Contains(parts, pool) {
		pool, rest[0] = rest[0], pool // crash node POOL NUMBER
	}
	n, err := strconv.Atoi(rest[1])
	switch {
	case !slices.Contains(parts, rest[0]):
		return "", what, fmt.Errorf("crash %q: want node, client or master", rest[0])
	case err != nil || n < 0 || rest[0] == "client" && n == 0:
		return "", what, fmt.Errorf("crash %s %q: want its number, which 'farkv status' shows", rest[0], rest[1])
	case rest[0] == "node":
		return pool, chaos.Break{Kind: chaos.BreakNode, Target: chaos.Target{Nodes: []int{n}}}, nil
	}
	return pool, chaos.Break{Kind: chaos.BreakClient, Target: chaos.Target{Client: n}}, nil
}

// crashOne breaks a node, a client or the master.
func (c *cli) crashOne(cmd *cobra.Command, o *crashFlags, args []string) error {
	pool, what, err := crashTarget(cmd, args)
	if err != nil {
		return err
	}
	switch {
	case o.at != "" && what.Kind == chaos.BreakNode:
		return fmt.Errorf("--at %s: nodes take no steps, clients do", o.at)
	case o.at != "" && what.Kind == chaos.BreakMaster:
		return fmt.Errorf("--at %s: name the client (hint: 'farkv status' shows which one is the master)", o.at)
	case o.slow > 0 && what.Kind != chaos.BreakNode:
		return fmt.Errorf("--slow %v: a node is slow, and a client is not (hint: --stop stops its process)", o.slow)
	case o.force && what.Kind != chaos.BreakNode:
		return errors.New("--force is for nodes: no client's death costs data (hint: leave it out)")
	case o.stop > 0:
		what.Kind, what.For = chaos.BreakStop, o.stop
	case o.slow > 0:
		what.Kind, what.Slow, what.For = chaos.BreakSlow, o.slow, o.lasts
	case what.Kind == chaos.BreakNode: // also when the pool's nodes do not answer
		done, err := chaos.CrashNode(pool, what.Nodes[0], o.force)
		return answer(c, cmd, done, err)
	case what.Kind == chaos.BreakClient:
		if pool, err = ops.Resolve(pool); err != nil {
			return failure{err}
		}
		done, err := chaos.CrashClient(pool, what.Client, rdma.Step(o.at))
		return answer(c, cmd, done, err)
	}
	done, err := chaos.BreakFor(cmd.Context(), pool, what, o.force, c.broke(cmd))
	return answer(c, cmd, done, err)
}

// onlyPool refuses operands behind the pool.
func onlyPool(args []string, flag string) (string, error) {
	if len(args) > 1 {
		return "", fmt.Errorf("--%s takes [POOL], not %d operands (hint: %s)", flag, len(args), crashOperands)
	}
	pool, _ := poolAnd(args, 0)
	return pool, nil
}

// crashCut cuts nodes off.
func (c *cli) crashCut(cmd *cobra.Command, o *crashFlags, args []string) error {
	pool, err := onlyPool(args, "cut")
	if err != nil {
		return err
	}
	target, err := chaos.ParseCut(o.cut)
	if err != nil {
		return err
	}
	cut := chaos.Break{Kind: chaos.BreakCut, Target: target, For: o.lasts}
	done, err := chaos.BreakFor(cmd.Context(), pool, cut, o.force, c.broke(cmd))
	return answer(c, cmd, done, err)
}

// crashSchedule breaks one thing after another.
func (c *cli) crashSchedule(cmd *cobra.Command, o *crashFlags, args []string) (err error) {
	s := chaos.Schedule{
		Every: o.each, For: cmp.Or(o.lasts, 10*time.Minute), Seed: o.seed, Fault: o.stop, Slow: o.slow, Force: o.force,
	}
	flag := "every"
	if o.plan != "" {
		flag = "plan"
		s.Plan, err = readPlan(cmd.InOrStdin(), o.plan)
	} else {
		s.Kinds, err = chaos.ParseKinds(o.kinds)
	}
	pool, wrong := onlyPool(args, flag)
	switch {
	case err != nil:
		return err
	case wrong != nil:
		return wrong
	case o.plan == "" && len(s.Kinds) == 0:
		return errors.New("--kinds is empty (hint: --kinds node,client,master,stop,slow,cut has all)")
	case o.plan == "" && s.Every > s.For:
		return fmt.Errorf("--every %v: nothing would be broken within %v (hint: raise --for)", s.Every, s.For)
	case s.Fault > fabrics.MaxFault:
		return fmt.Errorf("--stop %v: want up to %v", s.Fault, fabrics.MaxFault)
	case s.Slow > fabrics.MaxSlow:
		return fmt.Errorf("--slow %v: want up to %v (hint: a node that takes longer counts as dead)", s.Slow,
			fabrics.MaxSlow)
	}
	fabrics.Administer(false) // it goes on for long, and its load is one as of any other program
	say := c.progress(cmd)
	s.Progress = func(line string) { say("%s", line) }
	done, err := chaos.RunSchedule(cmd.Context(), pool, s)
	return answer(c, cmd, done, err)
}

func readPlan(stdin io.Reader, name string) ([]chaos.Planned, error) {
	if name == "-" {
		return chaos.ParsePlan(stdin)
	}
	f, err := os.Open(name)
	if err != nil {
		return nil, fmt.Errorf("--plan: %w (hint: it names a file; 'farkv help crash' shows a plan)", err)
	}
	defer f.Close()
	return chaos.ParsePlan(f)
}
