package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/ops"
	"github.com/farkv/farkv/workloads/drivers"
)

// bytesFlag is a number of bytes, such as 8GiB.
type bytesFlag uint64

func (b *bytesFlag) String() string { return "" } // no default to show
func (b *bytesFlag) Type() string   { return "size" }

func (b *bytesFlag) Set(s string) error {
	n, ok := drivers.ParseBytes(s)
	if !ok || n == 0 {
		return fmt.Errorf("want a number of bytes such as 512MiB or 8GiB")
	}
	*b = bytesFlag(n)
	return nil
}

func (c *cli) up() *cobra.Command {
	var p stores.Params
	var memory bytesFlag
	var nodes, replicas int
	var store string
	cmd := &cobra.Command{
		Use:   "up [POOL]",
		Short: "Make a pool",
		Long: "Up makes a pool in this machine's shared memory, for one store. It stays until 'farkv down' or the next boot;\n" +
			"memory is taken as it is used. Without --memory the pool has room for twice the records. A FUSEE pool takes\n" +
			"pairs of up to 16,256 bytes, key and value together, or less when --memory is small.",
		Example: "  farkv up\n" +
			"  farkv up --records 1000000 --pair-bytes 256\n" +
			"  farkv up big --memory 8GiB --nodes 5 --spares 1 --replicas 3 --index-replicas 5",
		Args: operands(""),
		RunE: func(cmd *cobra.Command, args []string) error {
			for _, n := range []struct {
				flag  string
				value int
			}{{"nodes", nodes}, {"pair-bytes", p.PairBytes}, {"replicas", replicas}, {"clients", p.Clients},
				{"index-replicas", p.IndexReplicas}, {"data-replicas", p.DataReplicas}} {
				if cmd.Flags().Changed(n.flag) && n.value < 1 {
					return fmt.Errorf("--%s %d: want 1 or more", n.flag, n.value)
				}
			}
			if p.Records == 0 {
				return errors.New("--records 0: want 1 or more")
			}
			if p.Spares < 0 {
				return fmt.Errorf("--spares %d: want 0 or more", p.Spares)
			}
			p.Nodes, p.Memory = nodes+p.Spares, uint64(memory)
			if p.IndexReplicas == 0 {
				p.IndexReplicas = replicas
			}
			if p.DataReplicas == 0 {
				p.DataReplicas = replicas
			}
			pool, _ := poolAnd(args, 0)
			made, err := ops.Up(pool, store, p)
			return answer(c, cmd, made, err)
		},
	}
	f := cmd.Flags()
	f.StringVar(&store, "store", "fusee", "one of "+strings.Join(stores.Names(), ", "))
	f.IntVar(&nodes, "nodes", 3, "memory nodes")
	f.IntVar(&p.Spares, "spares", 0, "further memory nodes, each of which takes a dead one's place")
	f.Uint64Var(&p.Records, "records", 100_000, "pairs expected, which sizes the index")
	f.IntVar(&p.PairBytes, "pair-bytes", 1024, "bytes of a typical key and value together")
	f.Var(&memory, "memory", "bytes of each memory node, such as 8GiB (default from the records)")
	f.IntVar(&replicas, "replicas", 0, "copies of index and data (default 2, or 1 on one node)")
	f.IntVar(&p.IndexReplicas, "index-replicas", 0, "copies of the index alone (default --replicas)")
	f.IntVar(&p.DataReplicas, "data-replicas", 0, "copies of the data alone (default --replicas)")
	f.IntVar(&p.Clients, "clients", 1024, "clients at a time")
	return cmd
}

func (c *cli) down() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:     "down [POOL]",
		Short:   "Remove a pool and what is in it",
		Long:    "Down removes a pool and what is in it. It refuses while clients live, and what is no pool, unless forced.",
		Example: "  farkv down\n  farkv down big --force",
		Args:    operands(""),
		RunE: func(cmd *cobra.Command, args []string) error {
			pool, _ := poolAnd(args, 0)
			removed, err := ops.Down(pool, force)
			return answer(c, cmd, removed, err)
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "even when clients live, or when it is no pool")
	return cmd
}

func (c *cli) status() *cobra.Command {
	return &cobra.Command{
		Use:     "status [POOL]",
		Short:   "Show a pool: store, nodes, memory by purpose, clients",
		Example: "  farkv status\n  farkv status big -o json",
		Args:    operands(""),
		RunE: func(cmd *cobra.Command, args []string) error {
			pool, _ := poolAnd(args, 0)
			s, err := ops.Status(pool)
			return answer(c, cmd, s, err)
		},
	}
}

func (c *cli) check() *cobra.Command {
	var force bool
	cmd := &cobra.Command{
		Use:   "check [POOL]",
		Short: "Walk a pool's whole structure and look for damage",
		Long: "Check walks the whole pool: replicas of the index are equal, slots point at intact pairs, no key is there\n" +
			"twice, no block is owned twice, none is leaked. It exits 1 when there is damage. What clients that died left for\n" +
			"recovery is no damage. It refuses while clients live, unless forced.",
		Example: "  farkv check\n  farkv check big -o json",
		Args:    operands(""),
		RunE: func(cmd *cobra.Command, args []string) error {
			pool, _ := poolAnd(args, 0)
			f, err := ops.Check(pool, force)
			if err == nil {
				err = f.Err()
			}
			return answer(c, cmd, f, err)
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "even while clients live: what they are doing may look like damage")
	return cmd
}

func (c *cli) list() *cobra.Command {
	return &cobra.Command{
		Use:     "list",
		Short:   "List this machine's pools",
		Example: "  farkv list\n  farkv list -o json",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return fmt.Errorf("list takes no operands: see '%s --help'", cmd.CommandPath())
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, _ []string) error {
			p, err := ops.List()
			return answer(c, cmd, p, err)
		},
	}
}
