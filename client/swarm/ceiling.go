package swarm

import (
	"fmt"
	"time"

	"github.com/farkv/farkv/client/quorum"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// A writer's timestamps only rise, though its number was another client's before: a durable word for each identity, at the
// first 2f+1 nodes, is raised at a majority before a timestamp above it is used. Who opens with an identity begins above what
// a majority tells, and raises it ahead, so that few writes have to. Who closes lowers it to what was used, so that who comes
// next is not ahead of everybody's clock. Only an identity's holder changes the word; a CAS of an earlier holder's that lands
// late can only raise it.
type ceiling struct {
	quorum quorum.Quorum
	at     [MaxReplicas]rdma.Addr
	n      int
	words  [MaxReplicas]uint64 // as they were met last
	used   uint64              // the highest tick that this client has used, or any before it
	limit  uint64              // of those that may be used
}

// ceilingAhead is by how much a ceiling is raised at a time. It counts the finest ticks there are.
const ceilingAhead = uint64(time.Second >> tickBits)

// openCeiling reads the ceiling of ep's identity.
func openCeiling(ep rdma.Endpoint, l *plan, o quorum.Options) (*ceiling, error) {
	o.Attempts = 8
	c := &ceiling{quorum: quorum.New(ep, o), n: l.Replicas}
	for r := range c.n {
		c.at[r] = rdma.At(r, node.HeaderBytes+8*uint64(ep.Client()-1))
	}
	err := c.quorum.Gather(stepReadCeiling, c.at[:c.n], int(ep.Client())%c.n, quorum.All(c.n), quorum.Majority(c.n),
		func(b *rdma.Batch, r int) error {
			b.Read(c.at[r], 8)
			return nil
		},
		func(r int, b *rdma.Batch, ch quorum.Chain) quorum.Verdict {
			c.words[r] = le.Uint64(b.Op(ch.First).Buf)
			c.used = max(c.used, c.words[r])
			return quorum.Done
		})
	c.limit = c.used
	if err != nil {
		return nil, fmt.Errorf("read the ceiling of client %d: %w", ep.Client(), err)
	}
	return c, nil
}

// use makes sure that ticks up to one may be used. Nothing was sent for them when it fails.
func (c *ceiling) use(tick uint64) error {
	if tick > c.limit {
		if err := c.raise(tick + ceilingAhead); err != nil {
			return fmt.Errorf("raise the client's ceiling: %w", err)
		}
	}
	c.used = max(c.used, tick)
	return nil
}

func (c *ceiling) raise(to uint64) error {
	err := c.move(to)
	if err == nil {
		c.limit = to
	}
	return err
}

// move brings the words of a majority to a value, or above.
func (c *ceiling) move(to uint64) error {
	return c.quorum.Gather(stepRaiseCeiling, c.at[:c.n], 0, quorum.All(c.n), quorum.Majority(c.n),
		func(b *rdma.Batch, r int) error {
			b.CompareSwap(c.at[r], c.words[r], max(c.words[r], to))
			return nil
		},
		func(r int, b *rdma.Batch, ch quorum.Chain) quorum.Verdict {
			cas := b.Op(ch.First)
			c.words[r] = cas.Result
			if cas.Swapped() {
				c.words[r] = cas.Value
			}
			if c.words[r] >= to {
				return quorum.Done
			}
			return quorum.Again
		})
}

// close lowers the ceiling to what was used, where that can be done at once.
func (c *ceiling) close() {
	_ = c.quorum.Gather(stepLowerCeiling, c.at[:c.n], 0, quorum.All(c.n), quorum.Majority(c.n),
		func(b *rdma.Batch, r int) error {
			b.CompareSwap(c.at[r], c.words[r], min(c.words[r], c.used))
			return nil
		},
		func(int, *rdma.Batch, quorum.Chain) quorum.Verdict { return quorum.Done }) // what is left high costs trips, at most
	c.quorum.Release()
}
