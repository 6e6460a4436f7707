package fusee

import (
	"fmt"
	"math/bits"
	"slices"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/fusee/layout"
	"github.com/farkv/farkv/client/fusee/memory"
	"github.com/farkv/farkv/client/fusee/recovery"
	"github.com/farkv/farkv/client/fusee/session"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node"
)

// unresolvedWrite is an object of which it is not known whether some replica of a slot still
// holds its word.
type unresolvedWrite struct {
	// The object's journal word is kept as long.
	layout.Object
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
	op layout.Opcode
	// flying: its verbs may still be in flight.
	flying bool
	// ended: the round has ended since.
	ended bool

	// wonAt is the slot, and holders are its replicas, when the word had won the round. nil: it
	// is not known to have won.
	wonAt   race.Slot
	holders []node.Replica
}

// unresolvedWrites are this client's writes of unknown outcome. Their objects and journal words are
// not used again before they are resolved.
//
// A write is resolved in up to three steps, which settle tries before each operation that writes,
// and from time to time while its client reads. Others may be waiting for the write:
//   - Its verbs land or fail: a READ behind them shows that (landWrites), or a new view does
//     (landed).
//   - Its round ends: this client ends it (endRounds), or a master does, by the next idle view.
//   - What it held is given back, by what the slot holds then (settleWrite).
//
// Each write keeps an object, which is pinned in the allocator. While verbs of it may land, or a
// word of it may win, it also keeps a journal word: an operation that finds none free waits
// (journalWord).
type unresolvedWrites struct {
	s    *session.Session
	mem  *memory.Allocator
	list kit.Unresolved[unresolvedWrite]
	// failed is the last failure of a verb that kept the last settle from resolving a write. nil:
	// the writes that are left wait for other writers.
	failed error
}

// keep adds an unresolved write. Its object stays out of use, and its block this client's.
func (u *unresolvedWrites) keep(s unresolvedWrite) {
	u.list.Keep(s)
	u.mem.Pin(s.Object)
}

// endRounds ends the rounds that this client's writes of unknown outcome have left, now that
// their nodes answer again: other clients wait for them, and so would the client itself. If
// another writer's word has won a round, that writer completes it. Rounds of which the nodes do
// not answer stay for the next time. Rounds are not ended under a busy view: only the master
// changes slots then.
func (u *unresolvedWrites) endRounds(current bool) {
	for i := range u.list {
		s := &u.list[i]
		if current && !u.s.View.Busy && !s.ended && !s.flying && s.word != 0 {
			word, ended, err := recovery.FinishOwn(u.s, s.slot, s.Unit, s.op)
			s.ended = !u.fails(err) && ended
			if word == s.word {
				s.wonAt, s.holders = s.slot, u.s.Index.PlaceOf(s.slot)
			}
		}
	}
}

// settle resolves the writes that can be, and gives back what they hold. Without unresolved writes
// it posts nothing. Behind a change of the view it ends no round, and finds out about no verbs.
func (u *unresolvedWrites) settle(current bool) {
	u.failed = nil
	if current {
		u.landWrites()
	}
	u.endRounds(current)
	u.list.Resolve(func(s *unresolvedWrite) bool {
		if !u.settleWrite(s) {
			return false
		}
		u.mem.Unpin(s.Unit)
		return true
	})
}

// settleAll resolves all writes. A write whose round another writer has won is resolved when that
// writer has changed the primary, which takes it one more trip: it is waited for. The error wraps
// client.ErrUncertain, and what failed.
func (u *unresolvedWrites) settleAll(current bool) error {
	for r := u.s.RetryUntil(session.ALittleBit, u.s.WaitLimit()); ; {
		u.settle(current)
		n := len(u.list)
		switch {
		case n == 0:
			return nil
		case u.failed != nil:
			return fmt.Errorf("of %d writes: %w: %w", n, client.ErrUncertain, u.failed)
		case !r.Again():
			return fmt.Errorf("of %d writes: %w", n, client.ErrUncertain)
		}
	}
}

// fails reports whether there is an error, and notes it.
func (u *unresolvedWrites) fails(err error) bool {
	if err != nil {
		u.failed = err
	}
	return err != nil
}

