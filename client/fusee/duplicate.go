package fusee

import (
	"bytes"

	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node/rdma"
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
func (c *Client) alone(w *write, view *race.View) (bool, error) {
	for i := range race.Candidates {
		s, word := view.Slot(i)
		// w's own slot, and words of other fingerprints, are not the key's.
		if s == w.slot || word.Print() != race.Print(w.hash) {
			continue
		}
		if word == c.scratch[i] && !word.IsPending() {
			continue // the primary had the same word when this operation found that the key is not there
		}
		alone, err := c.outlast(w, s)
		if !alone || err != nil {
			return false, err
		}
	}
	return true, nil
}

// outlast waits until slot s cannot come to hold w's key. It returns false when w must give way
// to the other INSERT. To give way is always safe, so it does at the operation's deadline.
func (c *Client) outlast(w *write, s race.Slot) (bool, error) {
	for r := c.pace; ; {
		f, err := c.look(w, s)
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
func (c *Client) look(w *write, s race.Slot) (fate, error) {
	b := c.ep.Batch()
	op := b.Read(c.index.Address(s, 0), 8)
	seen := op
	// With one replica the primary is the witness.
	if c.index.Copies(s) > 1 {
		seen = b.Read(c.index.Address(s, 1), 8)
	}
	err := c.do(stepReadRival, b)
	primary, witness := slotWord(op), slotWord(seen)
	b.Release()
	if err != nil {
		return unsure, err
	}
	print := race.Print(w.hash)
	// Readers see the primary: a live pair of the key there exists.
	if primary.Live() && primary.Print() == print {
		switch same, known, err := c.isKey(primary, w.key); {
		case err != nil || !known:
			return unsure, err
		case same:
			return exists, nil
		}
	}
	// A word of the fingerprint that the witness has and the primary does not is a proposal.
	switch {
	case witness.Print() == print && !witness.Empty() && (witness != primary || witness.IsPending()):
		switch same, known, err := c.isKey(witness, w.key); {
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

// isKey reports whether a word's object is a pair of the given key. It is not known when the
// object was used again since: then the slot holds another word by now.
func (c *Client) isKey(w race.Word, key []byte) (same, known bool, err error) {
	b := c.ep.Batch()
	defer b.Release()
	op, err := c.readPair(b, w)
	if err == nil {
		err = c.do(stepReadRival, b)
	}
	if err != nil {
		return false, false, err
	}
	pair, known := c.pairOf(w, op.Buf)
	return known && bytes.Equal(pair.key, key), known, nil
}

// giveWay ends a won round with a tombstone instead of w's pair. A crash in between leaves the
// slot to recovery, which lets the INSERT give way, too. An error wraps client.ErrUncertain, and
// the verdict is undecided. The caller gives back the object.
func (c *Client) giveWay(w *write) (verdict, error) {
	c.stats.Yields++
	tombstone, err := c.tombstone(race.Print(w.hash))
	if err != nil {
		return undecided, uncertain("give way", err)
	}
	w.yielded = true
	// The tombstone goes where the final word would have gone, in the same order.
	if c.index.Copies(w.slot) == 1 {
		w.new = tombstone
		if err := c.casPrimary(stepGiveWay, w, w.pending, w.new); err != nil {
			return undecided, uncertain("give way", err)
		}
		return gaveWay, nil
	}
	err = c.changeBackups(stepGiveWay, w, tombstone)
	if err == nil {
		c.decide(w)
		err = c.casPrimary(stepGiveWay, w, w.old, w.new)
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
func (c *Client) writeSingle(w *write) (verdict, error) {
	b := c.ep.Batch()
	// An INSERT replaces no pair, but its log shows a client that was cut off what was there
	// before.
	c.logOld(b, w)
	op := b.CompareSwap(c.index.Address(w.slot, 0), uint64(w.old), uint64(w.new))
	var view race.View
	if w.key != nil {
		view = c.index.Read(b, c.index.Locate(w.hash), 0)
		view.Fence()
	}
	// From here on the word may be in the slot.
	w.visible = true
	err := c.do(stepCASPrimary, b)
	if err != nil {
		b.Release()
		return undecided, uncertain("write a slot", err)
	}
	// The CAS is complete, so it is known whether the word is there.
	w.visible = op.Swapped()
	if !op.Swapped() {
		b.Release()
		c.stats.Rules[0]++
		return lost, nil
	}
	c.stats.Rules[rule1]++
	if w.key == nil {
		b.Release()
		return won, nil
	}
	alone, err := c.alone(w, &view)
	b.Release()
	switch {
	case err != nil:
		return undecided, uncertain("insert", err)
	case !alone:
		return c.giveWay(w)
	}
	// There is no rival: the word becomes final, and readers see it.
	w.new, w.finalizing = w.new.Final(), true
	if err := c.casPrimary(stepFinalize, w, w.pending, w.new); err != nil {
		return undecided, uncertain("insert", err)
	}
	return won, nil
}

// slotWord returns the slot's word that a READ of 8 bytes has brought.
func slotWord(op *rdma.Op) race.Word { return race.Word(le.Uint64(op.Buf)) }
