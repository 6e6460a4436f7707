package main

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/spf13/cobra"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/ops"
)

func (c *cli) recover() *cobra.Command {
	var client int
	var force bool
	cmd := &cobra.Command{
		Use:   "recover [POOL]",
		Short: "Replace dead memory nodes and recover dead clients",
		Long: longText(`
Recover does what the master of a pool does, for a pool without one: it makes the replicas equal when memory
nodes died, copies what they held to spare ones, and finishes or takes back what dead clients left undone. The
copies begin four leases after the repair, so that no write waits for both: 5 s on memory nodes. Every program
that works with a pool is a candidate for its master, so that this is needed only when none runs. It adds no
nodes: it says how many more may die, and fails when a majority or all copies of something died, which nothing brings
back.

With --client it fences that client off first: one that is stopped or hangs, and not dead. What such a client does
later fails, and does no harm.`),
		Example: "  farkv recover\n  farkv recover big -o json\n  farkv recover big --client 7 --force",
		Args:    operands(""),
		RunE: onPool(0, func(cmd *cobra.Command, pool string, _ []string) error {
			if err := bounded(cmd, 1, unbounded, "client"); err != nil {
				return err
			}
			if force && client == 0 {
				return fmt.Errorf("--force is for --client: it fences off one that is alive")
			}
			r, err := ops.Recover(cmd.Context(), pool, client, force)
			return answer(c, cmd, r, err)
		}),
	}
	cmd.Flags().IntVar(&client, "client", 0, "fence this client off first")
	cmd.Flags().BoolVar(&force, "force", false, "even when that client is alive")
	return cmd
}

// steps lists the steps of all stores in lines.
func steps() string {
	var lines []string
	said := map[rdma.Step]bool{}
	for _, k := range stores.Kinds() {
		line := ""
		for _, s := range k.Steps {
			if said[s] {
				continue
			}
			said[s] = true
			if len(line)+len(s) > 110 {
				lines, line = append(lines, strings.TrimSuffix(line, " ")), ""
			}
			line += string(s) + "; "
		}
		if line != "" {
			lines = append(lines, strings.TrimSuffix(line, " "))
		}
	}
	return strings.TrimSuffix(strings.Join(lines, "\n  "), ";")
}

// storeNames lists the stores.
func storeNames() string { return strings.Join(stores.Names(), ", ") }

// anyStep is one of them, for an example.
func anyStep() string {
	for _, k := range stores.Kinds() {
		if len(k.Steps) > 0 {
			return strconv.Quote(string(k.Steps[0]))
		}
	}
	return "STEP"
}
