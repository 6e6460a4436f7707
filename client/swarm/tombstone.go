package swarm

import "fmt"

// Delete ends the object: a WRITE of the highest timestamp (section 5.3.2), so that nothing comes
// behind it. Every later operation ends in ErrGone. It does not report whether the object was
// there: of two concurrent deletions both succeed, and a caller that keeps an index decides there.
// An error wraps client.ErrUncertain.
func (c *Client) Delete(k *Register) error {
	if k.gone {
		return nil
	}
	if err := c.bury(k); err != nil {
		return uncertain("delete", err)
	}
	return nil
}

// bury brings the tombstone to a majority, into this client's word, in one trip when that is
// cached.
func (c *Client) bury(k *Register) error {
	if c.raw() {
		return c.buryRaw(k)
	}
	s := stampOf(tombstone, c.tid%c.Words)
	p := put{tuple: tuple{stamp: s}, from: c.all(), need: c.Majority(), expect: &k.own}
	if err := c.put(stepBury, k, &p); err != nil {
		return fmt.Errorf("bring the tombstone to a majority: %w", err)
	}
	k.gone = true
	return nil
}
