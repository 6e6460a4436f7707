package original

import (
	"fmt"

	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

const (
	// These are the steps of the protocol, as traces show them. A fault can be
	// set to one of them.
	stepMake       rdma.Step = "make root"
	stepReadRoot   rdma.Step = "read root"
	stepReadNode   rdma.Step = "read internal node"
	stepReadLeaf   rdma.Step = "read leaf"
	stepReadValue  rdma.Step = "read value"
	stepLock       rdma.Step = "lock"
	stepReadLocked rdma.Step = "read locked node"
	stepWriteBack  rdma.Step = "write back"
	stepRelease    rdma.Step = "release"
	stepWriteFar   rdma.Step = "write to another memory node"
	stepSetRoot    rdma.Step = "set root"
	stepGrab       rdma.Step = "grab memory"
	stepMark       rdma.Step = "mark memory"
	stepClaim      rdma.Step = "claim value"
	stepSettle     rdma.Step = "settle"
	stepRecover    rdma.Step = "recover client"
	stepSurvey     rdma.Step = "survey"
)

// Steps are the steps of the protocol that operations and recoveries take.
var Steps = []rdma.Step{
	stepReadRoot, stepReadNode, stepReadLeaf, stepReadValue, stepLock, stepReadLocked, stepWriteBack, stepRelease,
	stepWriteFar, stepSetRoot, stepGrab, stepMark, stepClaim, stepSettle, stepRecover, stepSurvey,
}

// Describe returns a function that says what lies at an address of the pool that
// ep reaches.
func Describe(ep rdma.Endpoint) (func(a rdma.Addr) string, error) {
	l, _, err := readLayout(ep)
	if err != nil {
		return nil, fmt.Errorf("describe a %s pool: %w", Format, err)
	}
	return l.describe, nil
}

// describe says what lies at an address; "" where nothing does.
func (l *layout) describe(a rdma.Addr) string {
	off := a.Offset()
	switch {
	case off < node.HeaderBytes:
		return "header"
	case off < rootAt+8:
		return "root word"
	case off >= locks0 && off < l.trees.words:
		return fmt.Sprintf("lock %d", (off-locks0)/8)
	}
	for _, part := range []struct {
		at, each uint64
		count    int
		what     string
	}{
		{l.trees.words, 8, l.trees.count, "word of node"}, {l.blocks.words, 8, l.blocks.count, "word of block"},
		{l.trees.data, uint64(l.trees.bytes), l.trees.count, "node"},
		{l.blocks.data, uint64(l.blocks.bytes), l.blocks.count, "block"},
	} {
		if i := (off - part.at) / max(part.each, 1); off >= part.at && i < uint64(part.count) {
			return fmt.Sprintf("%s %d/%d", part.what, a.Node(), i)
		}
	}
	return ""
}
