package fusee

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/fusee/layout"
	"github.com/farkv/farkv/client/fusee/session"
	"github.com/farkv/farkv/client/fusee/snapshot"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// write is one WRITE of SNAPSHOT (Algorithm 1): it moves a slot from old, read from the primary,
// to new.
//
// Old and new are unlike any other word that the slot may hold while any client remembers one:
// tags differ, and a tag comes around only after twice the longest operation
// (layout.Layout.Quarantine). So a CAS that lands late finds another word and fails. This keeps
// three and more replicas from being undecided by ABA, and makes "changed from old" mean that the
// round is over.
//
// What a crash leaves:
//   - Before propose: nothing in the slot, and an object that no slot names.
//   - After propose: backups that hold new or other writers' words while the primary holds old.
//     Later writers of the slot wait until recovery (package recovery).
//   - After the primary's CAS: nothing.
type write struct {
	slot race.Slot
	// new is pending while an INSERT has not looked for duplicates. It is the word that this
	// client last proposed or wrote: the final word or a tombstone takes its place.
	old, new race.Word
	obj      *layout.Object
	// inc is the incarnation of what old points at; 0 when it points at nothing.
	inc uint32
	// key is set for an INSERT: its duplicates are looked for. The caller's.
	key []byte
	// hash is that of the key, whatever the operation.
	hash uint64
	// seen is what the primary held in the candidate slots when an INSERT did not find its key: see
	// alone.
	seen *[race.Candidates]race.Word
	// began is a time before old was read. The write is proposed at most a timeout after it.
	began time.Duration
	// list is, by backup, the word to which it was first changed in this round.
	list [layout.MaxReplicas]race.Word
	// visible: some replica may hold new. The object must not be used again before the round is
	// over.
	visible bool
	// epoch is that of the view in which the write was proposed.
	epoch uint64

	// What follows is for resolve, when the view changes in the midst of the write.

	// decided: all backups hold new, which is final. No other writer can win the round.
	decided bool
	// decidedAt is the slot, and holders are its replicas, when that was decided: a split may
	// have moved the pair since.
	decidedAt race.Slot
	holders   []node.Replica
	// pending is the word that an INSERT proposed.
	pending race.Word
	// finalizing: the final word of the INSERT may be on some replica.
	finalizing bool
	// yielded: new is a tombstone, and the INSERT gives way.
	yielded bool
}

// writer writes slots by SNAPSHOT, and finds out how writes ended that a change of the view cut
// off.
//
// Its caller has written the object to all replicas before, and gives back what the verdict leaves
// unused. The writer changes slots and the log of the object, and nothing else.
type writer struct {
	s     *session.Session
	views *follower
	pairs *pairs
}

// verdict is how a write ended.
type verdict uint8

const (
	won       verdict = iota + 1
	lost              // another writer's word replaced old; the round is over
	overtaken         // it won or lost, which is unknown, and its slot has another word since
	gaveWay           // an INSERT found its key elsewhere and left a tombstone
	undecided         // the round may still go either way
)

// write runs w: propose, then commit or wait for the winner. With an undecided verdict the error
// says why, and wraps client.ErrUncertain. With any other the error is nil, unless no replica
// holds the word: then the object may be used again at once.
//
// It proposes nothing when old was read more than a timeout ago: the word may come around by
// then, and the CAS would replace another pair (see Layout.Quarantine).
func (wr *writer) write(w *write) (verdict, error) {
	now := wr.s.Now()
	if late := now - wr.s.Until(); late > 0 {
		return lost, session.TimedOut(fmt.Sprintf("write a slot, %v behind the deadline", late))
	}
	if age := now - w.began; age > wr.s.OpTimeout {
		return lost, session.TimedOut(fmt.Sprintf("write a slot that was read %v ago", age))
	}
	w.epoch = wr.s.View.Epoch
	if w.key != nil {
		w.new = w.new.Pending()
		w.pending = w.new
	}
	if wr.s.Index.Copies(w.slot) == 1 {
		return wr.writeSingle(w)
	}
	var win snapshot.Rule
	var err error
	if wr.s.Sequential {
		win, err = wr.proposeInTurn(w)
	} else {
		win, err = wr.propose(w)
	}
	switch {
	case err != nil && !w.visible:
		return lost, fmt.Errorf("write a slot: %w", err)
	case err != nil:
		return undecided, uncertain("write a slot", err)
	}
	switch win {
	case snapshot.Lose:
		wr.s.Stats.Rules[0]++
		return wr.awaitWinner(w)
	case snapshot.Finish:
		wr.s.Stats.Rules[0]++
		return lost, nil
	}
	wr.s.Stats.Rules[win]++
	return wr.commit(w)
}

