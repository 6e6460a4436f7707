package fusee

import (
	"errors"

	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node/rdma"
)

// stray is an object of which it is not known whether some replica of a slot still holds its word.
type stray struct {
	object
	slot   race.Slot
	word   race.Word // 0: none was proposed
	old    race.Word // what it was to replace
	inc    uint32    // its incarnation
	epoch  uint64    // of the view in which it was proposed
	flying bool      // its verbs may still be in flight
}

// abandon gives back the draft of an operation that failed on its way to a slot: a failed batch may still be in flight,
// so its object is not used again before the view has changed.
func (c *Client) abandon(err error) {
	if errors.Is(err, errTired) || errors.Is(err, errUnsettled) {
		c.recycle()
		return
	}
	c.limbo = append(c.limbo, stray{object: c.draft.object, flying: inFlight(err)})
}

// inFlight tells whether verbs of an operation that failed so may still be on their way: waiting for them timed out.
func inFlight(err error) bool {
	return errors.Is(err, rdma.ErrTimeout) && !errors.Is(err, errTired)
}

// strand keeps the draft of a write whose outcome is unknown. Its word is the draft's, whatever the write proposed at last:
// an INSERT that gives way replaces it.
func (c *Client) strand(w *write, err error) {
	s := stray{object: c.draft.object, slot: w.slot, word: w.new, old: w.old, inc: w.inc, epoch: w.epoch, flying: inFlight(err)}
	if c.draft.op != opDelete {
		s.word = c.draft.word(c, race.Hash(c.draft.key))
	}
	c.limbo = append(c.limbo, s)
}

// settle gives back the strays whose rounds have ended without them.
func (c *Client) settle() {
	kept := c.limbo[:0]
	for _, s := range c.limbo {
		p, own := c.placeOf(s.unit, s.class)
		switch {
		case own && (p.block.idle(p.index) || p.block.incarnations[p.index] != s.incarnation), c.reclaim.rests(s.unit):
			// It had won, and was replaced and freed since.
		case !own && !c.NodeCentric: // its block was left, and this object in it as one in use
		case s.flying:
			kept = append(kept, s)
		case s.word != 0 && s.epoch < c.view.Epoch && !c.view.Busy && c.committed(s):
			c.free(s.old, s.inc) // a master has completed it
			if s.word.Empty() {  // a DELETE's object: no slot points at it
				c.layTag(s.unit, s.class, anyTag, 0)
			}
		case s.word != 0 && c.holdsWord(s):
			kept = append(kept, s)
		case !own: // a node's, which learns how often it was used
			c.layTag(s.unit, s.class, anyTag, 0)
		case c.writeHeads([]place{p}, true) != nil: // it may not have been written everywhere, so it is now
			kept = append(kept, s)
		default:
			c.layTag(s.unit, s.class, int32(c.tag(s.incarnation)), s.incarnation)
		}
	}
	c.limbo = kept
}

// committed tells whether a stray's slot holds its word for good. In an idle view of a later epoch all replicas had the same
// when it became idle, and nobody proposes the stray's word any more.
func (c *Client) committed(s stray) bool {
	w, err := c.readSlot(s.slot, 0)
	return err == nil && w == s.word
}

// holdsWord tells whether some replica of a stray's slot still holds its word, or may.
func (c *Client) holdsWord(s stray) bool {
	for r := range c.index.Copies(s.slot) {
		w, err := c.readSlot(s.slot, r)
		if err != nil || w == s.word || s.word.Live() && w == s.word.Pending() {
			return true
		}
	}
	return false
}
