package swarm

import "time"

// guess returns a timestamp that is probably above that of every write that is complete (section
// 3.2), and certainly above every one that this writer has used for this object, whatever its clock
// does.
func (c *Client) guess(k *Register) uint64 {
	return max(c.ticks(c.opt.Clock.Now()+c.ahead), k.last+1, k.seen+1)
}

// ticks returns the i of a time since the epoch: below 1 nothing was written.
func (l *Layout) ticks(since time.Duration) uint64 {
	return max(uint64(max(since, 0)/l.tick()), 1)
}

// resync sets the client's clock to what a stale guess met (section 6). Clocks are only set
// forward, so that they agree after a while on the fastest; the highest that can be met is nine
// years, and the sum does not overflow.
func (c *Client) resync(i uint64) {
	now := c.opt.Clock.Now()
	c.ahead = max(c.ahead, time.Duration(i)*c.tick()-max(now, 0))
}
