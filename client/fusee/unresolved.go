package fusee

import (
	"errors"

	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// unresolvedWrite is an object of which it is not known whether some replica of a slot still
// holds its word.
type unresolvedWrite struct {
	// The object's journal word is kept as long.
	object
	// slot is where its pair is now, if it is in the index: splits of the index move it.
	slot race.Slot
	// hash is that of its key.
	hash uint64
	// word was proposed; 0: none was.
	word race.Word
	// old is what the word was to replace, and inc the incarnation of that object. 0: it was
	// freed, or there was none.
	old race.Word
	inc uint32
	// epoch is that of the view in which the word was proposed.
	epoch uint64
	// op proposed it.
	op opcode
	// flying: its verbs may still be in flight.
	flying bool
	// ended: the round has ended since.
	ended bool

	// wonAt is the slot, and holders are its replicas, when the word had won the round. nil: it
	// is not known to have won.
	wonAt   race.Slot
	holders []node.Replica
}

// abandon gives back the draft of an operation that failed before it proposed a word. Where its
// verbs may be in flight, or may have failed in part, its object is kept: a late WRITE would land
// in its next use.
func (c *Client) abandon(err error) {
	if errors.Is(err, errDeadline) || errors.Is(err, errUnsettled) {
		c.recycle()
		return
	}
	c.unresolved.Keep(unresolvedWrite{object: c.draft.object, flying: inFlight(err)})
}

// inFlight reports whether verbs of an operation that failed so may still be on their way:
// waiting for them timed out.
func inFlight(err error) bool {
	return errors.Is(err, rdma.ErrTimeout) && !errors.Is(err, errDeadline)
}

// keepUnresolved keeps the draft of a write of unknown outcome. Its word is the draft's, also for
// an INSERT that gave way, of which the write has a tombstone instead. A DELETE's word is its
// tombstone.
func (c *Client) keepUnresolved(w *write, err error) {
	s := unresolvedWrite{object: c.draft.object, slot: w.slot, hash: w.hash, word: w.new, old: w.old, inc: w.inc,
		epoch: w.epoch, op: c.draft.op, flying: inFlight(err)}
	if c.draft.op != opDelete {
		s.word = c.draft.word(c, race.Hash(c.draft.key))
	}
	if w.decided && !w.yielded {
		s.wonAt, s.holders = w.decidedAt, w.holders
	}
	c.unresolved.Keep(s)
}

// endRounds ends the rounds that this client's writes of unknown outcome have left, now that
// their nodes answer again: other clients wait for them, and so would the client itself. If
// another writer's word has won a round, that writer completes it. Rounds of which the nodes do
// not answer stay for the next time. Rounds are not ended under a busy view: only the master
// changes slots then.
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

// settle gives back what unresolved writes hold, if their rounds have ended.
func (c *Client) settle() {
	c.endRounds()
	c.unresolved.Resolve(c.settleWrite)
}

// settleWrite reports whether a write is resolved. What it held is given back then: the object,
// if no replica of its slot holds its word, and what it replaced, if it has won.
func (c *Client) settleWrite(s *unresolvedWrite) bool {
	p, own := c.placeOf(s.unit, s.class)
	won := c.hasWon(s)
	if won {
		// Others may have replaced its word since: only its client frees what it replaced.
		c.free(s.old, s.inc)
		s.old = 0
	}
	switch {
	case own && (p.block.idle(p.index) || p.block.incarnations[p.index] != s.incarnation),
		c.reclaim.rests(s.unit):
		// It has won, and was replaced and freed since.
	case !own && !c.NodeCentric: // its block was left, and this object in it as one in use
	case s.flying, s.word != 0 && !s.ended && s.epoch == c.view.Epoch:
		return false
	case won, s.word != 0 && !c.view.Busy && c.committed(s):
		c.free(s.old, s.inc) // this client has completed it, or a master
		s.old = 0
		if s.word.Empty() { // a DELETE's object: no slot points at it
			c.layTag(s.unit, s.class, anyTag, 0)
		}
	case s.word != 0 && c.holdsWord(s):
		return false
	case !own && s.word == 0: // a node's, which may have been written in part
		c.layTag(s.unit, s.class, anyTag, 0)
	case own && c.writeHeads([]place{p}, true) != nil:
		// Its first trip may have written some replicas only. All have to be free by their marks
		// before it is used again, and one does not answer: try again later.
		return false
	default:
		c.layTag(s.unit, s.class, int32(c.tag(s.incarnation)), s.incarnation)
	}
	c.freeReplaced(s)
	return true
}

// freeReplaced frees what an unresolved write was to replace, if the slot holds it no longer. This
// write may have replaced it, and then no other client frees it. If another one did, both free it:
// a mark names the incarnation, so that the second one changes nothing. A slot that cannot be read
// leaves it to a sweep.
func (c *Client) freeReplaced(s *unresolvedWrite) {
	if !s.old.Live() {
		return
	}
	if w, err := c.readSlot(stepReadSlots, s.slot, 0); err == nil && w != s.old {
		c.free(s.old, s.inc)
	}
}

// hasWon reports whether an unresolved write's round is known to have ended with its word,
// whatever its slot holds by now. A backup that held the word then, and that masters saw, is the
// evidence.
func (c *Client) hasWon(s *unresolvedWrite) bool {
	over := s.ended || s.epoch != c.view.Epoch
	return s.holders != nil && over && !s.flying && !c.view.Busy && c.kept(s.wonAt, s.holders)
}

// committed reports whether an unresolved write's slot holds its word for good: its round has
// ended, or the view is idle and of a later epoch. In the latter case all replicas had the same
// word when it became idle, and no client proposes the write's word any more.
func (c *Client) committed(s *unresolvedWrite) bool {
	w, err := c.readSlot(stepReadSlots, s.slot, 0)
	return err == nil && w == s.word
}

// holdsWord reports whether some replica of an unresolved write's slot still holds its word,
// pending or final. It also reports true when a replica does not answer.
func (c *Client) holdsWord(s *unresolvedWrite) bool {
	for r := range c.index.Copies(s.slot) {
		w, err := c.readSlot(stepReadSlots, s.slot, r)
		if err != nil || w == s.word || s.word.Live() && w == s.word.Pending() {
			return true
		}
	}
	return false
}
