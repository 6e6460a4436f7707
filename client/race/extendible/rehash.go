package extendible

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node/rdma"
)

const (
	// litter is the share of a subtable's slots that are swept rather than that the subtable is split:
	// one of so many.
	litter = 4
	// bytesAtOnce is how much of a subtable one verb reads or writes, and verbsAtOnce how many verbs
	// are in a batch.
	bytesAtOnce = 16 << 10
	verbsAtOnce = 512
	// byteTime is what a rehash expects a byte of its subtable to take, of which it reads and writes
	// all at once: its lease.
	byteTime = time.Nanosecond
	// renewals is how often in that part of a lease which is for clocks and schedulers it says that it
	// goes on.
	renewals = 4

	bytesPerWord = 8
)

// errLitter ends a rehash of a subtable of which too many slots are of keys that have moved.
var errLitter = errors.New("slots are to be swept")

// makeRoom splits a subtable in which a key has no empty slot. Where slots have what operations
// leave for a moment, such as the proposals of other INSERTs of the key, to which a split gives no
// more room, it waits for that; for a lease in which none of it changes, since the clients may be
// dead. Where slots are of keys that have left it empties those: the client that has split the
// subtable sweeps it for about as long as that took.
func (s *Store) makeRoom(in subtable) error {
	o := &s.op
	if words := o.passing(); words != o.passed || o.full == 0 {
		o.passed, o.full = words, max(s.ep.Now(), 1)
	}
	if o.passed != 0 && s.ep.Now()-o.full < s.Lease {
		return nil
	}
	if swept, err := s.sweepBuckets(in); err != nil || swept {
		return err
	}
	if in.depth == s.Depth {
		return fmt.Errorf("a subtable of local depth %d, of %d at most: %w", in.depth, s.Depth, client.ErrFull)
	}
	place, err := s.memory.takeSubtable(int(in.child() % uint64(s.nodes)))
	if errors.Is(err, client.ErrFull) {
		return s.sweepOnly(in, err)
	}
	if err != nil {
		return err
	}
	r := rehash{s: s, from: in, to: place}
	split, err := s.directory.shared.split(&r)
	switch {
	case err != nil && errors.Is(err, client.ErrUncertain): // an entry may name the memory
		return notKnown(err)
	case !split:
		s.memory.spare = append(s.memory.spare, place)
	default:
		s.stats.Splits++
	}
	if err != nil && !errors.Is(err, errLitter) {
		return err
	}
	switch {
	case split:
		r.sweep(slices.Concat(r.stale, r.moves), true)
	case err != nil:
		r.sweep(r.stale, false)
	}
	_, err = s.directory.load(in.suffix)
	return err
}

