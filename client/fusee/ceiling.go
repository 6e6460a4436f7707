package fusee

import (
	"errors"
	"fmt"

	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node/rdma"
)

// A client numbers its operations and its tombstones. An identity may have had another holder, of
// which objects and tombstones are still there. So each holder begins above all numbers of the
// ones before. The identity's ceiling tells them, a word behind the journal (kit.Everywhere).
// Tombstones have 32 bits, so they are counted apart: the ceiling's lower half is theirs, the
// upper half counts steps of sequence numbers.
//
// A tombstone must never come back, so an identity that has used all of them writes no more. What
// a holder reserved and did not use is lost. So its first step is small, and each further one is
// twice the last. Recoveries have a share of their own, so that a dead client of a spent identity
// can be recovered. Of sequence numbers an object keeps 48 bits. No decision depends on them
// alone, so they may wrap.
//
// The ceiling is raised before a number above it is used. A crash in between loses the numbers
// that were reserved.
const (
	// seqStep is how many sequence numbers a raise reserves.
	seqStep = 1 << 24
	// Tombstones that the first raise of a holder reserves, and that later ones do at most.
	firstTombStep = 1 << 4
	lastTombStep  = 1 << 12
	// maxTomb is the last tombstone of an identity. Those above maxOwnTomb are for recoveries,
	// which take a few each.
	maxTomb    = 1<<32 - 1
	maxOwnTomb = maxTomb - 1<<20
)

// numbers are those of an identity: the last that were used, and the limits up to which its
// ceiling has reserved them.
type numbers struct {
	seq, seqLimit   uint64
	tomb, tombLimit uint64
	tombStep        uint64 // tombstones of the next raise; 0: firstTombStep
}

// ErrExhausted is wrapped by the error of a write when the client's identity has used all of its
// tombstones. Nothing was written. Clients with other identities go on, and a new pool has all of
// them.
var ErrExhausted = errors.New("no tombstone is left; a new pool has all of them")

// reserve returns the numbers with a higher limit of tombstones, up to most. Nothing is written:
// the caller writes the ceiling before it uses them.
func (n numbers) reserve(most uint64) (numbers, error) {
	if n.tombLimit >= most {
		return n, ErrExhausted
	}
	step := max(n.tombStep, firstTombStep)
	n.tombLimit, n.tombStep = min(n.tombLimit+step, most), min(2*step, lastTombStep)
	return n, nil
}

// readCeiling begins above what earlier holders of the identity may have used. It takes the
// highest ceiling of all nodes, since a raise may have been cut off.
func (c *Client) readCeiling() error {
	n, err := c.numbersOf(c.id)
	if err == nil {
		c.numbers = n
	}
	return err
}

// ceilingOf returns the ceiling of an identity, on all nodes that serve.
func (c *Client) ceilingOf(id rdma.ClientID) *kit.Everywhere {
	e := &kit.Everywhere{Batch: c.ep.Batch, Do: c.do}
	for _, n := range c.holders {
		e.At = append(e.At, c.ceiling(id, n))
	}
	return e
}

// numbersOf returns the numbers that no earlier holder of an identity has used. None are
// reserved: the limits are where they begin.
func (c *Client) numbersOf(id rdma.ClientID) (n numbers, err error) {
	err = c.ceilingOf(id).Read(func(word uint64) {
		n.seqLimit = max(n.seqLimit, word>>32*seqStep)
		n.tombLimit = max(n.tombLimit, word&(1<<32-1))
	})
	if err != nil {
		return n, fmt.Errorf("read the ceiling of client %d: %w", id, err)
	}
	n.seq, n.tomb = n.seqLimit, n.tombLimit
	return n, nil
}

// raise writes a higher ceiling before a number above the old one is used. When it fails the
// numbers stay as they are; the ceiling may be higher on some nodes, which loses numbers only.
func (c *Client) raise() error {
	next := c.numbers
	if next.seq == next.seqLimit {
		next.seqLimit += seqStep
	}
	if next.tomb == next.tombLimit {
		var err error
		if next, err = next.reserve(maxOwnTomb); err != nil {
			return fmt.Errorf("write as client %d: %w", c.id, err)
		}
	}
	if err := c.writeCeiling(c.id, next); err != nil {
		return err
	}
	c.numbers = next
	return nil
}

// writeCeiling writes an identity's ceiling on all nodes that serve.
func (c *Client) writeCeiling(id rdma.ClientID, n numbers) error {
	if err := c.ceilingOf(id).Raise(n.seqLimit/seqStep<<32 | n.tombLimit&(1<<32-1)); err != nil {
		return fmt.Errorf("raise the ceiling of client %d: %w", id, err)
	}
	return nil
}

// number gives an operation its sequence number, and makes sure that there is a tombstone for it:
// few operations take more than one. So an operation hardly ever raises the ceiling in the midst
// of a round.
func (c *Client) number() error {
	if n := &c.numbers; n.seq == n.seqLimit || n.tomb == n.tombLimit {
		if err := c.raise(); err != nil {
			return err
		}
	}
	c.numbers.seq++
	return nil
}

// tombstone returns a word for an emptied slot that was never used before. It raises the ceiling
// where none is reserved, also above maxOwnTomb: a round that has begun must end.
func (c *Client) tombstone(print uint8) (race.Word, error) {
	return c.tombstoneOf(c.id, &c.numbers, print)
}

// tombstoneOf is tombstone for an identity with the given numbers: the client's own, or a dead
// client's that it recovers.
func (c *Client) tombstoneOf(id rdma.ClientID, n *numbers, print uint8) (race.Word, error) {
	if n.tomb == n.tombLimit {
		next, err := n.reserve(maxTomb)
		if err == nil {
			err = c.writeCeiling(id, next)
		}
		if err != nil {
			return 0, fmt.Errorf("a tombstone of client %d: %w", id, err)
		}
		*n = next
	}
	n.tomb++
	return race.Tombstone(print, id, uint32(n.tomb)), nil
}
