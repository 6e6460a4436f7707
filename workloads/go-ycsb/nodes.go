package main

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"os"

	"github.com/spf13/cobra"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/cluster/local"
	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/ops"
	"github.com/farkv/farkv/ops/command"
	"github.com/farkv/farkv/ops/daemon"
	"github.com/farkv/farkv/workloads"
	"github.com/farkv/farkv/workloads/drivers"
)

// startNodes lets load start memory nodes for stores that have servers in them, as 'farkv up
// --fabric tcp' does, and end them, as 'farkv down' does. The nodes are processes of this program.
func startNodes(ctx context.Context) {
	drivers.StartNodes = func(name, store string, p stores.Params) error {
		program, err := os.Executable()
		if err != nil {
			return fmt.Errorf("which program starts the memory nodes: %w", err)
		}
		by := ops.Starter{Program: program, Fabric: fabrics.NodeFabrics()[0]}
		_, err = ops.UpStarted(ctx, by, name, store, p)
		return err
	}
	drivers.EndNodes = func(name string) error {
		p, err := local.Open(name)
		if err == nil && p.Data != "" {
			return workloads.Usagef("dropdata=true: %s keeps what pool %s has: 'farkv down --purge %s' removes it",
				p.Data, name, name)
		}
		if err == nil {
			_, err = ops.Down(name, false, false)
		}
		return err
	}
}

// newNodeCommand returns the command by which ops.UpStarted starts a node: 'farkv node' with the
// flags that it gives.
func newNodeCommand() *cobra.Command {
	var n daemon.NodeConfig
	var started, output = false, ""
	cmd := &cobra.Command{
		Use: "node", Short: "Serve memory for a load that started it", Hidden: true,
		Args: command.NoOperands("load starts it"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !started || output != "json" {
				return fmt.Errorf("node is for load to start: use 'farkv node'")
			}
			if err := local.AwaitRecord(cmd.InOrStdin()); err != nil {
				return status(err)
			}
			n.Connections, n.Log = 1024, slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
			return status(daemon.ServeNode(cmd.Context(), n, func(s *daemon.Serving) error {
				return json.NewEncoder(cmd.OutOrStdout()).Encode(s)
			}))
		},
	}
	f := cmd.Flags()
	f.StringVar(&n.Listen, "listen", "", "")
	f.Uint64Var(&n.Memory, "memory", 0, "")
	f.BoolVar(&n.Overcommit, "overcommit", false, "")
	f.StringVar(&n.Fabric, "fabric", "", "")
	f.StringVar(&n.TokenFile, "token-file", "", "")
	f.StringVar(&n.PIDFile, "pid-file", "", "")
	f.DurationVar(&n.Drain, "drain", 0, "")
	f.StringVar(&output, "output", "", "")
	f.BoolVar(&started, "await-starter", false, "")
	return cmd
}
