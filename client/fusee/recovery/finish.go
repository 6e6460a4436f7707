package recovery

import (
	"fmt"

	"github.com/farkv/farkv/client/fusee/layout"
	"github.com/farkv/farkv/client/fusee/session"
	"github.com/farkv/farkv/client/fusee/snapshot"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node/rdma"
)

// rounds ends the rounds that a dead client has left, or that this client left itself.
type rounds struct {
	s *session.Session
	// dead is the client; 0: none.
	dead rdma.ClientID
	// ops has, by unit, the complete objects that the dead client wrote last, and their
	// operations. A word that points at one of them is the dead client's.
	ops map[uint64]layout.Opcode
	// numbers of the dead client, above all that it used. They are read when they are needed.
	numbers *session.Numbers
	// olds is what writes replaced. It is freed after the rest.
	olds []layout.Object
	// result is the word that has won the last round.
	result race.Word
}

// finish ends the dead client's round on a slot: its word goes where SNAPSHOT would have brought
// it, or a tombstone does where an INSERT gives way. Live writers of the slot go on meanwhile, by
// the same rules.
//
// The dead client's writes have two stages. Before it knew that it had won, its word was one
// proposal among others: the master completes the broadcast and evaluates the rules. Once an
// INSERT's word is final somewhere, or its tombstone stands beside its pair, the client had won.
// A slot may have several of its words, of operations that it gave up.
//
// It returns false when another writer has won. That writer, or its recovery, completes the
// round. Until then the dead client's words stay where they are, and what they point at is left
// to a sweep.
//
// The object, unless nil, is one of the dead client's that has the slot among its key's. Its log
// is told what is replaced.
//
// What the steps of an attempt rely on, in their order:
//   - fill: all backups have been changed in the round then, so no proposal that comes later can
//     win it.
//   - The rules are evaluated while the primary has its old word: the list is of one round.
//   - The backups get the round's word before the primary: Mend takes what all backups hold, if
//     that is final.
//   - The log is committed before the primary changes: cleaning the object's block frees what was
//     replaced.
//
// A crash leaves the round as the dead client could have left it: the next master begins again.
func (r *rounds) finish(s race.Slot, o *remains) (bool, error) {
	for retry := r.s.RetryUntil(session.ALittleBit, r.s.WaitLimit()); ; {
		did, err := r.finishOnce(s, o)
		if did != lookAgain || err != nil {
			return did == ended, err
		}
		if !retry.Again() {
			return false, session.TimedOut(fmt.Sprintf("finish a dead client's write of slot %d", s))
		}
	}
}

// outcome is how an attempt to end a round ended.
type outcome uint8

const (
	lookAgain outcome = iota // the slot changed: try again
	ended                    // nothing of the dead client is left to be decided
	lostRound                // another writer has won
)

// after returns ended when a CAS has swapped.
func after(swapped bool, err error) (outcome, error) {
	if swapped && err == nil {
		return ended, nil
	}
	return lookAgain, err
}

// finishOnce is one attempt. Each CAS expects the word that was read, so a slot that changed in
// between ends the attempt without harm. The primary changes last: until then a successor finds
// the same round.
func (r *rounds) finishOnce(s race.Slot, o *remains) (outcome, error) {
	p, err := r.s.ReadSlot(session.StepFinish, s, 0)
	if err != nil {
		return lookAgain, err
	}
	// The backups are read after the primary and before it is read again, so that these are the
	// words that they held while p was there. In one trip, some backups may be read before the
	// round of p, and hold a word of the dead client's last round.
	words, err := r.readCopies(s, p)
	if err != nil {
		return lookAgain, err
	}
	list := words[1:]
	// The only replica: a pending word gives way, and any other is the slot's.
	if len(list) == 0 {
		if !p.IsPending() || !r.wrote(p) {
			return ended, nil
		}
		if r.result, err = r.tombstone(p); err != nil {
			return lookAgain, err
		}
		return after(r.cas(s, []race.Word{p}, 0, r.result))
	}
	own := r.standing(p, list)
	if own.word == 0 {
		return ended, nil
	}
	// Before it was decided, the dead client's proposal may not have reached all backups.
	if !own.decided {
		filled, err := r.fill(s, p, list, own.word)
		if filled || err != nil {
			return lookAgain, err
		}
	}
	now, err := r.s.ReadSlot(session.StepFinish, s, 0)
	if err != nil || now != p {
		return lookAgain, err
	}
	// The primary still holds p, so the list is of one round, and rule 3 may be used.
	target := own.word
	if !own.decided {
		if target, _ = snapshot.Winner(list); r.s.Sequential {
			target = list[0]
		}
		if !r.wrote(target) {
			return lostRound, nil
		}
	}
	// A pending word that has won is an INSERT's, which gives way.
	if target.IsPending() {
		if target, err = r.tombstone(target); err != nil {
			return lookAgain, err
		}
	}
	// Backups first, so that all of them hold the target when the primary changes.
	for i := range list {
		if list[i] == target {
			continue
		}
		if ok, err := r.cas(s, words, 1+i, target); !ok || err != nil {
			return lookAgain, err
		}
	}
	// The log comes before the primary, as in commit.
	if err := r.logReplaced(o, p); err != nil {
		return lookAgain, err
	}
	r.result = target // no other word can win now, also when this CAS fails
	if ok, err := r.cas(s, words, 0, target); !ok || err != nil {
		return lookAgain, err
	}
	return ended, nil
}

