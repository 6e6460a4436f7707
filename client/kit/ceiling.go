package kit

import (
	"errors"
	"fmt"

	"github.com/farkv/farkv/node/rdma"
)

// A Ceiling is a durable word of one identity. Invariant: it is at least as high as each number
// that a holder of the identity has used. An identity may have had other holders, of which numbers
// can still be read. So each holder begins above the ceiling, and raises it before it uses numbers
// up to it. Numbers that were reserved and not used are lost.
//
// Only the identity's holder raises it, or the master that recovers the holder. There are two
// implementations: Everywhere, which a master must restore when a spare replaces a node, and
// quorum.Ceiling, which needs no master.
type Ceiling interface {
	// Read calls meet with copies of the word. The highest of them is at least as high as each word
	// that Raise returned nil for. It may be higher if a Raise was interrupted.
	Read(meet func(word uint64)) error
	// Raise makes the word at least as high as the given one. If it returns nil, each later Read
	// sees that.
	Raise(word uint64) error
}

// The steps in which ceilings are read and changed. A store lists those that its Ceiling posts
// among its Steps.
const (
	StepReadCeiling  rdma.Step = "read ceiling"
	StepRaiseCeiling rdma.Step = "raise ceiling"
	StepLowerCeiling rdma.Step = "lower ceiling" // of a client that leaves, to what it has used
)

// Numbers are counted such that no holder of an identity uses a number that another one has used.
type Numbers struct {
	ceiling Ceiling
	// How much the ceiling is raised beyond what is needed.
	ahead uint64
	// The highest number in use, and the ceiling as this holder has raised it. used <= limit.
	used, limit uint64
}

// OpenNumbers begins above all numbers that earlier holders may have used. The ceiling is raised by
// ahead more than needed each time, so that few operations have to raise it.
func OpenNumbers(c Ceiling, ahead uint64) (*Numbers, error) {
	n := &Numbers{ceiling: c, ahead: ahead}
	err := c.Read(func(word uint64) { n.used = max(n.used, word) })
	n.limit = n.used
	return n, err
}

// Used returns the highest number that this holder, or an earlier one, may have used.
func (n *Numbers) Used() uint64 { return n.used }

// Use makes sure that numbers up to the given one may be used. If it fails, nothing may be sent
// that contains them.
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

// Everywhere is a Ceiling with a copy on each node that serves. A raise is a WRITE to all of them,
// and fails if one of them fails. So any node that answers a READ has the word.
type Everywhere struct {
	At []rdma.Addr // of the copies; one at least
	// Batch returns an empty batch. Do posts one as a step of the store's protocol and waits for
	// all of it.
	Batch func() *rdma.Batch
	Do    func(step rdma.Step, b *rdma.Batch) error
}

// Read asks all nodes, one after the other: the last raise may have been interrupted.
func (c *Everywhere) Read(meet func(word uint64)) error {
	answers := 0
	var down error
	for _, at := range c.At {
		b := c.Batch()
		op := b.Read(at, 8)
		err := c.Do(StepReadCeiling, b)
		if err == nil {
			meet(op.Word(0))
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
	for _, at := range c.At {
		b.WriteWord(at, word)
	}
	return c.Do(StepRaiseCeiling, b)
}
