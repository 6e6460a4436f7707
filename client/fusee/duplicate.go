package fusee

import (
	"github.com/farkv/farkv/client/fusee/session"
	"github.com/farkv/farkv/client/fusee/snapshot"
	"github.com/farkv/farkv/client/race"
)

// Two INSERTs of one key may find different empty slots, and both win theirs. In RACE an inserter
// looks again after its CAS, but a reader may have seen the loser's value by then. Here an
// inserter that has won its slot looks for others before it changes the primary. Readers see only
// the primary.
//
// Inserters make themselves visible on the first backup, the index's witness, before they look
// there. So of two, at least one sees the other. The one with the higher slot gives way: it ends
// its round with a tombstone. The one with the lower slot waits until the other has given way,
// lost, or committed. If the other committed, the lower one gives way. Waits lead from lower to
// higher slots only, so there is no deadlock.
//
// Until it has looked, an INSERT's word is pending. Then the word is made final on all backups,
// before the primary is CASed. That is a trip more than the paper's four, and recovery relies on
// it. Two pending words of one key may be on all backups of their slots. If both primaries died,
// nothing would tell which of them was committed. With the final word, neither was, and both may
// give way; and there are never two final ones.
//
// With one index replica there is no backup. The primary is its own witness: it holds the pending
// word, which readers do not see, until the word is made final.

// fate is what another INSERT of the key has come to, as far as two reads of its slot say.
type fate uint8

const (
	noRival fate = iota // there is none, or it is gone
	exists              // it has committed: the key exists
	rival               // it has proposed, and may commit
	unsure              // its slot is between two words: read again
)

// alone reports whether w's INSERT may commit: no other slot of its key's buckets holds the key,
// nor will. The view is the witness's, read after w was proposed there: an INSERT that is not in
// it will see w. It is the caller's.
func (wr *writer) alone(w *write, view *race.View) (bool, error) {
	for i := range race.Candidates {
		s, word := view.Slot(i)
		// w's own slot, and words of other fingerprints, are not the key's.
		if s == w.slot || word.Print() != race.Print(w.hash) {
			continue
		}
		if word == w.seen[i] && !word.IsPending() {
			continue // the primary had the same word when this operation found that the key is not there
		}
		alone, err := wr.outlast(w, s)
		if !alone || err != nil {
			return false, err
		}
	}
	return true, nil
}

// outlast waits until slot s cannot come to hold w's key. It returns false when w must give way
// to the other INSERT. To give way is always safe, so it does at the operation's deadline.
func (wr *writer) outlast(w *write, s race.Slot) (bool, error) {
	for r := wr.s.Pace; ; {
		f, err := wr.look(w, s)
		switch {
		case err != nil:
			return false, err
		case f == noRival:
			return true, nil
		case f == exists, f == rival && s < w.slot:
			return false, nil
		case !r.Again():
			return false, nil
		}
	}
}

// look reads slot s on witness and primary, and returns what the words mean for w's key. The
// primary decides whether the key exists. A word that only the witness holds is a proposal.
func (wr *writer) look(w *write, s race.Slot) (fate, error) {
	b := wr.s.Batch()
	op := b.Read(wr.s.Index.Address(s, 0), 8)
	seen := op
	// With one replica the primary is the witness.
	if wr.s.Index.Copies(s) > 1 {
		seen = b.Read(wr.s.Index.Address(s, 1), 8)
	}
	err := wr.s.Do(session.StepReadRival, b)
	primary, witness := session.WordOf(op), session.WordOf(seen)
	b.Release()
	if err != nil {
		return unsure, err
	}
	print := race.Print(w.hash)
	// Readers see the primary: a live pair of the key there exists.
	if primary.Live() && primary.Print() == print {
		switch same, known, err := wr.pairs.isKey(primary, w.key); {
		case err != nil || !known:
			return unsure, err
		case same:
			return exists, nil
		}
	}
	// A word of the fingerprint that the witness has and the primary does not is a proposal.
	switch {
	case witness.Print() == print && !witness.Empty() && (witness != primary || witness.IsPending()):
		switch same, known, err := wr.pairs.isKey(witness, w.key); {
		case err != nil || !known:
			return unsure, err
		case same:
			return rival, nil
		}
		return noRival, nil // another key's pair: this key was not in the slot when that was proposed
	case witness == primary:
		return noRival, nil
	case witness.Print() == print && witness.Empty():
		return unsure, nil // a DELETE, perhaps of this key, between its backups and its primary
	}
	return noRival, nil // proposals of other keys are made only where this key is not
}

// giveWay ends a won round with a tombstone instead of w's pair. A crash in between leaves the
// slot to recovery, which lets the INSERT give way, too. An error wraps client.ErrUncertain, and
// the verdict is undecided. The caller gives back the object.
func (wr *writer) giveWay(w *write) (verdict, error) {
	wr.s.Stats.Yields++
	tombstone, err := wr.s.Tombstone(race.Print(w.hash))
	if err != nil {
		return undecided, uncertain("give way", err)
	}
	w.yielded = true
	// The tombstone goes where the final word would have gone, in the same order.
	if wr.s.Index.Copies(w.slot) == 1 {
		w.new = tombstone
		if err := wr.casPrimary(session.StepGiveWay, w, w.pending, w.new); err != nil {
			return undecided, uncertain("give way", err)
		}
		return gaveWay, nil
	}
	err = wr.changeBackups(session.StepGiveWay, w, tombstone)
	if err == nil {
		wr.decide(w)
		err = wr.casPrimary(session.StepGiveWay, w, w.old, w.new)
	}
	if err != nil {
		return undecided, uncertain("give way", err)
	}
	return gaveWay, nil
}

// writeSingle is a WRITE of a slot that has one replica: the CAS is the whole round. The log is
// committed in the same trip, so that recovery knows what was replaced and has to be freed. A
// write that lost has such a log, too. That does no harm: recovery frees nothing that a slot
// still names, and marks only the incarnation in the log.
//
// For an INSERT the CAS brings the pending word. The fenced READ of the buckets in the same trip
// comes after the CAS, so that of two INSERTs at least one sees the other. A crash leaves a
// pending word, which readers do not see, and recovery turns into a tombstone.
func (wr *writer) writeSingle(w *write) (verdict, error) {
	b := wr.s.Batch()
	defer b.Release()
	// An INSERT replaces no pair, but its log shows a client that was cut off what was there
	// before.
	wr.logOld(b, w)
	op := b.CompareSwap(wr.s.Index.Address(w.slot, 0), uint64(w.old), uint64(w.new))
	var view race.View
	if w.key != nil {
		view = wr.s.Index.Read(b, wr.s.Index.Locate(w.hash), 0)
		view.Fence()
	}
	// From here on the word may be in the slot.
	w.visible = true
	err := wr.s.Do(session.StepCASPrimary, b)
	if err != nil {
		return undecided, uncertain("write a slot", err)
	}
	// The CAS is complete, so it is known whether the word is there.
	w.visible = op.Swapped()
	if !op.Swapped() {
		wr.s.Stats.Rules[0]++
		return lost, nil
	}
	wr.s.Stats.Rules[snapshot.Rule1]++
	if w.key == nil {
		return won, nil
	}
	alone, err := wr.alone(w, &view)
	switch {
	case err != nil:
		return undecided, uncertain("insert", err)
	case !alone:
		return wr.giveWay(w)
	}
	// There is no rival: the word becomes final, and readers see it.
	w.new, w.finalizing = w.new.Final(), true
	if err := wr.casPrimary(session.StepFinalize, w, w.pending, w.new); err != nil {
		return undecided, uncertain("insert", err)
	}
	return won, nil
}
