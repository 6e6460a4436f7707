package swarm

import "time"

// guess returns a timestamp that is probably above that of each complete write (section 3.2). It
// is always above each one that this writer has used for the object, and above each one that it
// has met there, whatever its clock does.
func (c *Client) guess(k *Register) uint64 {
	return max(c.ticks(c.opt.Clock.Now()+c.ahead), k.last+1, k.seen+1)
}

// ticks returns the i of a time since the pool's epoch. It is at least 1: a word of i 0 is one that
// was never written.
func (l *Layout) ticks(since time.Duration) uint64 {
	return max(uint64(max(since, 0)/l.tick()), 1)
}

// resync sets the client's clock to the i that a stale guess met (section 6). A clock is only set
// forward, so after a while all clocks agree with the fastest. The highest i is nine years, so the
// sum does not overflow.
func (c *Client) resync(i uint64) {
	now := c.opt.Clock.Now()
	c.ahead = max(c.ahead, time.Duration(i)*c.tick()-max(now, 0))
}