// propose CASes all backups from old to new and evaluates the rules (Algorithm 1, lines 6 to 16).
// Under rules 2 and 3 it then gives the winner's word to the other backups. When it fails the
// word may be on any backup, and visible stays set, unless all nodes refused the CASes.
func (wr *writer) propose(w *write) (snapshot.Rule, error) {
	n := wr.s.Index.Copies(w.slot) - 1
	// From here on the word may be on backups.
	w.visible = true
	if err := wr.casBackups(w, w.list[:n]); err != nil {
		return snapshot.Lose, err
	}
	// All CASes are complete: the word is where they found old.
	w.visible = false
	for i, v := range w.list[:n] {
		if v == w.old { // Algorithm 1, line 9
			w.list[i] = w.new
			w.visible = true
		}
	}
	win, err := wr.evaluate(w, w.list[:n])
	if err != nil || win == snapshot.Lose || win == snapshot.Finish || win == snapshot.Rule1 {
		return win, err
	}
	return win, wr.fixBackups(session.StepFixBackups, w, w.list[:n])
}

// casBackups CASes all backups from old to new, in one trip, and stores what they held before. An
// error leaves before as it was: some of the CASes may have landed.
func (wr *writer) casBackups(w *write, before []race.Word) error {
	b := wr.s.Batch()
	defer b.Release()
	for i := range before {
		b.CompareSwap(wr.s.Index.Address(w.slot, 1+i), uint64(w.old), uint64(w.new))
	}
	if err := wr.s.Do(session.StepCASBackups, b); err != nil {
		// A CAS that a node refused changed nothing. The trip is over when the error is of one.
		w.visible = !errors.Is(err, rdma.ErrNoEffect) || !b.HadNoEffect(0, b.Len())
		return err
	}
	for i := range before {
		before[i] = race.Word(b.Op(i).Result)
	}
	return nil
}

// evaluate is Algorithm 2. The list holds what each backup was first changed to in this round.
// Where a CAS was late, it holds what a later round has brought.
//
// Before rule 3 it reads the primary: when that has changed the round is over, and the list may
// be of words of two rounds.
func (wr *writer) evaluate(w *write, list []race.Word) (snapshot.Rule, error) {
	// The words of one round are either all pending, of INSERTs, or none is. A word of the other
	// kind came after the round was decided: it is an INSERT's second word, or of a later round.
	// Ours has not won then.
	if slices.ContainsFunc(list, func(v race.Word) bool { return v.IsPending() != w.new.IsPending() }) {
		return snapshot.Lose, nil
	}
	winner, by := snapshot.Winner(list) // a later round's words lack a majority, and have changed the primary
	if by == snapshot.Rule3 {
		if !w.visible {
			return snapshot.Lose, nil
		}
		now, err := wr.s.ReadSlot(session.StepReadPrimary, w.slot, 0)
		switch {
		case err != nil:
			return snapshot.Lose, err
		case now != w.old:
			return snapshot.Finish, nil
		}
	}
	if winner == w.new {
		return by, nil
	}
	return snapshot.Lose, nil
}

// fixBackups is the winner's second broadcast under rules 2 and 3 (Algorithm 1, line 14): backups
// that another writer changed get the winner's word. No other writer changes them in this round,
// so a CAS that fails is damage. A crash leaves some backups with losers' words; the rules still
// choose the same winner for recovery, since backups only change to the winner's word.
func (wr *writer) fixBackups(step rdma.Step, w *write, list []race.Word) error {
	b := wr.s.Batch()
	defer b.Release()
	for i, v := range list {
		if v != w.new {
			b.CompareSwap(wr.s.Index.Address(w.slot, 1+i), uint64(v), uint64(w.new))
		}
	}
	if err := wr.s.Do(step, b); err != nil {
		return err
	}
	for i := range b.Len() {
		if op := b.Op(i); !op.Swapped() {
			return fmt.Errorf("backup slot %d at %s holds %v, not the loser's %v: %w", w.slot, op.Addr,
				race.Word(op.Result), race.Word(op.Expect), client.ErrDamaged)
		}
	}
	return nil
}

// proposeInTurn is FUSEE-CR: the backups are CASed one after the other, and the first one
// decides. A writer that has changed it finds old on all others, so anything else there is
// damage. A crash leaves the word on the first backups in the order, and recovery brings it to
// the others.
func (wr *writer) proposeInTurn(w *write) (snapshot.Rule, error) {
	for r := 1; r < wr.s.Index.Copies(w.slot); r++ {
		w.visible = true
		before, err := wr.s.Swap(session.StepCASBackups, wr.s.Index.Address(w.slot, r), uint64(w.old), uint64(w.new))
		switch {
		case err != nil:
			return snapshot.Lose, err
		case race.Word(before) == w.old:
		case r == 1:
			w.visible = false
			return snapshot.Lose, nil
		default:
			return snapshot.Lose, fmt.Errorf("replica %d of slot %d holds %v behind the first backup's %v: %w",
				r, w.slot, race.Word(before), w.new, client.ErrDamaged)
		}
	}
	return snapshot.Rule1, nil
}

