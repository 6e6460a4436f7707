package swarm

import (
	"fmt"

	"github.com/farkv/farkv/node/rdma"
)

// ErrOutdated ends an operation on an object that was last known to exist so many epochs ago that
// its memory may belong to another object by now: the caller has to look it up again. Unless the
// error wraps client.ErrUncertain, too, the operation has had no effect. It wraps rdma.ErrStale.
var ErrOutdated = fmt.Errorf("the object may have been deleted and reused: %w", rdma.ErrStale)

// Known notes that the object existed in an epoch, since an index named it then.
func (k *Register) Known(epoch uint64) { k.epoch = epoch }

// enter begins an operation and returns its epoch, or an error wrapping ErrOutdated. Under a busy
// view it joins again, since the sweep may be over: until then the client owns nothing that it
// replaces.
func (c *Client) enter(k *Register) (uint64, error) {
	m := c.opt.Member
	if m.Busy {
		if err := m.Join(); err != nil {
			return 0, err
		}
	}
	c.follow()
	return m.Epoch, c.current(k)
}

// follow forgets the chains that were in flight when the worker's membership changed: the client
// does not own the buffers that they replace (package kit, R1 and R2).
func (c *Client) follow() {
	if now := c.opt.Member.Term(); now != c.term {
		c.term = now
		c.unresolved.Release()
	}
}

// current fails if the object was last known to exist before the previous epoch: its memory may be
// another object's, and must not be accessed (package kit, R3).
func (c *Client) current(k *Register) error {
	if now := c.opt.Member.Epoch; now > k.epoch+1 {
		return fmt.Errorf("object of epoch %d in epoch %d: %w", k.epoch, now, ErrOutdated)
	}
	return nil
}

// met notes that an operation which began in an epoch has found the object: it was not garbage
// then. The epoch of the begin counts, since the object may have been deleted before the
// operation ended.
func (k *Register) met(epoch uint64) { k.epoch = max(k.epoch, epoch) }

// rejoin joins the pool's next epoch during a step. The client does not own what it had
// allocated, or had in flight (R1). So the step allocates and writes another buffer wherever the
// client does not know that a word names its own. The step ends if the object is outdated.
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

// land waits for what is in flight, and settles the owners of its buffers. The error wraps
// rdma.ErrTimeout if something is still in flight.
func (c *Client) land() error {
	c.quorum.Release()
	return c.unresolved.Land(c.ep, c.quorum.Timeout(), c.settleUnresolved)
}