// settleWrite reports whether a write is resolved. What it held is given back then: the object,
// if no replica of its slot holds its word, and what it replaced, if it has won.
func (u *unresolvedWrites) settleWrite(s *unresolvedWrite) bool {
	own := u.mem.Reclaim.Owns(s.Object)
	won := u.hasWon(s)
	if won {
		// Others may have replaced its word since: only its client frees what it replaced.
		u.mem.Reclaim.Free(s.old, s.inc)
		s.old = 0
	}
	switch {
	case u.mem.Reclaim.Over(s.Object):
		// It has won, and was replaced and freed since.
	case !own && !u.s.NodeCentric: // its block was left, and this object in it as one in use
	case s.flying, s.word != 0 && !s.ended && s.epoch == u.s.View.Epoch:
		return false
	case won, s.word != 0 && !u.s.View.Busy && u.committed(s):
		u.mem.Reclaim.Free(s.old, s.inc) // this client has completed it, or a master
		s.old = 0
		if s.word.Empty() { // a DELETE's object: no slot points at it
			u.mem.Reclaim.LayAny(s.Object)
		}
	case s.word != 0 && u.holdsWord(s):
		return false
	case !own && s.word == 0: // a node's, which may have been written in part
		u.mem.Reclaim.LayAny(s.Object)
	case own && u.fails(u.mem.Reclaim.MarkFree(s.Object)):
		// Its first trip may have written some replicas only. All have to be free by their marks
		// before it is used again, and one does not answer: try again later.
		return false
	default:
		u.mem.Reclaim.Lay(s.Object)
	}
	u.freeReplaced(s)
	return true
}

// freeReplaced frees what an unresolved write was to replace, if the slot holds it no longer. This
// write may have replaced it, and then no other client frees it. If another one did, both free it:
// a mark names the incarnation, so that the second one changes nothing. A slot that cannot be read
// leaves it to a sweep.
func (u *unresolvedWrites) freeReplaced(s *unresolvedWrite) {
	if !s.old.Live() {
		return
	}
	if w, err := u.s.ReadSlot(session.StepReadSlots, s.slot, 0); err == nil && w != s.old {
		u.mem.Reclaim.Free(s.old, s.inc)
	}
}

// hasWon reports whether an unresolved write's round is known to have ended with its word,
// whatever its slot holds by now. A backup that held the word then, and that masters saw, is the
// evidence.
func (u *unresolvedWrites) hasWon(s *unresolvedWrite) bool {
	over := s.ended || s.epoch != u.s.View.Epoch
	return s.holders != nil && over && !s.flying && !u.s.View.Busy && u.s.Kept(s.wonAt, s.holders)
}

// committed reports whether an unresolved write's slot holds its word for good: its round has
// ended, or the view is idle and of a later epoch. In the latter case all replicas had the same
// word when it became idle, and no client proposes the write's word any more.
func (u *unresolvedWrites) committed(s *unresolvedWrite) bool {
	w, err := u.s.ReadSlot(session.StepReadSlots, s.slot, 0)
	return !u.fails(err) && w == s.word
}

// holdsWord reports whether some replica of an unresolved write's slot still holds its word,
// pending or final. It also reports true when a replica does not answer.
func (u *unresolvedWrites) holdsWord(s *unresolvedWrite) bool {
	for r := range u.s.Index.Copies(s.slot) {
		w, err := u.s.ReadSlot(session.StepReadSlots, s.slot, r)
		if u.fails(err) || w == s.word || s.word.Live() && w == s.word.Pending() {
			return true
		}
	}
	return false
}

// landWrites finds out whether the verbs of unresolved writes are still in flight. When a node does
// not answer nothing is learned. If none may be in flight it posts nothing.
func (u *unresolvedWrites) landWrites() {
	flying := slices.ContainsFunc(u.list, func(s unresolvedWrite) bool { return s.flying })
	if flying && !u.fails(u.s.Fence()) {
		u.landed()
	}
}

// landed notes that no verb of an unresolved write is in flight any more: in another view verbs of
// an earlier epoch cannot land.
func (u *unresolvedWrites) landed() {
	for i := range u.list {
		u.list[i].flying = false
	}
}

// freeWord returns the index of a journal word that no unresolved write holds.
func (u *unresolvedWrites) freeWord() (index int, ok bool) {
	held := uint64(0)
	for i := range u.list {
		if w := &u.list[i]; w.flying || w.word != 0 {
			held |= 1 << w.Journal
		}
	}
	i := bits.TrailingZeros64(^held)
	return i, i < layout.JournalWords
}

// followPairs finds the slots of unresolved writes, which splits have moved.
func (u *unresolvedWrites) followPairs() {
	for i := range u.list {
		s := &u.list[i]
		s.slot = u.s.Index.Where(s.slot, s.hash)
	}
}
