package original

import (
	"fmt"

	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

const (
	// The steps of the protocol, as traces show them. A fault can be set to one
	// of them.
	//
	// stepMake writes the first root into a new pool.
	stepMake rdma.Step = "make root"
	// stepReadRoot reads the word that names the root.
	stepReadRoot rdma.Step = "read root"
	// stepReadNode reads an internal node that is not cached.
	stepReadNode rdma.Step = "read internal node"
	// stepReadLeaf reads leaves without a lock.
	stepReadLeaf rdma.Step = "read leaf"
	// stepReadValue reads blocks that leaves name.
	stepReadValue rdma.Step = "read value"
	// stepLock is the CAS that takes a lock, with the READ of the node if the
	// lock was handed over.
	stepLock rdma.Step = "lock"
	// stepReadLocked reads a node behind the CAS of its lock, or the lock of a
	// node that is not whole.
	stepReadLocked rdma.Step = "read locked node"
	// stepWriteBack writes to the locked node, and releases the lock.
	stepWriteBack rdma.Step = "write back"
	// stepRelease releases a lock without a write.
	stepRelease rdma.Step = "release"
	// stepWriteFar writes a block or a new node to another memory node, before
	// what names it.
	stepWriteFar rdma.Step = "write to another memory node"
	// stepSetRoot is the CAS of the root's word.
	stepSetRoot rdma.Step = "set root"
	// stepGrab reads words of objects, and takes those that are free.
	stepGrab rdma.Step = "grab memory"
	// stepMark changes words of objects in the background, or frees objects.
	stepMark rdma.Step = "mark memory"
	// stepClaim takes the block of a pair that is to be deleted.
	stepClaim rdma.Step = "claim value"
	// stepSettle finds out and finishes what a failed operation has left.
	stepSettle rdma.Step = "settle"
	// stepRecover does the same for a dead client.
	stepRecover rdma.Step = "recover client"
	// stepSurvey reads words of locks and objects, and nodes, for recoveries and
	// checks.
	stepSurvey rdma.Step = "survey"
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
