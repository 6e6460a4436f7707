package swarm

import "fmt"

// Delete ends the object: it is a WRITE with the highest timestamp (section 5.3.2), so that no
// other one comes above it. Each later operation ends in ErrGone. Delete does not report whether
// the object had been deleted before: two concurrent deletions both succeed. A caller with an
// index decides there which one did it. An error wraps client.ErrUncertain: the tombstone may be
// at a minority.
func (c *Client) Delete(k *Register) error {
	if k.gone {
		return nil
	}
	if err := c.writeTombstone(k); err != nil {
		return uncertain("delete", err)
	}
	return nil
}

// writeTombstone brings the tombstone to a majority, in this client's word. It takes one trip if
// the word is cached. It may be repeated, by any client. A tombstone has no buffer: the CAS gives
// the client the buffer that its word named.
//
// What a crash here leaves: the tombstone at a minority. A client that finds it brings it to a
// majority.
func (c *Client) writeTombstone(k *Register) error {
	if c.raw() {
		return c.writeRawTombstone(k)
	}
	s := stampOf(tombstone, c.tid%c.Words)
	p := put{tuple: tuple{stamp: s}, from: c.all(), need: c.Majority(), expect: &k.own}
	if err := c.put(stepTombstone, k, &p); err != nil {
		return fmt.Errorf("bring the tombstone to a majority: %w", err)
	}
	k.gone = true
	return nil
}
