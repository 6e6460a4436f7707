package main

import (
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/farkv/farkv/ops"
	"github.com/farkv/farkv/ops/verbs"
)

func (c *cli) trace() *cobra.Command {
	var cold bool
	cmd := &cobra.Command{
		Use:   "trace [POOL] " + strings.Join(verbs.Operations, "|") + " KEY [VALUE]",
		Short: "Carry out one operation and show each verb of it",
		Long: longText(`
Trace carries out one operation and prints each verb of it: in which trip it took effect, for which step of the
store's protocol, what it did to which bytes of which memory node, what lies there, and the word there before and
after; then the totals, beside the number of trips that the store's paper has. Verbs with the trip - are posted in
the background: the operation does not wait for them. A put is an update, or an insert where the key is not there;
a put and an insert take a VALUE. The exit status is 3 when the key is not there.

A READ behind an ordering fence takes effect a trip later than what it was posted with.

Before the operation the client inserts and deletes another key, and reads KEY or puts it, so that it has memory at
hand and knows where KEY is, as clients that are at work; with --cold it does not.`),
		Example: "  farkv trace put paper FUSEE\n" +
			"  farkv trace get paper\n" +
			"  farkv trace big get user4711 --cold\n" +
			"  farkv trace insert another VALUE -o json",
		RunE: func(cmd *cobra.Command, args []string) error {
			pool, op, rest, err := traced(args)
			if err != nil {
				return err
			}
			if pool, err = ops.Resolve(pool); err != nil {
				return failure{err}
			}
			t, err := verbs.Trace(pool, op, []byte(rest[0]), []byte(strings.Join(rest[1:], "")), cold)
			return answer(c, cmd, t, keyed(err))
		},
	}
	cmd.Flags().BoolVar(&cold, "cold", false, "the operation is the client's first")
	return cmd
}

// traced tells the operands of trace apart: the pool may be left out, and those behind the
// operation depend on it.
func traced(args []string) (pool, op string, rest []string, err error) {
	isOperation := func(s string) bool { return slices.Contains(verbs.Operations, s) }
	at := slices.IndexFunc(args[:min(len(args), 2)], isOperation)
	if len(args) > 1 && at == 0 && isOperation(args[1]) && len(args) > operandsOf(args[0])+1 {
		at = 1 // a pool that is called as an operation is
	}
	if at < 0 {
		return "", "", nil, fmt.Errorf("trace takes [POOL] %s KEY [VALUE]: see 'farkv trace --help'",
			strings.Join(verbs.Operations, "|"))
	}
	op, rest = args[at], args[at+1:]
	if n := operandsOf(op); len(rest) != n {
		return "", "", nil, fmt.Errorf("trace %s takes %s, not %d operands: see 'farkv trace --help'", op,
			[]string{"", "KEY", "KEY VALUE"}[n], len(rest))
	}
	pool, _ = poolAnd(args[:at], 0)
	return pool, op, rest, nil
}

// operandsOf returns how many operands come behind an operation.
func operandsOf(op string) int {
	if op == "put" || op == "insert" {
		return 2
	}
	return 1
}
