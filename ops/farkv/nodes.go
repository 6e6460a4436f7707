package main

import (
	"cmp"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/farkv/farkv/node/cluster/local"
	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/ops"
	"github.com/farkv/farkv/ops/command"
	"github.com/farkv/farkv/ops/daemon"
	"github.com/farkv/farkv/workloads/runner"
)

// defaultListen is where a memory node listens unless it is told otherwise.
const defaultListen = "127.0.0.1:7070"

const nodeLong = "Node serves registered memory to the clients of one pool, over TCP, until it is told to end. It " +
	"says in a line on\n" +
	"standard output that it serves, and where; what happens later goes to standard error.\n\n" +
	"With --fabric rdma its RDMA device executes the verbs of rdma: pools, past the process, which clients reach " +
	"over TCP as\n" +
	"before. A device, a port that is up and an address of it are chosen; --device, --port and --gid name others, " +
	"and so\n" +
	"do $FARKV_RDMA_DEVICE, $FARKV_RDMA_PORT and $FARKV_RDMA_GID. 'farkv help rdma' tells more.\n\n" +
	"Without a token it listens on the loopback only, and clients need none. With --token-file clients have " +
	"to prove\n" +
	"that they know the token, which is never sent; those that know only the one of --read-token-file may read, and\n" +
	"change nothing. With --tls-cert and --tls-key what is sent is encrypted, too; with --tls-ca clients have to " +
	"show a\n" +
	"certificate of that authority. 'farkv help tcp' tells more.\n\n" +
	"With --consul the node is registered with the agent at that address, under a health check that fails when the\n" +
	"process dies: 'farkv up consul:HOST:PORT/POOL' finds it there.\n\n" +
	"SIGTERM and SIGINT drain it: it takes no new connections, waits for clients to go for as long as --drain " +
	"says, and\n" +
	"ends with status 0. A second signal ends it at once. A node that ended has lost what it held, with --file, " +
	"too: it\n" +
	"comes back as a new and empty one, and its pool goes on with the others. The file is for memory that is " +
	"no main\n" +
	"memory, or more than there is of that.\n\n" +
	"With --pmem it remembers, in a file or on a DAX device: its memory, and what it promised its pool. Started " +
	"again with\n" +
	"the same --pmem, --memory and --listen, it comes back as itself, after SIGKILL too, unless its pool has " +
	"gone on\n" +
	"without it: then it is a new and empty one. So a pool whose nodes all ended is back when a majority of " +
	"them is.\n" +
	"With --power it survives a loss of power, too: it answers only when fdatasync has returned, which many answers " +
	"share.\n\n" +
	"With --pmem-model a model counts what three modules of persistent memory would do under the node's memory, " +
	"so that\n" +
	"status, monitor and metrics tell of write amplification where there are none. A verb takes half a microsecond " +
	"longer\n" +
	"for each 64 bytes."

