// Farkv makes, watches, checks and compares pools of disaggregated memory.
//
// Its exit status is 0 when all went well, 1 when something failed or a pool is damaged, 2 when it
// was not used as it should be, 3 when a key is not there, and 130 after an interrupt.
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"

	"github.com/farkv/farkv/node/cluster/consul"
	"github.com/farkv/farkv/node/cluster/local"
	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/ops"
	"github.com/farkv/farkv/ops/command"
	"github.com/farkv/farkv/workloads/drivers"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second one ends the process
	os.Exit(execute(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr))
}

// execute runs a command line and returns its exit status. What went wrong is one line on stderr,
// the last.
func execute(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	root := newRoot()
	root.SetArgs(args)
	root.SetIn(stdin)
	out := bufio.NewWriter(stdout) // remembers the first write that failed: Print has no errors of its own
	root.SetOut(out)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	consul.BeImpatient()
	if wrong := out.Flush(); err == nil && wrong != nil {
		err = failure{fmt.Errorf("write the answer: %w", wrong)}
	}
	if err == nil {
		return 0
	}
	status, line := exitStatus(ctx, err)
	tellFailure(stderr, asksJSON(args), status, line)
	return status
}

// administrators are the commands that get in where a node has as many connections as it takes.
// They end soon: those that go on would take the few places that are kept for them.
var administrators = []string{"status", "list", "check", "crash", "recover", "down", "doctor"}

// cli is what the commands share.
type cli struct {
	output string
	wait   time.Duration // for an agent of Consul
	quiet  bool
}

// outputs is the annotation of commands with answers in other forms than text and JSON.
const outputs = "outputs"

func outputsOf(cmd *cobra.Command) []string {
	return strings.Fields(cmp.Or(cmd.Annotations[outputs], "text json"))
}

func newRoot() *cobra.Command {
	c, version := new(cli), false
	root := &cobra.Command{
		Use:   "farkv",
		Short: "Pools of disaggregated memory",
		Long: "Farkv makes, watches, checks and compares pools of disaggregated memory.\n\n" +
			"POOL is an address, such as shm:farkv, tcp:HOST:PORT,..., rdma:HOST:PORT,... or consul:HOST:PORT/POOL, " +
			"or the\n" +
			"name of a pool that 'farkv up' made, such as farkv; left out, it is $FARKV_POOL, else " +
			drivers.DefaultPool + ".\n\n" +
			"Exit status: 0 all went well; 1 something failed, or a pool is damaged; 2 wrong use; 3 get or del found " +
			"no such\n" +
			"key; 130 interrupted. What went wrong is the last line on standard error: text, or with -o json an " +
			"object with\n" +
			"the members error, status and, where there is one, hint.",
		Example: "  farkv bench\n" +
			"  farkv up --records 1000000 --replicas 3\n" +
			"  farkv put paper FUSEE && farkv get paper\n" +
			"  farkv status && farkv check\n" +
			"  farkv down",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return unknown(cmd, args[0])
			}
			return nil
		},
		PersistentPreRunE: func(cmd *cobra.Command, _ []string) error {
			if list := outputsOf(cmd); !slices.Contains(list, c.output) {
				return fmt.Errorf("--output %s: want %s", c.output, strings.Join(list, " or "))
			}
			// A process may execute several commands, as tests do: one that is no administrator's
			// says so, too.
			fabrics.Administer(slices.Contains(administrators, cmd.Name()))
			return c.waitForConsul(cmd)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if version {
				return c.showVersion(cmd, args)
			}
			return cmd.Help()
		},
	}
	root.Flags().BoolVar(&version, "version", false, "what 'farkv version' shows")
	root.PersistentFlags().StringVarP(&c.output, "output", "o", "text", "text, or json")
	root.PersistentFlags().DurationVar(&c.wait, "wait", 30*time.Second,
		"time to wait for the Consul agent of a consul: pool")
	root.PersistentFlags().BoolVarP(&c.quiet, "quiet", "q", false,
		"no progress on standard error: the answer, or what went wrong")
	root.SetFlagErrorFunc(command.FlagError)
	root.SetHelpCommand(help(root))
	root.AddCommand(c.up(), c.down(), c.status(), c.monitor(), c.check(), c.recover(), c.crash(), c.list(), c.get(),
		c.put(), c.del(),
		c.trace(), c.bench(), c.soak(), c.sim(), c.report(), c.plot(), c.merge(), c.perf(), c.doctor(), c.node(),
		c.keep(), c.demoClient(), c.version())
	root.AddCommand(topics()...)
	otherWords(root)
	completions(root)
	command.Wrapped(root)
	return root
}

