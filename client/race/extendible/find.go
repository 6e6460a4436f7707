package extendible

import (
	"bytes"
	"cmp"
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node/rdma"
)

// slotAt is a slot of a subtable, with the word that was read there, for the key
// of the operation.
type slotAt struct {
	subtable subtable
	slotWord
}

// addrOf returns the address of a slot.
func (s *Store) addrOf(a slotAt) rdma.Addr {
	return s.subtableAt(a.subtable.place).Add(a.slot.Offset())
}

// find looks for the operation's key. found: the key is there, in that slot.
// Otherwise the key is not there. For an INSERT that is not certain yet, and a is
// an empty slot, or noSlot.
//
// At the moment of the first READ the subtable was the key's, as the look behind
// it shows: its pointer is as the client knows it. A lock that may be moving the
// key makes find begin again: what is read meanwhile may not be part of the copy.
func (s *Store) find() (a slotAt, found bool, err error) {
	for r := s.pace; ; {
		a, found, again, err := s.findOnce()
		if err == nil && !again {
			return a, found, nil
		}
		if err != nil && !s.retryable(err) {
			return a, false, err
		}
		if !r.Again() {
			return a, false, errTime
		}
	}
}

// findOnce is one try of find. In its second trip the look is the first READ, and
// the pairs follow. An INSERT that meets no pair of its fingerprint leaves that
// trip out: its proposal is followed by a look.
func (s *Store) findOnce() (a slotAt, found, again bool, err error) {
	o := &s.op
	// This costs no verb if the client knows the entries. What it knows may be
	// out of date, which the look finds out.
	if a.subtable, err = s.directory.find(o.hash); err != nil {
		return a, false, false, err
	}
	if a, err = s.readBuckets(a); err != nil {
		return a, false, false, err
	}
	b := s.ep.Batch()
	defer s.trips.Drop(b)
	// The look is complete behind the READs of the buckets, as those were a trip
	// before. What it shows holds for a moment at which the slots had been read.
	look := s.directory.look(b, a.subtable.suffix)
	for _, w := range o.alike {
		// A suspect needs no second look at its block: the word is not one of the
		// subtable's.
		if !o.suspected(a.subtable, w) && s.valid(w.word) {
			b.Read(s.blockAt(s.block(w.word)), w.word.units()*unitBytes)
		}
	}
	if o.insert && b.Len() == 1 {
		return a, false, false, nil
	}
	if err := s.trips.Do(stepReadPairs, b); err != nil {
		return a, false, false, err
	}
	// The slots may have been read after the copy of a rehash: what they have
	// does not count.
	if v := s.directory.judge(look, a.subtable, o.hash); v != valid {
		s.stats.Looks++
		return a, false, true, s.directory.refresh(v, a.subtable)
	}
	w, found, again := s.match(b, a.subtable)
	if found {
		a.slotWord = w
		return a, true, false, nil
	}
	return a, false, again, s.torn(a.subtable)
}

// torn returns an error if a pair is torn that a slot has named all the time.
func (s *Store) torn(in subtable) error {
	for i, w := range s.op.slots {
		for _, x := range s.op.suspects {
			// The word was met with a torn pair, was looked for once more, and
			// is in its slot all the same.
			if x.torn && x.seen && x.place == in.place && x.slotWord == s.op.slotWord(i, w) {
				return fmt.Errorf("the pair at %v: %w", s.blockAt(s.block(word(w))), client.ErrDamaged)
			}
		}
	}
	return nil
}

