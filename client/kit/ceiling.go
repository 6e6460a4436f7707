package kit

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/farkv/farkv/node/rdma"
)

// A Ceiling is a durable word of one identity, above every number that a holder of the identity has
// used. An identity may have had another holder, of which numbers can still be read, so each begins
// above the ceiling, and raises it before it uses the numbers below. What was reserved and not used
// is lost.
//
// Only the identity's holder raises it, or the master that recovers the holder. There are two ways
// to store it: Everywhere, which a master has to restore where a node takes another's place, and
// quorum.Ceiling, which needs no master.
type Ceiling interface {
	// Read calls meet with copies of the word. The highest of them is as high as any word that Raise
	// returned nil for; it is higher where a Raise was cut off.
	Read(meet func(word uint64)) error
	// Raise makes the word at least as high as the given one. Nil: each later Read meets it.
	Raise(word uint64) error
}

// The steps in which ceilings are read and changed. A store has those that its Ceiling posts among
// its Steps.
const (
	StepReadCeiling  rdma.Step = "read ceiling"
	StepRaiseCeiling rdma.Step = "raise ceiling"
	StepLowerCeiling rdma.Step = "lower ceiling" // of a client that leaves, to what it has used
)

// Numbers are counted up so that no holder of an identity uses one that another has used.
type Numbers struct {
	ceiling     Ceiling
	ahead       uint64
	used, limit uint64
}

// OpenNumbers begins above what earlier holders may have used. The ceiling is raised by ahead more
// than is needed each time, so that few operations have to.
func OpenNumbers(c Ceiling, ahead uint64) (*Numbers, error) {
	n := &Numbers{ceiling: c, ahead: ahead}
	err := c.Read(func(word uint64) { n.used = max(n.used, word) })
	n.limit = n.used
	return n, err
}

// Used returns the highest number that this holder has used, or any before it.
func (n *Numbers) Used() uint64 { return n.used }

// Use makes sure that numbers up to one may be used. When it fails nothing may be sent that has
// them.
func (n *Numbers) Use(to uint64) error {
	if to > n.limit {
		if err := n.ceiling.Raise(to + n.ahead); err != nil {
			return fmt.Errorf("raise the client's ceiling: %w", err)
		}
		n.limit = to + n.ahead
	}
	n.used = max(n.used, to)
	return nil
}

// Everywhere is a Ceiling of which each node that serves has a copy. A raise is a WRITE to all, and
// fails when one of them does; to read it any node that answers will do.
type Everywhere struct {
	At []rdma.Addr // of the copies; one at least
	// Batch returns an empty batch, and Do posts one as a step of the store's protocol and waits for
	// all of it.
	Batch func() *rdma.Batch
	Do    func(step rdma.Step, b *rdma.Batch) error
}

// Read asks one node after the other, as the last raise may have been cut off.
func (c *Everywhere) Read(meet func(word uint64)) error {
	answers := 0
	var down error
	for _, at := range c.At {
		b := c.Batch()
		op := b.Read(at, 8)
		err := c.Do(StepReadCeiling, b)
		if err == nil {
			meet(binary.LittleEndian.Uint64(op.Buf))
			answers++
		}
		b.Release()
		switch {
		case errors.Is(err, rdma.ErrNodeDown):
			down = err
		case err != nil:
			return err
		}
	}
	if answers == 0 {
		return down
	}
	return nil
}

// Raise writes the word to all nodes in one trip.
func (c *Everywhere) Raise(word uint64) error {
	b := c.Batch()
	defer b.Release()
	p := b.Alloc(8)
	binary.LittleEndian.PutUint64(p, word)
	for _, at := range c.At {
		b.Write(at, p)
	}
	return c.Do(StepRaiseCeiling, b)
}
