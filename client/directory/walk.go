package directory

import (
	"fmt"

	"github.com/farkv/farkv/client/quorum"
)

// Held is a buffer that a bucket's word names.
type Held struct {
	Node    int
	Segment uint64
	Pointer uint16
}

// Walk calls visit for each bucket, with its entries and the buffers that its words name on nodes that answer, valid until
// visit returns. It settles what it finds half done. What it tells of buffers is true as long as nobody else changes the
// directory.
func (c *Client) Walk(visit func(bucket uint64, entries []Entry, held []Held) error) error {
	var held [quorum.MaxReplicas]Held
	for bucket := range c.Buckets {
		c.begin(bucket)
		if err := c.run(&change{}); err != nil {
			return fmt.Errorf("walk: bucket %d: %w", bucket, err)
		}
		c.rebase()
		known, err := c.words()
		if err != nil {
			return fmt.Errorf("walk: read the words of bucket %d: %w", bucket, err)
		}
		n := 0
		for r := range c.Replicas {
			if pointer := c.replicas[r].word.pointer(); known.Has(r) && pointer != 0 {
				held[n] = Held{c.at[r].Node(), bucket, pointer}
				n++
			}
		}
		if err := visit(bucket, c.base.entries[:c.base.n], held[:n]); err != nil {
			return err
		}
	}
	return nil
}

// words reads the words of all replicas that answer.
func (c *Client) words() (quorum.Mask, error) {
	clear(c.replicas[:c.Replicas])
	from := c.all()
	for r := range c.Replicas {
		if c.quorum.Avoids(c.at[r].Node()) {
			from &^= quorum.Only(r)
		}
	}
	err := c.within(c.limit, "read bucket", from, from.Len(), c.askSlot, c.tellSlot)
	if passing(err) {
		err = nil
	}
	return c.quorum.Done(), err
}