// readBuckets reads both combined buckets, and notes what their slots hold. In
// the same trip it writes the operation's pair, so the WRITE is complete before
// any CAS installs the word. For an INSERT it also returns an empty slot, or
// noSlot.
func (s *Store) readBuckets(a slotAt) (slotAt, error) {
	o := &s.op
	b := s.ep.Batch()
	defer s.trips.Drop(b)
	s.write(b)
	// The order of WRITE and READs does not matter: both are complete before the
	// next step.
	view := o.at.ReadAt(b, s.subtableAt(a.subtable.place))
	if err := s.trips.Do(stepReadBuckets, b); err != nil {
		return a, err
	}
	// The WRITE is complete, with the batch. The next try does not post it
	// again.
	o.written = true
	o.note(&view)
	if o.insert {
		a.slotWord = s.free()
	}
	return a, nil
}

// noSlot is what free returns if there is no empty slot. No slot has this word.
var noSlot = slotWord{0, ^word(0)}

// free picks an empty slot: in the emptier combined bucket, its main bucket
// first, from a place on that depends on the hash, so that INSERTs of different
// keys rarely meet.
func (s *Store) free() slotWord {
	o := &s.op
	used := cmp.Or(s.Slots, race.BucketSlots)
	// The emptier half is the one in which fewer later INSERTs find no slot.
	half, most := 0, 0
	for h := range 2 {
		empty := 0
		for i := range race.Candidates / 2 {
			if i%race.BucketSlots < used && o.slots[h*race.Candidates/2+i].Empty() {
				empty++
			}
		}
		if empty > most {
			half, most = h, empty
		}
	}
	if most == 0 {
		return noSlot
	}
	for i := range 2 * used {
		bucket, slot := 2*half+i/used, (int(o.hash>>48)+i)%used
		if at := bucket*race.BucketSlots + slot; o.slots[at].Empty() {
			return o.slotWord(at, o.slots[at])
		}
	}
	panic(fmt.Sprintf("extendible: %d slots of a bucket are empty, and none is", most))
}

// note keeps what the slots hold, and which live pairs have the key's
// fingerprint.
func (o *operation) note(view *race.View) {
	o.alike = o.alike[:0]
	view.Words(&o.slots)
	for i, w := range o.slots {
		if word(w).is(live, o.hash) {
			o.alike = append(o.alike, o.slotWord(i, w))
		}
	}
}

// slotWord returns the key's i-th slot with a word.
func (o *operation) slotWord(i int, w race.Word) slotWord { return slotWord{o.at.Slot(i), word(w)} }

// match looks for the key among the pairs that were read behind the look, for
// slots of o.alike. again: a word's block has no pair of it, so the slot was read
// too late, or the key has moved. If the same word is met again, it was in the
// slot in the meantime. Then it is not part of this subtable's keys: no block is
// used again that a slot of the index names.
func (s *Store) match(b *rdma.Batch, in subtable) (at slotWord, found, again bool) {
	o := &s.op
	// The first READ of the batch is the look.
	read, known := 1, o.suspects
	for i := range known {
		// If the word is met again, it was looked for once more.
		known[i].seen = true
	}
	for _, w := range o.alike {
		if !s.valid(w.word) || in.suspectedIn(known, w) {
			continue
		}
		p, whole := decodePair(b.Op(read).Buf, w.word)
		read++
		switch {
		case !whole:
			// The header names this word and this subtable, so key or value are
			// torn. That is no damage unless the slot keeps the word.
			torn := p.word != 0 && race.Suffix(p.hash, in.depth) == in.suffix
			o.suspects = append(o.suspects, suspect{place: in.place, slotWord: w, torn: torn})
			again = true
		case bytes.Equal(p.key, o.key):
			s.value = append(s.value[:0], p.value...)
			return w, true, false
		}
	}
	return at, false, again
}

// suspectedIn reports whether a list has a slot of this subtable with that word.
func (s subtable) suspectedIn(list []suspect, w slotWord) bool {
	for _, x := range list {
		if x.place == s.place && x.slotWord == w {
			return true
		}
	}
	return false
}

// suspected reports whether the operation has met the word before without its
// pair.
func (o *operation) suspected(s subtable, w slotWord) bool { return s.suspectedIn(o.suspects, w) }
