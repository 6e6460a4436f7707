package sherman

import (
	"fmt"
	"slices"

	"github.com/farkv/farkv/client/dtx"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/client/rtx"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// stepPeek is a look at a pool without a transaction: see library.peek.
const stepPeek rdma.Step = "look at a node"

// Steps returns the steps of a store's protocol, which are those of transactions,
// as traces show them. A fault can be set to one of them. Those that hardly ever
// happen are left out. A tree changes all that its transactions read, so nothing
// is left to validate.
func Steps(format string) []rdma.Step {
	all := rtx.Steps
	if format == DTX {
		all = dtx.Steps
	}
	all = slices.DeleteFunc(slices.Clone(all), func(s rdma.Step) bool { return slices.Contains(rare, s) })
	return append(all, stepPeek, kit.StepReadCeiling, kit.StepRaiseCeiling)
}

// rare are the steps that hardly ever happen.
var rare = []rdma.Step{"validate", "write data", "resolve", "renew"}

// Describe returns a function that says what lies at an address of the pool that
// ep reaches.
func Describe(ep rdma.Endpoint) (func(a rdma.Addr) string, error) {
	l, _, err := readLayout(ep)
	if err != nil {
		return nil, fmt.Errorf("describe a tree: %w", err)
	}
	return func(a rdma.Addr) string {
		if a.Offset() < node.HeaderBytes {
			return "header"
		}
		return l.library.describe(a)
	}, nil
}
