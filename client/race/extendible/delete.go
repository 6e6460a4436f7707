package extendible

import (
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node/rdma"
)

// A DELETE puts a void word in the pair's place, which names the client's delete record:
// a block of its own, in which it has written the key's hash. Only that client
// takes the word away again. So behind a rehash the word says whether the DELETE
// came before it. An empty slot would not say that, since another client may have
// emptied it.

// removal is what a client's last DELETE has left. There is one at a time: the next
// DELETE first makes sure that no slot has the void word any more, and then
// writes the block again.
type removal struct {
	// tag is that of the next use of the block.
	tag uint64
	// inFlight takes the word out of its slot, and looks; nil: there is nothing to
	// be taken out.
	inFlight *rdma.Batch
	// at is the slot, and hash the key's hash.
	at   slotAt
	hash uint64
	// looks: the batch has a look that is ordered behind its CAS.
	looks bool
}

// openRecord takes away what an earlier holder of the identity has left, and goes
// on with the tags of its block.
func (s *Store) openRecord() error {
	s.trips.Begin()
	w, err := s.clearRecord(s.id)
	s.removal.tag = s.tag(w) + 1
	return err
}

// clearRecord takes a client's void word out of the index, and returns the word.
// Nothing of the client is in flight. A header that is torn was never named by a
// slot: the WRITE of it is complete before the CAS.
func (s *Store) clearRecord(c rdma.ClientID) (word, error) {
	block := s.recordOf(c)
	b := s.ep.Batch()
	op := b.Read(s.blockAt(block), pairHeader)
	err := s.trips.Do(stepScanHeaders, b)
	// The header in the delete record says in which buckets the last void word may be.
	w, hash, whole := decodeHeader(op.Buf)
	s.trips.Drop(b)
	if err != nil || !whole || s.block(w) != block {
		return w, err
	}
	return w, s.directory.clear(hash, block)
}

// clear takes proposals and void words that name a block out of the slots that a
// hash may be in. Nothing names the block any more then, unless a live pair does.
// The caller makes sure that nothing is in flight that could put such a word
// there.
func (d *directory) clear(hash, block uint64) error {
	at := d.index.Locate(hash)
	for r := d.pace; ; {
		again, err := d.clearOnce(at, hash, block)
		if err == nil && !again {
			return nil
		}
		if err != nil && !d.retryable(err) {
			return err
		}
		if !r.Again() {
			return errTime
		}
	}
}

// clearOnce is one try. again: it has found a word, or the key may be moving;
// only a look that is valid behind slots without such a word ends it.
func (d *directory) clearOnce(at race.Buckets, hash, block uint64) (again bool, err error) {
	in, err := d.find(hash)
	if err != nil {
		return false, err
	}
	b := d.ep.Batch()
	defer d.trips.Drop(b)
	view := at.ReadAt(b, d.subtableAt(in.place))
	if err := d.trips.Do(stepFindWord, b); err != nil {
		return false, err
	}
	b2 := d.ep.Batch()
	defer d.trips.Drop(b2)
	look := d.look(b2, in.suffix)
	for i := range race.Candidates {
		slot, w := view.Slot(i)
		if w := word(w); !w.empty() && w.kind() != live && d.block(w) == block {
			// Only this client, or the recovery of it, takes such a word away, so
			// the CAS cannot take a later one.
			b2.CompareSwap(d.subtableAt(in.place).Add(slot.Offset()), uint64(w), 0)
			again = true
		}
	}
	if err := d.trips.Do(stepClear, b2); err != nil {
		return false, err
	}
	// A rehash may have copied the word to another subtable: look there.
	if v := d.judge(look, in, hash); v != valid {
		return true, d.refresh(v, in)
	}
	return again, nil
}

// Delete implements client.Store. It takes effect at the CAS that puts the void
// word in the pair's place.
func (s *Store) Delete(key []byte) error {
	s.start(key)
	err := s.settle()
	if err == nil {
		// The block of the delete record is written again, so no slot may name its last
		// use.
		err = s.awaitRemoval()
	}
	if err == nil {
		err = s.delete()
	}
	if err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	return nil
}

// delete tries until the pair is replaced by the void word, or the time is over.
// If the outcome is unknown, the word is unresolved.
func (s *Store) delete() error {
	o := &s.op
	// The word has a tag of its own, so a CAS of an earlier DELETE that lands
	// late does not take it away.
	o.word = s.word(o.hash, 1, s.removal.tag, s.recordOf(s.id)).as(void)
	// Each DELETE has a word of its own, even one that finds nothing.
	s.removal.tag++
	for r := s.pace; ; {
		a, found, err := s.find()
		if err == nil && !found {
			err = client.ErrNotFound
		}
		if err != nil {
			return err
		}
		out, at, err := s.replace(stepSwapSlot, a, a.word, o.word)
		switch {
		case err != nil:
			s.unresolved = append(s.unresolved, unresolvedWord{o.hash, s.recordOf(s.id)})
			return err
		case out == done:
			s.memory.replaced(a.word)
			s.removeWord(a)
			return nil
		case out == moved:
			s.leaveBehind(a, o.word)
			// Otherwise the copy of the rehash came before the CAS, since no
			// other client takes the word away.
			if at.word == o.word {
				s.removeWord(at)
				return nil
			}
		}
		if !r.Again() {
			return errTime
		}
	}
}

// removeWord begins to take the void word out of its slot. No operation waits for that:
// awaitRemoval does, before the next DELETE. A crash leaves the word to the
// client's recovery.
func (s *Store) removeWord(a slotAt) {
	g := &s.removal
	at := s.addrOf(a)
	b := s.ep.Batch()
	b.CompareSwap(at, uint64(s.op.word), 0)
	look := s.directory.look(b, a.subtable.suffix)
	// The look is executed behind the CAS only if both are on the same node.
	look.Fence = true
	g.looks = look.Addr.Node() == at.Node()
	g.at, g.hash = a, s.op.hash
	if err := s.ep.Post(b.As(stepClear)); err != nil {
		b.Release()
		s.unresolved = append(s.unresolved, unresolvedWord{g.hash, s.recordOf(s.id)})
		return
	}
	g.inFlight = b
}

// awaitRemoval makes sure that no slot has the void word of the last DELETE any
// more. The CAS alone does not: a rehash may have copied the word before. So it
// relies on a look behind the CAS that is valid, or clears the slots.
func (s *Store) awaitRemoval() error {
	g := &s.removal
	b := g.inFlight
	if b == nil {
		return nil
	}
	// An error leaves the batch, which is waited for again before the next
	// DELETE.
	if err := s.trips.Finish(b); err != nil {
		return err
	}
	gone := b.Err() == nil && b.Op(0).Swapped() && g.looks && s.directory.judge(b.Op(1), g.at.subtable, g.hash) == valid
	b.Release()
	g.inFlight = nil
	if gone {
		return nil
	}
	s.unresolved = append(s.unresolved, unresolvedWord{g.hash, s.recordOf(s.id)})
	return s.settle()
}