func (c *cli) node() *cobra.Command {
	var n daemon.NodeConfig
	var memory bytesFlag
	var started bool
	cmd := &cobra.Command{
		Use:   "node --memory SIZE",
		Short: "Serve memory over TCP or RDMA: one memory node of a pool",
		Long:  nodeLong,
		Example: longText(`
  farkv node --memory 8GiB
  farkv node --memory 8GiB --listen 10.0.0.5:7070 --token-file /etc/farkv/token --metrics 127.0.0.1:9170
  farkv node --fabric rdma --memory 8GiB --listen 10.0.0.5:7070 --token-file /etc/farkv/token
  farkv node --memory 64GiB --file /mnt/pmem/farkv --listen 10.0.0.5:7070 --token-file /etc/farkv/token \
      --tls-cert node.pem --tls-key node.key --tls-ca clients.pem --consul 127.0.0.1:8500`),
		Args: command.NoOperands("--memory says how much it serves"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if memory == 0 {
				return fmt.Errorf("node: --memory is missing: say how much it serves, such as --memory 8GiB")
			}
			if err := cmp.Or(bounded(cmd, 1, unbounded, "connections"), filled(cmd, "pmem", "file")); err != nil {
				return err
			}
			switch {
			case n.Drain < 0:
				return fmt.Errorf("--drain %v: want 0 or more", n.Drain)
			case !slices.Contains(fabrics.NodeFabrics(), n.Fabric):
				return fmt.Errorf("--fabric %s: want %s", n.Fabric, fabrics.OneOf(fabrics.NodeFabrics()))
			case !fabrics.NeedsDevice(n.Fabric) && n.Device != (fabrics.DeviceChoice{}):
				return fmt.Errorf("--device, --port and --gid choose an RDMA device: they are for --fabric rdma")
			case n.MetricsPublic && n.Metrics == "":
				return fmt.Errorf("--metrics-public is for --metrics")
			}
			if started {
				if err := local.AwaitRecord(cmd.InOrStdin()); err != nil {
					return failure{err}
				}
			}
			n.Memory, n.Log = uint64(memory), c.logTo(cmd)
			return told(daemon.ServeNode(cmd.Context(), n, func(s *daemon.Serving) error { return c.say(cmd, s) }))
		},
	}
	f := cmd.Flags()
	f.StringVar(&n.Listen, "listen", defaultListen, "HOST:PORT to listen at; port 0 for a free one")
	f.Var(&memory, "memory", "bytes to serve, such as 8GiB")
	f.BoolVar(&n.Overcommit, "overcommit", false,
		"serve it even when the machine has less; memory is taken as it is used")
	f.StringVar(&n.Fabric, "fabric", fabrics.NodeFabrics()[0],
		"of the pools that it is for: "+fabrics.OneOf(fabrics.NodeFabrics()))
	f.StringVar(&n.Device.Device, "device", "", "RDMA device, such as mlx5_0 (default one that reaches --listen)")
	f.StringVar(&n.Device.Port, "port", "", "number of its port, from 1 (default one that is up)")
	f.StringVar(&n.Device.GID, "gid", "", "index of the port's address, from 0 (default that of --listen, or the best)")
	f.StringVar(&n.File, "file", "", "file that backs the memory; it is made, or is one that a node made")
	f.StringVar(&n.PMem, "pmem", "", "file or DAX device that holds the memory, and what the node must remember")
	f.BoolVar(&n.PMemModel, "pmem-model", false, "count what modules of persistent memory would do, by a model")
	f.BoolVar(&n.Power, "power", false, "with --pmem: what was answered survives a loss of power")
	f.StringVar(&n.TokenFile, "token-file", "", "file with the token that clients must know")
	f.StringVar(&n.ReadTokenFile, "read-token-file", "", "file with the token of clients that may only read")
	f.StringVar(&n.TLSCert, "tls-cert", "", "file with the node's certificate, for TLS")
	f.StringVar(&n.TLSKey, "tls-key", "", "file with the certificate's key")
	f.StringVar(&n.TLSCA, "tls-ca", "", "file with the authorities of clients' certificates, for mutual TLS")
	f.StringVar(&n.Consul, "consul", "", "HOST:PORT of a Consul agent to register with")
	f.StringVar(&n.Metrics, "metrics", "", "HOST:PORT of the loopback at which to serve /metrics and /healthz")
	f.BoolVar(&n.MetricsPublic, "metrics-public", false, "serve these at an address that others can reach")
	f.IntVar(&n.Connections, "connections", 1024, "clients' connections at a time; readers have half of them at most")
	f.StringVar(&n.PIDFile, "pid-file", "", "file to write the process's number to, while it serves")
	f.BoolVar(&started, "await-starter", false, "begin once standard input says that the process is recorded")
	_ = f.MarkHidden("await-starter") // an unknown name is its only error
	f.DurationVar(&n.Drain, "drain", 10*time.Second, "time for clients to go, when it is told to end")
	return cmd
}

func (c *cli) keep() *cobra.Command {
	var k daemon.KeepConfig
	cmd := &cobra.Command{
		Use:   "keep [POOL]",
		Short: "Be a candidate for a pool's master, and nothing else",
		Long: longText(`
Keep replaces dead memory nodes and recovers dead clients, as every program does that works with a pool: one of
them is the master, and when that dies another one is elected. It is for pools that are to be kept while no program
works with them, and for a master on a machine of its own. It runs until SIGTERM or SIGINT, and tells what it did
on standard error. 'farkv recover' does what there is to do once.`),
		Example: "  farkv keep\n  farkv keep tcp:10.0.0.5:7070,10.0.0.6:7070,10.0.0.7:7070 --metrics 127.0.0.1:9171",
		Args:    operands(""),
		RunE: onPool(0, func(cmd *cobra.Command, pool string, _ []string) error {
			if k.MetricsPublic && k.Metrics == "" {
				return fmt.Errorf("--metrics-public is for --metrics")
			}
			k.Log = c.logTo(cmd)
			return told(daemon.Keep(cmd.Context(), pool, k, func(k *daemon.Keeping) error { return c.say(cmd, k) }))
		}),
	}
	cmd.Flags().StringVar(&k.Metrics, "metrics", "",
		"HOST:PORT of the loopback at which to serve /metrics and /healthz")
	cmd.Flags().BoolVar(&k.MetricsPublic, "metrics-public", false, "serve these at an address that others can reach")
	return cmd
}

// logTo returns the log of a process that runs for long; with --quiet it has warnings and errors
// alone.
func (c *cli) logTo(cmd *cobra.Command) *slog.Logger {
	level := slog.LevelInfo
	if c.quiet {
		level = slog.LevelWarn
	}
	return slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), &slog.HandlerOptions{Level: level}))
}

// told tells misuse from failure.
func told(err error) error {
	if err != nil && !runner.Misused(err) {
		return failure{err}
	}
	return err
}

// say prints r at once, although the command goes on. It is a line, also in JSON, which the parent
// process reads.
func (c *cli) say(cmd *cobra.Command, r ops.Result) error {
	out := cmd.OutOrStdout()
	if c.output == "json" {
		text, err := versioned(r)
		if err != nil {
			return err
		}
		fmt.Fprintf(out, "%s\n", text)
	} else {
		r.Print(out)
	}
	if buffered, ok := out.(interface{ Flush() error }); ok {
		if err := buffered.Flush(); err != nil {
			return fmt.Errorf("write the answer: %w", err)
		}
	}
	return nil
}
