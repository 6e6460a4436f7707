package extendible

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/race"
)

const (
	// staleShare: a rehash ends if this part of a subtable's slots, one of so many,
	// is to be swept. The sweep makes room without a split.
	staleShare = 4
	// bytesAtOnce is how much of a subtable one verb reads or writes, and
	// verbsAtOnce how many verbs are in a batch.
	bytesAtOnce = 16 << 10
	verbsAtOnce = 512
	// byteTime is what a rehash expects a byte of its subtable to take: it adds
	// that to its lease.
	byteTime = time.Nanosecond
	// renewals is how often a rehash renews its lease within the part that is
	// there for clocks and schedulers.
	renewals = 4

	bytesPerWord = 8
)

// errStaleSlots ends a rehash of a subtable that has too many slots of keys that have
// moved.
var errStaleSlots = errors.New("slots are to be swept")

// makeRoom makes room in a subtable that has no empty slot for the operation's
// key. It returns nil when it is worth trying again.
//
// Slots may have what operations leave for a moment, such as proposals of other
// INSERTs of the same key, to which a split gives no more room. makeRoom waits
// for that, until all of it has been there for a lease: the clients are dead. Then
// it empties slots of keys that have left: the client that has split the subtable
// sweeps it for about as long as the split took. Only then it splits the
// subtable. The error wraps client.ErrFull when that is not possible.
func (s *Store) makeRoom(in subtable) error {
	if s.passing() {
		return nil
	}
	if swept, err := s.sweepBuckets(in); err != nil || swept {
		return err
	}
	if in.depth == s.Depth {
		return fmt.Errorf("a subtable of local depth %d, of %d at most: %w", in.depth, s.Depth, client.ErrFull)
	}
	r := rehash{s: s, from: in}
	// A walk of what was given back is too long for a lock. All other memory is taken
	// under the lock.
	if s.memory.bare() {
		var err error
		r.to, err = s.memory.reclaimSubtable()
		// There may still be slots to be swept.
		if errors.Is(err, client.ErrFull) {
			return s.sweepOnly(in, err)
		}
		if err != nil {
			return err
		}
	}
	// The memory is the client's until the rehash is decided.
	split, err := s.directory.shared.split(&r)
	switch {
	// An entry may name the memory, so it is not used again. The INSERT itself did
	// nothing yet, but other clients may wait for the locks until the worker writes
	// again, or is given up because of this error.
	case errors.Is(err, client.ErrUncertain):
		return fmt.Errorf("split a subtable: %w", err)
	// Nothing is left that was never used: the next try takes what was given back.
	case errors.Is(err, client.ErrFull) && r.to == 0:
		return nil
	// No entry names the memory, so the next rehash may use it.
	case !split && r.to != 0:
		s.memory.spare = append(s.memory.spare, r.to)
	case split:
		s.stats.Splits++
	}
	if err != nil && !errors.Is(err, errStaleSlots) {
		return err
	}
	switch {
	// The rehash is decided: the slots that have moved are swept in the old
	// subtable. A crash here leaves them to the next rehash.
	case split:
		r.sweep(slices.Concat(r.stale, r.moves), true)
	case err != nil:
		r.sweep(r.stale, false)
	}
	// The client has to see the entry as it is now, whichever client has changed
	// it.
	_, err = s.directory.load(in.suffix)
	return err
}

// sweepBuckets empties those slots of the operation's key of which the keys have
// left, and reports whether there were any. It needs no lock: see sweepOnly.
func (s *Store) sweepBuckets(in subtable) (bool, error) {
	r := rehash{s: s, from: in}
	var some []slotWord
	for i, w := range s.op.slots {
		if s.valid(word(w)) {
			some = append(some, s.op.slotWord(i, w))
		}
	}
	hashes := make(map[race.Slot]uint64, len(some))
	if err := r.someHashes(some, hashes); err != nil {
		return false, err
	}
	for _, w := range some {
		if hash, whole := hashes[w.slot]; !whole || race.Suffix(hash, in.depth) != in.suffix {
			r.stale = append(r.stale, w)
		}
	}
	r.sweep(r.stale, false)
	return len(r.stale) > 0, nil
}

// passing reports whether a slot has a word that its client is to take away, and
// that has not been there for a lease. It begins the leases.
func (s *Store) passing() (some bool) {
	for i, w := range s.op.slots {
		if !w.Empty() && word(w).kind() != live && !s.lapsed(i, word(w)) {
			some = true
		}
	}
	return some
}

