package fusee

import (
	"errors"

	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// unresolvedWrite is an object of which it is not known whether some replica of a slot still holds
// its word.
type unresolvedWrite struct {
	object
	slot   race.Slot // where its pair is now, if it is there: splits of the index move it
	hash   uint64    // of its key
	word   race.Word // 0: none was proposed
	old    race.Word // what it was to replace
	inc    uint32    // its incarnation
	epoch  uint64    // of the view in which it was proposed
	op     opcode    // that proposed it
	flying bool      // its verbs may still be in flight
	ended  bool      // the round has ended since

	wonAt   race.Slot      // the slot, when the word had won the round
	holders []node.Replica // of its replicas then; nil: it is not known to have won
}

// abandon gives back the draft of an operation that failed on its way to a slot: a failed batch may
// still be in flight, so its object is not used again before the view has changed.
func (c *Client) abandon(err error) {
	if errors.Is(err, errDeadline) || errors.Is(err, errUnsettled) {
		c.recycle()
		return
	}
	c.unresolved.Keep(unresolvedWrite{object: c.draft.object, flying: inFlight(err)})
}

// inFlight reports whether verbs of an operation that failed so may still be on their way: waiting
// for them timed out.
func inFlight(err error) bool {
	return errors.Is(err, rdma.ErrTimeout) && !errors.Is(err, errDeadline)
}

// keepUnresolved keeps the draft of a write whose outcome is unknown. Its word is the draft's,
// whatever the write proposed at last: an INSERT that gives way replaces it.
func (c *Client) keepUnresolved(w *write, err error) {
	s := unresolvedWrite{object: c.draft.object, slot: w.slot, hash: w.hash, word: w.new, old: w.old, inc: w.inc, epoch: w.epoch, op: c.draft.op, flying: inFlight(err)}
	if c.draft.op != opDelete {
		s.word = c.draft.word(c, race.Hash(c.draft.key))
	}
	if w.decided && !w.yielded {
		s.wonAt, s.holders = w.decidedAt, w.holders
	}
	c.unresolved.Keep(s)
}

// endRounds ends the rounds that this client's writes of unknown outcome have left, now that their
// nodes answer again: other clients wait for them, and so would the client itself. Where another
// writer's word has won, that writer completes the round. Rounds whose nodes do not answer are left
// for the next time.
func (c *Client) endRounds() {
	for i := range c.unresolved {
		s := &c.unresolved[i]
		if s.ended || s.word == 0 {
			continue
		}
		if !s.flying && !c.view.Busy && !c.behind {
			word, ended, err := c.finishOwn(s.slot, s.unit, s.op)
			s.ended = ended && err == nil
			if word == s.word {
				s.wonAt, s.holders = s.slot, c.index.PlaceOf(s.slot)
			}
		}
	}
}

// settle gives back the objects of those whose rounds have ended without them.
func (c *Client) settle() {
	c.endRounds()
	c.unresolved.Resolve(c.settleWrite)
}

// settleWrite reports whether a write is resolved, and what it held is given back.
func (c *Client) settleWrite(s *unresolvedWrite) bool {
	p, own := c.placeOf(s.unit, s.class)
	won := c.hasWon(s)
	if won {
		c.free(s.old, s.inc) // others may have replaced its word since: only its client frees what it replaced
		s.old = 0
	}
	switch {
	case own && (p.block.idle(p.index) || p.block.incarnations[p.index] != s.incarnation), c.reclaim.rests(s.unit):
		// It had won, and was replaced and freed since.
	case !own && !c.NodeCentric: // its block was left, and this object in it as one in use
	case s.flying, s.word != 0 && !s.ended && s.epoch == c.view.Epoch:
		return false
	case won, s.word != 0 && !c.view.Busy && c.committed(s):
		c.free(s.old, s.inc) // this client has completed it, or a master
		if s.word.Empty() {  // a DELETE's object: no slot points at it
			c.layTag(s.unit, s.class, anyTag, 0)
		}
	case s.word != 0 && c.holdsWord(s):
		return false
	case !own && s.word == 0: // a node's, which may have been written in part
		c.layTag(s.unit, s.class, anyTag, 0)
	case own && c.writeHeads([]place{p}, true) != nil: // it may not have been written everywhere, so it is now
		return false
	default:
		c.layTag(s.unit, s.class, int32(c.tag(s.incarnation)), s.incarnation)
	}
	return true
}

// hasWon reports whether an unresolved write's round is known to have ended with its word, whatever
// its slot holds by now.
func (c *Client) hasWon(s *unresolvedWrite) bool {
	over := s.ended || s.epoch != c.view.Epoch
	return s.holders != nil && over && !s.flying && !c.view.Busy && c.kept(s.wonAt, s.holders)
}

// committed reports whether an unresolved write's slot holds its word for good. Its round has
// ended, or in an idle view of a later epoch all replicas had the same word when it became idle,
// and no client proposes the write's word any more.
func (c *Client) committed(s *unresolvedWrite) bool {
	w, err := c.readSlot(stepReadSlots, s.slot, 0)
	return err == nil && w == s.word
}

// holdsWord reports whether some replica of an unresolved write's slot still holds its word, or
// may.
func (c *Client) holdsWord(s *unresolvedWrite) bool {
	for r := range c.index.Copies(s.slot) {
		w, err := c.readSlot(stepReadSlots, s.slot, r)
		if err != nil || w == s.word || s.word.Live() && w == s.word.Pending() {
			return true
		}
	}
	return false
}
