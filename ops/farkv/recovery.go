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
		Long: "Recover does what the master of a pool does, for a pool without one: it makes the replicas equal when memory\n" +
			"nodes died, copies what they held to spare ones, and finishes or takes back what dead clients left undone. Every\n" +
			"program that works with a pool is a candidate for its master, so that this is needed only when none runs. It adds no\n" +
			"nodes: it says how many more may die, and fails when a majority or all copies of something died, which nothing brings\n" +
			"back.\n\n" +
			"With --client it fences that client off first: one that is stopped or hangs, and not dead. What such a client does\n" +
			"later fails, and does no harm.",
		Example: "  farkv recover\n  farkv recover big -o json\n  farkv recover big --client 7 --force",
		Args:    operands(""),
		RunE: func(cmd *cobra.Command, args []string) error {
			switch {
			case cmd.Flags().Changed("client") && client < 1:
				return fmt.Errorf("--client %d: want 1 or more", client)
			case force && client == 0:
				return fmt.Errorf("--force is for --client: it fences off one that is alive")
			}
			pool, _, err := poolAt(args, 0)
			if err != nil {
				return err
			}
			r, err := ops.Recover(cmd.Context(), pool, client, force)
			return answer(c, cmd, r, err)
		},
	}
	cmd.Flags().IntVar(&client, "client", 0, "fence this client off first")
	cmd.Flags().BoolVar(&force, "force", false, "even when that client is alive")
	return cmd
}

func (c *cli) crash() *cobra.Command {
	var step string
	cmd := &cobra.Command{
		Use:   "crash [POOL] node|client NUMBER",
		Short: "Break a memory node or a client on purpose",
		Long: "Crash node makes a memory node one that is down for everybody, for good; of a NAME under which 'farkv up --fabric'\n" +
			"started nodes it kills that one's process by SIGKILL. Crash client kills the process of a client of this machine\n" +
			"by SIGKILL, and all clients of that process with it; with --at, which only pools in shared memory know, the process\n" +
			"kills itself when the client comes to that step of the store's protocol. 'farkv status' numbers nodes from 0 and\n" +
			"lists the clients.\n\n" +
			"The steps, separated by semicolons:\n  " + steps(),
		Example: "  farkv crash node 1\n" +
			"  farkv crash big client 7\n" +
			"  farkv crash big client 7 --at " + anyStep() + "\n" +
			"  farkv status big && farkv recover big && farkv check big",
		Args: operands("node|client NUMBER"),
		RunE: func(cmd *cobra.Command, args []string) error {
			pool, rest := poolAnd(args, 2)
			if broken := rest[0] == "node" || rest[0] == "client"; !broken && (pool == "node" || pool == "client") {
				pool, rest[0] = rest[0], pool // crash node POOL NUMBER
			}
			n, err := strconv.Atoi(rest[1])
			switch {
			case rest[0] != "node" && rest[0] != "client":
				return fmt.Errorf("crash %q: want node or client", rest[0])
			case err != nil || n < 0:
				return fmt.Errorf("crash %s %q: want its number, which 'farkv status' shows", rest[0], rest[1])
			case rest[0] == "node" && step != "":
				return fmt.Errorf("--at %s: nodes take no steps, clients do", step)
			}
			if rest[0] == "node" { // of one whose nodes do not answer, too
				done, err := ops.CrashNode(pool, n)
				return answer(c, cmd, done, err)
			}
			if pool, err = ops.Resolve(pool); err != nil {
				return failure{err}
			}
			done, err := ops.CrashClient(pool, n, rdma.Step(step))
			return answer(c, cmd, done, err)
		},
	}
	cmd.Flags().StringVar(&step, "at", "", "the step of its protocol at which a client is to crash")
	return cmd
}

// steps lists the steps of all stores in lines.
func steps() string {
	var lines []string
	said := map[rdma.Step]bool{}
	for _, name := range stores.Names() {
		k, err := stores.Lookup(name)
		if err != nil {
			continue
		}
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
	if len(lines) == 0 {
		return "none in this version"
	}
	return strings.TrimSuffix(strings.Join(lines, "\n  "), ";")
}

// storeNames lists the stores.
func storeNames() string { return strings.Join(stores.Names(), ", ") }

// anyStep is one of them, for an example.
func anyStep() string {
	for _, name := range stores.Names() {
		if k, err := stores.Lookup(name); err == nil && len(k.Steps) > 0 {
			return strconv.Quote(string(k.Steps[0]))
		}
	}
	return "STEP"
}