// rehash copies the slots of the keys that move from a subtable to a new one,
// where they have the same places. Then it sweeps what they leave.
type rehash struct {
	s    *Store
	from subtable
	// to is the place of the new subtable; 0: it has none yet. The memory is the
	// client's, and no entry names it before the rehash is decided.
	to uint64
	// words are those of the subtable, as they were read.
	words []byte
	// stale are slots of keys that have left with an earlier rehash.
	stale []slotWord
	// moves are slots of keys that leave with this one.
	moves []slotWord
	// renew renews the lease of the transaction, so that the wait for a client
	// that dies in it does not depend on how much there is to move; nil: there is
	// no lease.
	renew func() error
	// renewed is when it was called last, or when the rehash began.
	renewed time.Duration
}

// take takes memory for the new subtable, unless the rehash has it. The subtable is
// locked, and was not split before: a client that loses the race for the lock takes
// no memory that others need. A crash behind it leaves memory that no entry names,
// as a crash in the copy does. The error wraps client.ErrFull.
func (r *rehash) take() (err error) {
	if r.to != 0 {
		return nil
	}
	// The new subtable is to be on the node of its entry, so that rehashes spread
	// over the nodes.
	r.to, err = r.s.memory.takeSubtable(int(r.from.child() % uint64(r.s.nodes)))
	return err
}

// copy makes the new subtable's memory hold what moves. The subtable is locked.
// What comes to its slots meanwhile, and is not copied, its clients put into the
// new subtable when they look. The memory was never a subtable's, so it may be
// written, again and again.
func (r *rehash) copy() error {
	r.renewed = r.s.ep.Now()
	// What is copied is what the slots have behind the lock.
	image, err := r.survey()
	if err != nil {
		return err
	}
	if len(r.stale)*staleShare > r.s.slots() {
		return errStaleSlots
	}
	return r.write(image)
}

// survey reads the subtable, and returns what the new one is to hold: the words
// that move, in the same places, and headers of the new local depth. Words of
// which the block has no pair of them, or one with another suffix, are stale.
func (r *rehash) survey() (image []byte, err error) {
	r.stale, r.moves = r.stale[:0], r.moves[:0]
	if err := r.read(); err != nil {
		return nil, err
	}
	hashes, err := r.hashes()
	if err != nil {
		return nil, err
	}
	// Slots that do not move are empty in the new subtable.
	image = make([]byte, len(r.words))
	for at := 0; at < len(image); at += bytesPerWord {
		w := slotWord{race.Slot(at / bytesPerWord), word(le.Uint64(r.words[at:]))}
		hash, whole := hashes[w.slot]
		switch {
		case !race.IsSlot(w.slot):
			le.PutUint64(image[at:], uint64(race.MakeHeader(r.from.depth+1, r.from.child())))
		case w.word.empty():
		// The key has left with an earlier rehash. The sweep of that one did not
		// come to this slot.
		case !whole || race.Suffix(hash, r.from.depth) != r.from.suffix:
			r.stale = append(r.stale, w)
		// Proposals and void words move with their hash, so their clients find
		// them.
		case r.from.moves(hash):
			r.moves = append(r.moves, w)
			le.PutUint64(image[at:], uint64(w.word))
		}
	}
	return image, nil
}

// sweepOnly empties slots of keys that have left, when there is no memory for
// another subtable. It needs no lock: a word of which the block has no pair of it
// is that of a key that has left, since no block is used again that a slot of the
// index names. It returns full if there is nothing to sweep.
func (s *Store) sweepOnly(in subtable, full error) error {
	r := rehash{s: s, from: in}
	if _, err := r.survey(); err != nil {
		return err
	}
	if len(r.stale) == 0 {
		return full
	}
	r.sweep(r.stale, false)
	return nil
}

// read reads the words of the subtable.
func (r *rehash) read() error {
	s := r.s
	b := s.ep.Batch()
	defer s.trips.Drop(b)
	bytes := int(s.subtableBytes())
	for at := 0; at < bytes; at += bytesAtOnce {
		b.Read(s.subtableAt(r.from.place).Add(uint64(at)), min(bytesAtOnce, bytes-at))
	}
	if err := s.trips.Do(stepReadSubtable, b); err != nil {
		return err
	}
	r.words = r.words[:0]
	for i := range b.Len() {
		r.words = append(r.words, b.Op(i).Buf...)
	}
	return nil
}

