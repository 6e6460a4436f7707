package fusee

import (
	"fmt"

	"github.com/farkv/farkv/client/fusee/layout"
	"github.com/farkv/farkv/client/fusee/recovery"
	"github.com/farkv/farkv/client/fusee/session"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node/rdma"
)

// Where everything lies follows from the pool's view. An item's replicas are its original ones on
// nodes that are not gone, in their order, and then those on stand-ins, in the order in which
// they came. So the first replica, the primary, changes only when its node died.
//
// What a client relies on:
//   - Masters change slots and tables only in a busy view, and only when no verb of an earlier
//     epoch can land any more. So a client that has joined a busy view only reads; it writes
//     again when the view is idle.
//   - In an idle view all replicas of a slot were equal when it became idle. A write that the
//     change cut off finds its outcome there: see resolve.
//   - A primary that is read was never anything but the primary. So readers need not know the
//     view until a node fails them.

// resolve finds out how a write ended that a change of the view cut off. It relies on the master:
// in the next idle view all replicas of the slot are equal. When resolve itself is cut off, it
// waits again, up to the operation's deadline. An undecided verdict comes with an error that
// wraps client.ErrUncertain.
func (wr *writer) resolve(w *write, op layout.Opcode, cause error) (verdict, error) {
	for r := wr.s.Pace; ; {
		v, cut, err := wr.resolveOnce(w, op, cause)
		if !cut || !session.Interrupted(err) || !r.Again() {
			return v, err
		}
		cause = err
	}
}

// resolveOnce is resolve within one view. With cut set it failed before it knew the outcome, and
// may be tried in the next view.
//
// It reads the primary alone: in an idle view all replicas are equal but for rounds that began in
// that view.
func (wr *writer) resolveOnce(w *write, op layout.Opcode, cause error) (v verdict, cut bool, err error) {
	ok, err := wr.views.settled(cause)
	if err != nil {
		return undecided, false, cause
	}
	// A split may have moved the slot.
	w.slot = wr.s.Index.Where(w.slot, w.hash)
	if !ok {
		// The node did not answer this client alone, and answers now. Nothing is in flight, and
		// no master will come. So the client ends its own round, as recovery would if the client
		// were dead: other writers may be waiting for it.
		word, ended, err := recovery.FinishOwn(wr.s, w.slot, w.obj.Unit, op)
		if word == w.new {
			wr.decide(w)
		}
		switch {
		case err != nil:
			return undecided, true, uncertain("write a slot", err)
		case !ended:
			v, err := wr.awaitWinner(w)
			return v, err != nil, err
		case word != 0 && word == w.new && !w.yielded:
			return won, false, nil
		case word != 0 && op == layout.OpInsert:
			return gaveWay, false, nil
		}
	}
	now, err := wr.s.ReadSlot(session.StepReadPrimary, w.slot, 0)
	if err != nil {
		return undecided, true, uncertain("write a slot", err)
	}
	switch { // an INSERT's word may be pending still where its slot has one replica
	case w.pending == 0 || now != w.pending:
	case w.finalizing && !w.yielded:
		if err := wr.casPrimary(session.StepFinalize, w, now, w.new); err != nil {
			return undecided, true, uncertain("write a slot", err)
		}
		return won, false, nil
	default:
		v, err := wr.giveWay(w)
		return v, err != nil, err
	}
	if v, err = wr.outcome(w, op, now, cause); v != undecided {
		return v, false, err
	}
	switch before, known, failed := wr.pairs.predecessor(now); {
	case failed != nil:
		return undecided, true, uncertain("write a slot", failed)
	case known && before == w.new:
		return won, false, nil
	case known && before == w.old:
		return lost, false, nil // no UPDATE gets here
	}
	return undecided, false, err
}

// outcome tells how a write ended, by what its slot holds in an idle view, in which all replicas
// are equal:
//   - The slot holds the write's word: it has won, or given way where that word is a tombstone.
//   - It holds the old word: the master took the proposal back.
//   - It holds another word, and the write had been decided on a backup that the master saw: it
//     had won, and was replaced since.
//   - Otherwise another write came after an UPDATE or instead of it. The UPDATE is ordered just
//     before that write: it counts as overtaken.
//   - Nothing completes a pending word. So an INSERT that had not made its word final has lost.
//
// Otherwise the write is undecided, and the error is the cause.
func (wr *writer) outcome(w *write, op layout.Opcode, now race.Word, cause error) (verdict, error) {
	v := won
	if w.yielded {
		v = gaveWay
	}
	switch {
	case now == w.new:
		wr.commitLate(w)
		return v, nil
	case now == w.old:
		return lost, wr.again(w, op)
	case w.yielded, w.decided && wr.s.Kept(w.decidedAt, w.holders):
		return v, nil
	case op == layout.OpUpdate:
		return overtaken, nil
	case op == layout.OpInsert && !w.finalizing:
		return lost, nil
	}
	return undecided, cause
}

// commitLate commits the log of a write that a master completed, so that recovery knows what the
// write replaced. It may fail: when this client dies before it frees what it replaced, a sweep
// finds that.
func (wr *writer) commitLate(w *write) {
	if !w.decided {
		b := wr.s.Batch()
		defer b.Release()
		wr.logOld(b, w)
		_ = wr.s.Do(session.StepCommitLog, b)
	}
}

// errUndone is wrapped when an UPDATE was undone in the view in which it was proposed. It begins
// again at once: no later view comes, and verbs of other writes may be in flight in this one.
var errUndone = fmt.Errorf("undone: %w", rdma.ErrStale)

// again returns the error of a write that was undone. An UPDATE begins again when it gets
// ErrStale; DELETE and INSERT begin again at the verdict lost.
func (wr *writer) again(w *write, op layout.Opcode) error {
	switch {
	case op != layout.OpUpdate:
		return nil
	case w.epoch == wr.s.View.Epoch:
		return fmt.Errorf("write a slot: %w", errUndone)
	}
	return fmt.Errorf("write a slot: undone: %w", rdma.ErrStale)
}
