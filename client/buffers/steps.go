package buffers

import "github.com/farkv/farkv/node/rdma"

// The steps by which buffers are handed out and given back.
const (
	stepReadStack  rdma.Step = "read buffer stack"
	stepReadBundle rdma.Step = "read bundle"
	stepPop        rdma.Step = "take bundle"
	stepPush       rdma.Step = "give bundle back" // in the background
	stepGrow       rdma.Step = "ask for buffers"
	stepAsk        rdma.Step = "ask for a sweep"
	stepWalk       rdma.Step = "walk free buffers"
	stepSweep      rdma.Step = "sweep buffers"
)

// Steps are the steps of the protocol, as traces show them and faults can be set to them.
var Steps = []rdma.Step{stepReadStack, stepReadBundle, stepPop, stepPush, stepGrow, stepAsk, stepWalk, stepSweep}