// unknown refuses a name that no command below cmd has.
func unknown(cmd *cobra.Command, name string) error {
	return fmt.Errorf("unknown command %q: %s'farkv help' lists the commands", name, command.Unknown(cmd, name))
}

func help(root *cobra.Command) *cobra.Command {
	return &cobra.Command{
		Use:   "help [TOPIC]",
		Short: "Explain a command, or tcp, rdma or consul",

		ValidArgsFunction: command.Topics(root),
		RunE: func(_ *cobra.Command, args []string) error {
			cmd, rest, err := root.Find(args)
			if err != nil || len(rest) > 0 {
				return unknown(cmd, strings.Join(rest, " "))
			}
			return cmd.Help()
		},
	}
}

// answer shows what an operation answered, where it did, and tells its misuse and its failure
// apart.
func answer[R interface {
	ops.Result
	comparable
}](c *cli, cmd *cobra.Command, r R, err error) error {
	err = told(err)
	if r == *new(R) {
		return err
	}
	if c.output == "json" {
		if wrong := writeJSON(cmd.OutOrStdout(), r); wrong != nil {
			return errors.Join(err, failure{wrong})
		}
		return err
	}
	r.Print(cmd.OutOrStdout())
	return err
}

// jsonVersion counts the changes to the JSON answers that a reader of older ones would stumble
// over.
const jsonVersion = 1

// writeJSON writes an answer, which is an object with members.
func writeJSON(w io.Writer, r ops.Result) error {
	text, err := versioned(r)
	if err != nil {
		return err
	}
	var out bytes.Buffer
	if err := json.Indent(&out, text, "", "  "); err != nil {
		return err
	}
	_, err = fmt.Fprintf(w, "%s\n", couple.ReplaceAll(out.Bytes(), []byte("[$1, $2]")))
	return err
}

// versioned is an answer as JSON, in a line, with the version as its first member.
func versioned(r ops.Result) ([]byte, error) {
	text, err := json.Marshal(r)
	if err != nil {
		return nil, err
	}
	return fmt.Appendf(nil, `{"version":%d,%s`, jsonVersion, text[1:]), nil
}

// couple is two numbers of an array, such as a point of a distribution, each on a line of its own.
// No string of JSON has such lines.
var couple = regexp.MustCompile(`\[\n\s*([-+.\de]+),\n\s*([-+.\de]+)\n\s*\]`)

// poolAnd splits operands: with one more than wanted, the first is the pool.
func poolAnd(args []string, wanted int) (pool string, rest []string) {
	if len(args) > wanted {
		return args[0], args[1:]
	}
	return cmp.Or(os.Getenv("FARKV_POOL"), fabrics.UsualPool()), args
}

// onPool runs a command with the pool that its operands name, or leave out, and with the others
// that it wants: with the pool's address where the name is that of nodes which 'farkv up --fabric'
// started.
func onPool(wanted int, run func(cmd *cobra.Command, pool string, rest []string) error) func(*cobra.Command,
	[]string) error {
	return func(cmd *cobra.Command, args []string) error {
		pool, rest := poolAnd(args, wanted)
		pool, err := ops.Resolve(pool)
		if err != nil {
			return failure{err}
		}
		return run(cmd, pool, rest)
	}
}

// operands refuses any number of operands but those of the pattern, with or without the pool.
func operands(pattern string) cobra.PositionalArgs {
	n := len(strings.Fields(pattern))
	return func(cmd *cobra.Command, args []string) error {
		if len(args) < n || len(args) > n+1 {
			s := "s"
			if len(args) == 1 {
				s = ""
			}
			return fmt.Errorf("%s takes %s, not %d operand%s: see '%s --help'", cmd.Name(),
				strings.TrimSpace("[POOL] "+pattern), len(args), s, cmd.CommandPath())
		}
		if n > 0 && len(args) == n {
			return forgotten(cmd.Name(), args)
		}
		return nil
	}
}

// forgotten refuses a key that is the name of a pool: a command line that names the pool and lacks
// an operand would otherwise change another pair of another pool.
func forgotten(command string, args []string) error {
	pools, err := fabrics.List()
	if err != nil {
		return nil // the command itself says what is wrong
	}
	started, _ := local.List() // as above
	if !slices.Contains(pools, "shm:"+strings.TrimPrefix(args[0], "shm:")) && !slices.Contains(started, args[0]) {
		return nil
	}
	pool, _ := poolAnd(args, len(args))
	return fmt.Errorf("%s %q: that is a pool, and an operand is missing (hint: if it is a key, name the pool too: "+
		"farkv %s %s %s ...)", command, args[0], command, strings.TrimPrefix(pool, "shm:"), args[0])
}
