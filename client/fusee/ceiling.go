package fusee

import (
	"errors"
	"fmt"

	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node/rdma"
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
	n, err := c.ceilingOf(c.id)
	if err == nil {
		c.numbers = n
	}
	return err
}

// ceilingOf returns the numbers that no earlier holder of an identity has used. A holder raised its ceiling on all nodes
// before it used what lies below, so any node that answers will do; the highest counts, since the last raise may have been
// cut off.
func (c *Client) ceilingOf(id rdma.ClientID) (n numbers, err error) {
	answers := 0
	for _, h := range c.holders {
		b := c.ep.Batch()
		op := b.Read(c.ceiling(id, h), 8)
		if e := c.do(b); e == nil {
			word := le.Uint64(op.Buf)
			n.seqLimit = max(n.seqLimit, word>>32*seqStep)
			n.tombLimit = max(n.tombLimit, word&(1<<32-1))
			answers++
		} else {
			err = e
		}
		b.Release()
		if err != nil && !errors.Is(err, rdma.ErrNodeDown) {
			break
		}
	}
	if answers == 0 || err != nil && !errors.Is(err, rdma.ErrNodeDown) {
		return n, fmt.Errorf("read the ceiling of client %d: %w", id, err)
	}
	n.seq, n.tomb = n.seqLimit, n.tombLimit
	return n, nil
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
	if err := c.writeCeiling(c.id, next); err != nil {
		return err
	}
	*n = next
	return nil
}

func (c *Client) writeCeiling(id rdma.ClientID, n numbers) error {
	b := c.ep.Batch()
	defer b.Release()
	p := b.Alloc(8)
	le.PutUint64(p, n.seqLimit/seqStep<<32|n.tombLimit&(1<<32-1))
	for _, h := range c.holders {
		b.Write(c.ceiling(id, h), p)
	}
	if err := c.do(b); err != nil {
		return fmt.Errorf("raise the ceiling of client %d: %w", id, err)
	}
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
