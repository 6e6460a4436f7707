package swarm

import (
	"fmt"

	"github.com/farkv/farkv/node/rdma"
)

// ErrOutdated ends an operation on an object of which it was last known so long ago that it was
// there, that its memory may be another object's by now: it has to be looked up. Where the error
// does not wrap client.ErrUncertain, too, the operation has had no effect. It wraps rdma.ErrStale.
var ErrOutdated = fmt.Errorf("nobody knows whether the object is still there: %w", rdma.ErrStale)

// Known says that the object was there in an epoch, in which an index named it.
func (k *Register) Known(epoch uint64) { k.epoch = epoch }

// enter returns the epoch in which an operation begins, or an error wrapping ErrOutdated. Under a
// busy view it looks whether the sweep is over.
func (c *Client) enter(k *Register) (uint64, error) {
	m := c.opt.Member
	if m == nil {
		return 0, nil
	}
	if m.Busy {
		if err := m.Join(); err != nil {
			return 0, err
		}
	}
	c.follow()
	return m.Epoch, c.current(k)
}

// follow forgets what was in flight when the worker's membership changed: the client does not own
// the buffers that it replaces (R1, R2).
func (c *Client) follow() {
	if c.opt.Member == nil {
		return
	}
	if now := c.opt.Member.Term(); now != c.term {
		c.term = now
		c.unresolved.Release()
	}
}

// current keeps a client off the words of an object of another life (package kit, R3).
func (c *Client) current(k *Register) error {
	if now := c.opt.Member.Epoch; now > k.epoch+1 {
		return fmt.Errorf("object of epoch %d in epoch %d: %w", k.epoch, now, ErrOutdated)
	}
	return nil
}

// met says that an operation which began in an epoch has found the object: at that time it was not
// garbage.
func (k *Register) met(epoch uint64) { k.epoch = max(k.epoch, epoch) }

// rejoin joins the pool's next epoch in the midst of an operation. What the client owned, and has
// in flight, is its own no more (R1); so it writes another buffer wherever it does not know that
// its own is named.
func (c *Client) rejoin() error {
	for r := range c.putting.buffer {
		c.putting.void(r)
	}
	c.putting.asked = 0
	if err := c.opt.Member.Join(); err != nil {
		return err
	}
	c.follow()
	return c.current(c.at)
}

// land waits for what is in flight, and settles the owners of the buffers that it replaces.
func (c *Client) land() error {
	c.quorum.Release()
	return c.unresolved.Land(c.ep, c.quorum.Timeout(), c.settleUnresolved)
}
