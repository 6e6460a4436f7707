package fusee

import (
	"fmt"

	"github.com/farkv/farkv/client/race"
)

// A client numbers its operations and its tombstones. An identity may have had another holder, of which objects and
// tombstones are still there, so each holder begins above all numbers of the ones before: a word beside the log heads
// is raised before the numbers below it are used. Sequence numbers have 48 bits; tombstones have 32, so they are
// counted apart: the ceiling's lower half is theirs, the upper half counts steps of sequence numbers.
const (
	seqStep  = 1 << 24
	tombStep = 1 << 12
)

type numbers struct {
	seq, seqLimit   uint64
	tomb, tombLimit uint64
}

// readCeiling begins above what earlier holders of the identity may have used.
func (c *Client) readCeiling() error {
	b := c.ep.Batch()
	defer b.Release()
	for _, n := range c.holders {
		b.Read(c.ceiling(c.id, n), 8)
	}
	if err := c.do(b); err != nil {
		return fmt.Errorf("read the ceiling of client %d: %w", c.id, err)
	}
	for i := range c.holders { // a holder that died while it raised it has used nothing above the higher one
		word := le.Uint64(b.Op(i).Buf)
		c.numbers.seqLimit = max(c.numbers.seqLimit, word>>32*seqStep)
		c.numbers.tombLimit = max(c.numbers.tombLimit, word&(1<<32-1))
	}
	c.numbers.seq, c.numbers.tomb = c.numbers.seqLimit, c.numbers.tombLimit
	return nil
}

// raise writes a higher ceiling before a number above the old one is used.
func (c *Client) raise() error {
	n := &c.numbers
	next := *n
	if n.seq == n.seqLimit {
		next.seqLimit += seqStep
	}
	if n.tomb == n.tombLimit {
		next.tombLimit += tombStep
	}
	b := c.ep.Batch()
	defer b.Release()
	p := b.Alloc(8)
	le.PutUint64(p, next.seqLimit/seqStep<<32|next.tombLimit&(1<<32-1))
	for _, n := range c.holders {
		b.Write(c.ceiling(c.id, n), p)
	}
	if err := c.do(b); err != nil {
		return fmt.Errorf("raise the ceiling of client %d: %w", c.id, err)
	}
	*n = next
	return nil
}

// number makes sure that an operation finds a sequence number and a tombstone.
func (c *Client) number() error {
	if n := &c.numbers; n.seq == n.seqLimit || n.tomb == n.tombLimit {
		if err := c.raise(); err != nil {
			return err
		}
	}
	c.numbers.seq++
	return nil
}

// tombstone returns a word for an emptied slot that was never used before. An operation takes at most one: number
// has made sure of it.
func (c *Client) tombstone(hash uint64) race.Word {
	c.numbers.tomb++
	return race.Tombstone(race.Print(hash), c.id, uint32(c.numbers.tomb))
}