// hashes reads the hashes of all keys that the subtable's slots name. A slot that
// is missing in the map is that of a key that has left.
func (r *rehash) hashes() (map[race.Slot]uint64, error) {
	hashes := make(map[race.Slot]uint64, r.s.slots())
	var some []slotWord
	for at := 0; at < len(r.words); at += bytesPerWord {
		w := slotWord{race.Slot(at / bytesPerWord), word(le.Uint64(r.words[at:]))}
		if race.IsSlot(w.slot) && r.s.valid(w.word) {
			some = append(some, w)
		}
		if len(some) == verbsAtOnce || len(some) > 0 && at+bytesPerWord == len(r.words) {
			if err := r.someHashes(some, hashes); err != nil {
				return nil, err
			}
			some = some[:0]
			if err := r.renewLease(); err != nil {
				return nil, err
			}
		}
	}
	return hashes, nil
}

// renewLease renews the lease when a part of it is over. The clock may have been set
// back.
func (r *rehash) renewLease() error {
	now := r.s.ep.Now()
	if r.renew == nil || now >= r.renewed && now-r.renewed < r.s.Lease/renewals {
		return nil
	}
	r.renewed = now
	return r.renew()
}

// someHashes reads the headers of the blocks that some slots name, and adds the
// hashes of those that bear the slot's word.
func (r *rehash) someHashes(some []slotWord, hashes map[race.Slot]uint64) error {
	s := r.s
	b := s.ep.Batch()
	defer s.trips.Drop(b)
	for _, w := range some {
		b.Read(s.blockAt(s.block(w.word)), pairHeader)
	}
	if err := s.trips.Do(stepReadHashes, b); err != nil {
		return err
	}
	for i, w := range some {
		if at, hash, whole := decodeHeader(b.Op(i).Buf); whole && at == w.word.as(live) {
			hashes[w.slot] = hash
		}
	}
	return nil
}

// writeEmpty writes a new subtable that is empty.
func (r *rehash) writeEmpty() error {
	image := make([]byte, r.s.subtableBytes())
	header := race.MakeHeader(r.from.depth+1, r.from.child())
	for at := 0; at < len(image); at += race.BucketBytes {
		le.PutUint64(image[at:], uint64(header))
	}
	return r.write(image)
}

// move moves the keys one by one, by two CASes each, to a subtable where some of
// them may be already. The subtable is locked. Clients that have not seen the
// lock may change a slot between the two CASes: they find in the new subtable
// what they wanted to replace, and do it again.
func (r *rehash) move() error {
	if _, err := r.survey(); err != nil {
		return err
	}
	s := r.s
	from, to := s.subtableAt(r.from.place), s.subtableAt(r.to)
	for _, w := range r.moves {
		// A slot that is not empty has this word already, from an attempt before,
		// or one that a client has put there since.
		if _, _, err := s.trips.Swap(stepMoveSlot, to.Add(w.slot.Offset()), 0, uint64(w.word)); err != nil {
			return err
		}
		if _, _, err := s.trips.Swap(stepMoveSlot, from.Add(w.slot.Offset()), uint64(w.word), 0); err != nil {
			return err
		}
	}
	return nil
}

// write writes the new subtable. image is copied into the batch.
func (r *rehash) write(image []byte) error {
	s := r.s
	b := s.ep.Batch()
	defer s.trips.Drop(b)
	for at := 0; at < len(image); at += bytesAtOnce {
		b.WriteCopy(s.subtableAt(r.to).Add(uint64(at)), image[at:min(at+bytesAtOnce, len(image))])
	}
	return s.trips.Do(stepWriteSubtable, b)
}

// sweep empties the slots of keys that have moved. If the subtable was split it
// also makes the headers of its buckets say so. A crash in between leaves slots
// that no reader takes for their keys', and that the next rehash finds. So does
// an error, which is not returned.
func (r *rehash) sweep(left []slotWord, split bool) {
	s := r.s
	at := s.subtableAt(r.from.place)
	b := s.ep.Batch()
	// flush posts the CASes when there are more than most, and reports whether to
	// go on.
	flush := func(most int) bool {
		if b.Len() <= most {
			return true
		}
		err := s.trips.Do(stepSweepSlots, b)
		s.trips.Drop(b)
		b = s.ep.Batch()
		return err == nil
	}
	for _, w := range left {
		b.CompareSwap(at.Add(w.slot.Offset()), uint64(w.word), 0)
		s.stats.Swept++
		if !flush(verbsAtOnce) {
			break
		}
	}
	if split {
		old, new := race.MakeHeader(r.from.depth, r.from.suffix), race.MakeHeader(r.from.depth+1, r.from.suffix)
		for off := uint64(0); off < s.subtableBytes(); off += race.BucketBytes {
			b.CompareSwap(at.Add(off), uint64(old), uint64(new))
			if !flush(verbsAtOnce) {
				break
			}
		}
	}
	flush(0)
	b.Release()
}