// commit ends a won round. It writes the log's old value, then changes the primary. An INSERT
// looks for duplicates in the trip that writes the log, and makes its word final on the backups
// in another.
//
// What each step relies on:
//   - The log is complete before the primary changes. So recovery knows what a committed write
//     replaced (FUSEE 4.5).
//   - All backups hold an INSERT's final word before the primary does. So when the primary's node
//     dies, a word that is still pending was not committed.
//
// What a crash leaves: the word on all backups, and the old one on the primary. Recovery
// completes the round. Where no backup has the final word of an INSERT yet, it lets the INSERT
// give way.
func (wr *writer) commit(w *write) (verdict, error) {
	if w.key == nil {
		wr.decide(w)
	}
	b := wr.s.Batch()
	wr.logOld(b, w)
	var view race.View
	if w.key != nil {
		view = wr.s.Index.Read(b, wr.s.Index.Locate(w.hash), 1)
	}
	err := wr.s.Do(session.StepCommitLog, b)
	alone := true
	if err == nil && w.key != nil {
		alone, err = wr.alone(w, &view)
	}
	b.Release()
	if err != nil {
		return undecided, uncertain("commit a slot", err)
	}
	if !alone {
		return wr.giveWay(w)
	}
	if w.key != nil {
		w.finalizing = true
		if err := wr.changeBackups(session.StepFinalizeBackups, w, w.new.Final()); err != nil {
			return undecided, uncertain("commit a slot", err)
		}
		wr.decide(w)
	}
	if err := wr.casPrimary(session.StepCASPrimary, w, w.old, w.new); err != nil {
		return undecided, uncertain("commit a slot", err)
	}
	return won, nil
}

// decide remembers that the round is won whatever happens, and on which replicas that can be
// seen.
func (wr *writer) decide(w *write) {
	w.decided, w.decidedAt, w.holders = true, w.slot, wr.s.Index.PlaceOf(w.slot)
}

// changeBackups replaces w's word on all backups. Only the round's winner may: all of them hold
// its word.
func (wr *writer) changeBackups(step rdma.Step, w *write, to race.Word) error {
	list := w.list[:wr.s.Index.Copies(w.slot)-1]
	for i := range list {
		list[i] = w.new
	}
	w.new = to
	return wr.fixBackups(step, w, list)
}

// casPrimary changes the primary slot. Only the round's winner may, so that a word other than old
// there is damage.
func (wr *writer) casPrimary(step rdma.Step, w *write, old, new race.Word) error {
	at := wr.s.Index.Address(w.slot, 0)
	found, err := wr.s.Swap(step, at, uint64(old), uint64(new))
	if err == nil && race.Word(found) != old {
		err = fmt.Errorf("primary slot %d at %s holds %v, not the winner's old %v: %w",
			w.slot, at, race.Word(found), old, client.ErrDamaged)
	}
	return err
}

// logOld adds the commit of an object's log entry: the old value, its object's incarnation and
// their CRC, on every replica (FUSEE 4.5). The batch owns the buffer.
func (wr *writer) logOld(b *rdma.Batch, w *write) {
	p := b.Alloc(layout.CommitBytes)
	layout.PutLog(p, w.old, w.inc)
	for r := range wr.s.Space.CopiesOf(w.obj.Unit) {
		b.Write(wr.s.Space.UnitAt(w.obj.Unit, r).Add(uint64(w.obj.OldAt)), p)
	}
}

// awaitWinner waits until the round's winner has changed the primary (Algorithm 1, lines 17 to
// 21). The verdict is lost then. At the deadline it returns an error that wraps
// client.ErrUncertain. The verdict is undecided then, unless no replica holds the write's word.
func (wr *writer) awaitWinner(w *write) (verdict, error) {
	for r := wr.s.Pace; ; {
		now, err := wr.s.ReadSlot(session.StepAwaitWinner, w.slot, 0)
		if err != nil {
			if err = wr.views.blip(err); err == nil {
				r.Tries++ // it has waited
				continue
			}
			return undecided, uncertain("wait for the winner of a slot", err)
		}
		if now != w.old {
			return lost, nil
		}
		if !r.Again() {
			err := uncertain("write a slot", session.TimedOut("wait for the winner"))
			if !w.visible {
				return lost, err // no replica holds our word: the object may be used again
			}
			return undecided, err
		}
	}
}