// sweepBuckets empties those of the slots in which the operation's key may be whose keys have left,
// and reports whether there were any. It needs no lock, as sweepOnly.
func (s *Store) sweepBuckets(in subtable) (bool, error) {
	r := rehash{s: s, from: in}
	var some []slotWord
	for _, w := range s.op.slots {
		if s.valid(w.word) {
			some = append(some, w)
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

// passing sums up the words that their clients are to take away, of which no two are alike; 0:
// there are none.
func (o *operation) passing() (sum uint64) {
	for _, w := range o.slots {
		if !w.word.empty() && w.word.kind() != live {
			sum += uint64(w.word)
		}
	}
	return sum
}

// notKnown is the error of an INSERT that did nothing yet when it was not known whether its rehash
// took place: that is no part of its answer.
func notKnown(err error) error { return fmt.Errorf("split a subtable (%v): %w", err, rdma.ErrTimeout) }

// rehash copies the slots of the keys that move from a subtable to a new one, where they have the
// same places. Then it sweeps what they leave.
type rehash struct {
	s     *Store
	from  subtable
	to    uint64
	words []byte     // of the subtable
	stale []slotWord // of keys that left with an earlier rehash
	moves []slotWord // of keys that leave with this one
	// renew says that it goes on, so that the wait for a client that dies in it does not depend on how
	// much there is to move. nil: nothing asks.
	renew   func() error
	renewed time.Duration // when it was called last, or when the rehash began
}

// copy makes the new subtable's memory hold what moves. The subtable is locked: what comes to its
// slots meanwhile and is not copied its clients put into the new one, when they look. The memory
// was never a subtable's, so it may be written, again and again.
func (r *rehash) copy() error {
	r.renewed = r.s.ep.Now()
	image, err := r.survey()
	if err != nil {
		return err
	}
	if len(r.stale)*litter > r.s.slots() {
		return errLitter
	}
	return r.write(image)
}

// survey reads the subtable, and returns what the new one is to hold.
func (r *rehash) survey() (image []byte, err error) {
	r.stale, r.moves = r.stale[:0], r.moves[:0]
	if err := r.read(); err != nil {
		return nil, err
	}
	hashes, err := r.hashes()
	if err != nil {
		return nil, err
	}
	image = make([]byte, len(r.words))
	for at := 0; at < len(image); at += bytesPerWord {
		w := slotWord{race.Slot(at / bytesPerWord), word(le.Uint64(r.words[at:]))}
		hash, whole := hashes[w.slot]
		switch {
		case !race.IsSlot(w.slot):
			le.PutUint64(image[at:], uint64(race.MakeHeader(r.from.depth+1, r.from.child())))
		case w.word.empty():
		case !whole || race.Suffix(hash, r.from.depth) != r.from.suffix:
			r.stale = append(r.stale, w)
		case r.from.moves(hash):
			r.moves = append(r.moves, w)
			le.PutUint64(image[at:], uint64(w.word))
		}
	}
	return image, nil
}

// sweepOnly empties slots of keys that have left, for want of memory for another subtable. It needs
// no lock: a word whose block has no pair of it, before and behind that look, is of a key that has
// left.
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

// read reads the subtable.
func (r *rehash) read() error {
	s := r.s
	b := s.ep.Batch()
	defer s.drop(b)
	bytes := int(s.subtableBytes())
	for at := 0; at < bytes; at += bytesAtOnce {
		b.Read(s.subtableAt(r.from.place).Add(uint64(at)), min(bytesAtOnce, bytes-at))
	}
	if err := s.do(stepReadSubtable, b); err != nil {
		return err
	}
	r.words = r.words[:0]
	for i := range b.Len() {
		r.words = append(r.words, b.Op(i).Buf...)
	}
	return nil
}

// hashes reads the hashes of all keys that the subtable's slots name. A slot whose block has no
// pair of it is of a key that has left.
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
			if err := r.goesOn(); err != nil {
				return nil, err
			}
		}
	}
	return hashes, nil
}

// goesOn renews the lease when a part of it is over.
func (r *rehash) goesOn() error {
	now := r.s.ep.Now()
	if r.renew == nil || now >= r.renewed && now-r.renewed < r.s.Lease/renewals { // the clock may have been set back
		return nil
	}
	r.renewed = now
	return r.renew()
}

func (r *rehash) someHashes(some []slotWord, hashes map[race.Slot]uint64) error {
	s := r.s
	b := s.ep.Batch()
	defer s.drop(b)
	for _, w := range some {
		b.Read(s.blockAt(s.block(w.word)), pairHeader)
	}
	if err := s.do(stepReadHashes, b); err != nil {
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

// move moves what moves one by one, by two CASes each, to where there may be some of it already.
// The subtable is locked. Clients that have not seen the lock may change a slot between the two:
// they find in the new one what they wanted to replace, and do it again.
func (r *rehash) move() error {
	if _, err := r.survey(); err != nil {
		return err
	}
	s := r.s
	from, to := s.subtableAt(r.from.place), s.subtableAt(r.to)
	for _, w := range r.moves {
		if _, err := s.swap(stepMoveSlot, to.Add(w.slot.Offset()), 0, uint64(w.word)); err != nil {
			return err
		}
		if _, err := s.swap(stepMoveSlot, from.Add(w.slot.Offset()), uint64(w.word), 0); err != nil {
			return err
		}
	}
	return nil
}

// write writes the new subtable.
func (r *rehash) write(image []byte) error {
	s := r.s
	b := s.ep.Batch()
	defer s.drop(b)
	for at := 0; at < len(image); at += bytesAtOnce {
		b.WriteCopy(s.subtableAt(r.to).Add(uint64(at)), image[at:min(at+bytesAtOnce, len(image))])
	}
	return s.do(stepWriteSubtable, b)
}

// sweep empties the slots of keys that have moved, and, where the subtable was split, makes its
// buckets' headers say so. A crash in between leaves slots that no reader takes for their keys',
// and which the next rehash finds; so does an error.
func (r *rehash) sweep(left []slotWord, split bool) {
	s := r.s
	at := s.subtableAt(r.from.place)
	b := s.ep.Batch()
	flush := func(most int) bool {
		if b.Len() <= most {
			return true
		}
		err := s.do(stepSweepSlots, b)
		s.drop(b)
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
