package sherman

import (
	"fmt"
	"slices"

	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/client/rtx"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// stepPeek is that of looks at a pool.
const stepPeek rdma.Step = "look at a node"

// Steps are the steps of the protocol, which are those of transactions, as traces show them and faults can be set to
// them, without those that hardly ever happen. A tree changes all that its transactions read, and so nothing is left to
// validate.
var Steps = append(slices.DeleteFunc(slices.Clone(rtx.Steps), func(s rdma.Step) bool {
	return s == "validate" || s == "write data" || s == "resolve"
}), stepPeek, kit.StepReadCeiling, kit.StepRaiseCeiling)

// Describe returns a function that tells what lies at an address of the pool that ep reaches.
func Describe(ep rdma.Endpoint) (func(a rdma.Addr) string, error) {
	l, _, err := readLayout(ep)
	if err != nil {
		return nil, fmt.Errorf("describe a %s pool: %w", Format, err)
	}
	return func(a rdma.Addr) string {
		if a.Offset() < node.HeaderBytes {
			return "header"
		}
		return l.rtx.Describe(a)
	}, nil
}