// logReplaced commits the log of an object before the master's own CAS of a primary that holds p,
// as the client would have done. When the object's block is cleaned, what was replaced is freed.
// A crash before the CAS leaves a log that names what the slot still has, which is not freed
// then.
//
// An object has one log. Where it has replaced another object, too, p is freed at the end of this
// recovery.
func (r *rounds) logReplaced(o *remains, p race.Word) error {
	if o == nil || !p.Live() || o.replaced == p {
		return nil
	}
	// The slot has only the tag: the object itself has its incarnation.
	front, err := r.s.Read(session.StepFinish, r.s.Space.UnitAt(p.Unit(), 0), layout.HeadBytes)
	if err != nil {
		return err
	}
	h := layout.HeadOf(front)
	if r.s.Tag(h.Incarnation) != p.Tag() {
		return nil // the slot has changed
	}
	if o.replaced != 0 || r.s.NodeCentric {
		r.replaced(p, h.Incarnation)
		return nil
	}
	b := r.s.Batch()
	defer b.Release()
	log := b.Alloc(layout.CommitBytes)
	layout.PutLog(log, p, h.Incarnation)
	for c := range r.s.Space.CopiesOf(o.Unit) {
		b.Write(r.s.Space.UnitAt(o.Unit, c).Add(uint64(o.OldAt)), log)
	}
	o.replaced, o.oldInc = p, h.Incarnation
	return r.s.Do(session.StepFinish, b)
}

// readCopies returns what all replicas of a slot hold, in one trip. The primary's word is known.
func (r *rounds) readCopies(s race.Slot, primary race.Word) ([]race.Word, error) {
	words := make([]race.Word, r.s.Index.Copies(s))
	words[0] = primary
	b := r.s.Batch()
	defer b.Release()
	for i := range words[1:] {
		b.Read(r.s.Index.Address(s, 1+i), 8)
	}
	if err := r.s.Do(session.StepFinish, b); err != nil {
		return nil, err
	}
	for i := range words[1:] {
		words[1+i] = session.WordOf(b.Op(i))
	}
	return words, nil
}

// cas replaces one replica's word, if it is still as it was read.
func (r *rounds) cas(s race.Slot, words []race.Word, replica int, to race.Word) (bool, error) {
	found, err := r.s.Swap(session.StepFinish, r.s.Index.Address(s, replica), uint64(words[replica]), uint64(to))
	return race.Word(found) == words[replica], err
}

// stand is what the dead client has on a slot's backups: the word that its round is about. The
// zero word means that it has none.
type stand struct {
	word    race.Word
	decided bool // the client knew that it had won: its word is an INSERT's second one
}

// standing finds the dead client's words on the backups of a slot of which the primary holds p.
// Words that are equal to the primary's do not count. Of several a tombstone counts before a
// final word, and that before a pending one. A tombstone or final word is decided if it is an
// INSERT's.
//
// Several words of one client occur on a slot when it gave operations up and went on: each proposed
// a word to the same old value, and some CASes of each succeeded.
func (r *rounds) standing(p race.Word, list []race.Word) (st stand) {
	var pending, final, tombstone race.Word
	for _, w := range list {
		switch {
		case w == p || !r.wrote(w):
		case w.Empty():
			tombstone = w
		case w.IsPending():
			pending = w
		default:
			final = w
		}
	}
	// An INSERT proposes a pending word. Its final word, or a tombstone beside its pending one,
	// is its second.
	inserts := pending != 0 || final != 0 && r.ops[final.Unit()] == layout.OpInsert
	switch {
	case tombstone != 0:
		return stand{tombstone, inserts}
	case final != 0:
		return stand{final, inserts}
	}
	return stand{pending, false}
}

// fill proposes the dead client's word to the backups that its broadcast did not reach. It
// returns true when there were any: then the slot has to be read again. FUSEE-CR asks the first
// backup only.
//
// Filling makes the list complete for good: no backup has the old word any more, so no other
// proposal of this round succeeds.
func (r *rounds) fill(s race.Slot, p race.Word, list []race.Word, own race.Word) (bool, error) {
	if r.s.Sequential {
		return false, nil
	}
	b := r.s.Batch()
	defer b.Release()
	for i, w := range list {
		if w == p {
			b.CompareSwap(r.s.Index.Address(s, 1+i), uint64(p), uint64(own))
		}
	}
	if b.Len() == 0 {
		return false, nil
	}
	return true, r.s.Do(session.StepFinish, b)
}

// tombstone returns a word of the dead client's own that it has never used, for an INSERT that
// gives way. A successor of this master takes it for the dead client's, too. The ceiling is
// raised first, so no later holder of the identity uses it.
func (r *rounds) tombstone(pending race.Word) (race.Word, error) {
	if r.numbers == nil {
		n, err := r.s.NumbersOf(r.dead)
		if err != nil {
			return 0, err
		}
		r.numbers = &n
	}
	return r.s.TombstoneOf(r.dead, r.numbers, pending.Print())
}

// wrote reports whether the dead client proposed a word. A tombstone names its client. Other
// words are the client's if they point at an object that it wrote last.
func (r *rounds) wrote(w race.Word) bool {
	if w.Empty() {
		return w != 0 && w.Client() == r.dead
	}
	_, ok := r.ops[w.Unit()]
	return ok
}

// FinishOwn ends this client's own round on a slot, as recovery ends a dead client's (finish). It
// returns the word that has won the round, even when it fails; 0: there was no round to end. It
// is not ended when another writer has won.
func FinishOwn(s *session.Session, slot race.Slot, unit uint64, op layout.Opcode) (
	word race.Word, ended bool, err error) {
	r := &rounds{s: s, dead: s.ID, ops: map[uint64]layout.Opcode{unit: op}, numbers: &s.Numbers}
	ended, err = r.finish(slot, nil)
	return r.result, ended, err
}
