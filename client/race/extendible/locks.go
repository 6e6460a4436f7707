package extendible

import (
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/telemetry"
)

// entryWord is an entry of a directory that is locked by clients, as in the
// original. It is changed by CAS only. From the top:
//
//	1   locked
//	16  the client that has locked it
//	7   local depth
//	40  place of the subtable; 0: there is none
type entryWord uint64

const (
	entryLocked entryWord = 1 << 63
	holderShift           = 47
	depthShift            = 40
	versionMask entryWord = 1<<holderShift - 1
	placeMask   entryWord = 1<<depthShift - 1
)

// makeEntry returns an entry that is not locked.
func makeEntry(depth int, place uint64) entryWord {
	return entryWord(depth)<<depthShift | entryWord(place)
}

// locked reports whether a client has locked the entry.
func (e entryWord) locked() bool { return e&entryLocked != 0 }

// holder returns that client. It is 0 in an entry that is free.
func (e entryWord) holder() rdma.ClientID { return rdma.ClientID(e >> holderShift) }
func (e entryWord) depth() int            { return int(e & versionMask >> depthShift) }
func (e entryWord) place() uint64         { return uint64(e & placeMask) }

// version returns the word without its lock. It never comes back: local depths
// only grow.
func (e entryWord) version() uint64 { return uint64(e & versionMask) }

// by returns the word as a client locks it.
func (e entryWord) by(c rdma.ClientID) entryWord {
	return e&versionMask | entryLocked | entryWord(c)<<holderShift
}

// free returns the word with the lock released.
func (e entryWord) free() entryWord { return e & versionMask }

// locks is a directory with entries that clients lock. A rehash:
//
//	1  CAS the subtable's entry -> locked by me
//	2  take memory, and WRITE empty buckets to it
//	3  CAS the new entry: none -> locked by me, with the place of that memory
//	4  for each pair that moves: CAS the new slot: empty -> pair;
//	   CAS the old one: pair -> empty
//	5  CAS the subtable's entry -> one bit deeper, and free
//	6  CAS the new entry -> free
//
// Step 3 relies on 2: no bucket of the new memory is CASed before it is WRITTEN.
// If 2 fails, the client CASes the entry free again.
// A lock has no lease: a client that meets it waits. Only the master ends what a
// dead client has begun. Before 3 it takes the lock away; behind 3 it goes on
// from 4, where each CAS may be done again.
type locks struct {
	s *Store
	// unfinished: an error has left what settle ends.
	unfinished bool
}

// await waits for a lock, until the operation's time is over. The error names the
// holder. If an error has left the lock of a rehash of the worker's own, await ends
// that rehash: a GET may meet the lock before the next write does.
func (k *locks) await(suffix uint64) error {
	var met entryWord
	// No other client takes what this one waits for, so it need not be quick when
	// it is late.
	pause := kit.Doubling(2*time.Microsecond, 50*time.Microsecond)
	for r := (kit.Retry{Env: k.s.ep, Pause: pause, Over: k.s.trips.Over}); ; {
		e, err := k.read(suffix)
		if err == nil && !e.locked() {
			return nil
		}
		if err == nil && e.holder() == k.s.id {
			if err = k.s.trips.Land(nil); err == nil {
				err = k.settle()
			}
		}
		if err == nil {
			met = e
		}
		// An error behind the operation's time is reported as the wait for the
		// lock that it was.
		if err != nil && !(met.locked() && k.s.trips.Over()) {
			return err
		}
		if !r.Again() {
			return fmt.Errorf("the subtable of suffix %d is locked by client %d, which does not go on; if it is dead, "+
				"'farkv recover' ends what it has begun: %w", suffix, met.holder(), rdma.ErrTimeout)
		}
	}
}

// read reads an entry.
func (k *locks) read(suffix uint64) (entryWord, error) {
	b := k.s.ep.Batch()
	defer k.s.trips.Drop(b)
	op := b.Read(k.s.entryAt(suffix))
	if err := k.s.trips.Do(stepReadEntry, b); err != nil {
		return 0, err
	}
	return entryWord(op.Word(0)), nil
}

// change CASes an entry, which no other client changes while this one has locked
// it. If the outcome is unknown, settle has something to end.
func (k *locks) change(suffix uint64, old, new entryWord) (bool, error) {
	at, _ := k.s.entryAt(suffix)
	_, ok, err := k.s.trips.Swap(stepSwapEntry, at, uint64(old), uint64(new))
	if err != nil && k.s.trips.Sent {
		k.unfinished = true
	}
	return ok, err
}

// create makes the entry of the subtable of all keys.
func (k *locks) create(place uint64) error {
	_, err := k.change(0, 0, makeEntry(0, place))
	return err
}

// split is 1 to 6. An error behind 1 leaves locks, which settle ends before the
// next operation. It wraps client.ErrUncertain: behind 3 settle finishes the
// rehash, so that an entry names the memory.
func (k *locks) split(r *rehash) (done bool, err error) {
	defer func() {
		if err != nil && k.unfinished {
			err = fmt.Errorf("%w: %w", client.ErrUncertain, err)
		}
	}()
	s := k.s
	old := makeEntry(r.from.depth, r.from.place)
	// The word of the entry is the one by which the client knows the subtable: if
	// it was split since, the CAS fails.
	ok, err := k.change(r.from.suffix, old, old.by(s.id))
	if err != nil {
		return false, err
	}
	// Another client splits the subtable, or has.
	if !ok {
		return false, k.await(r.from.suffix)
	}
	k.unfinished = true
	if err := r.take(); err != nil {
		// Nothing is to be moved, so the lock is of no use.
		_, freed := k.change(r.from.suffix, old.by(s.id), old)
		k.unfinished = freed != nil
		return false, errors.Join(err, freed)
	}
	// The memory is the client's alone until step 3.
	if err := r.writeEmpty(); err != nil {
		return false, err
	}
	new := makeEntry(r.from.depth+1, r.to)
	// From here on a recovery goes on with the rehash, and does not undo it.
	if _, err := k.change(r.from.child(), 0, new.by(s.id)); err != nil {
		return false, err
	}
	if err := k.finish(r, s.id); err != nil {
		return false, err
	}
	k.unfinished = false
	return true, nil
}

// finish is 4 to 6, for client c, which has locked both entries. Done again, it
// finds done what was done.
func (k *locks) finish(r *rehash, c rdma.ClientID) error {
	if err := r.move(); err != nil {
		return err
	}
	old, new := makeEntry(r.from.depth, r.from.place), makeEntry(r.from.depth+1, r.to)
	// The parent's entry comes first: a search reaches the child only by the
	// parent's new depth. Until then both are locked.
	if _, err := k.change(r.from.suffix, old.by(c), makeEntry(r.from.depth+1, r.from.place)); err != nil {
		return err
	}
	_, err := k.change(r.from.child(), new.by(c), new)
	return err
}

// settle ends the worker's own rehash as a recovery would. That may take longer than an operation,
// which has all of its time behind it. A failure counts as the operation's own time, so that its
// tries end.
func (k *locks) settle() error {
	if !k.unfinished {
		return nil
	}
	spent := k.s.trips.Budget
	err := k.recover(k.s.id)
	if k.unfinished = err != nil; k.unfinished {
		k.s.trips.Budget = spent
	} else {
		k.s.trips.Begin()
	}
	return err
}

// recover ends what a client has begun, of which nothing is in flight. It may be
// interrupted at any verb, and done again.
func (k *locks) recover(c rdma.ClientID) error {
	held, err := k.held()
	if err != nil {
		return err
	}
	// Parents come before their children, so a rehash is ended from its parent's
	// entry.
	for _, t := range held {
		if entryWord(t.version).holder() != c {
			continue
		}
		k.s.trips.Begin()
		if err := k.end(t, c); err != nil {
			return fmt.Errorf("the rehash of suffix %d: %w", t.suffix, err)
		}
	}
	return nil
}

// held returns the entries that are locked, in order of suffixes, with their
// words as versions.
func (k *locks) held() (all []subtable, err error) {
	for from := uint64(0); from < 1<<k.s.Depth; from += walkAtOnce {
		k.s.trips.Begin()
		some, err := k.someHeld(from, min(from+walkAtOnce, 1<<k.s.Depth))
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	return all, nil
}

// someHeld is held for the suffixes from one up to another.
func (k *locks) someHeld(from, to uint64) (held []subtable, err error) {
	b := k.s.ep.Batch()
	defer k.s.trips.Drop(b)
	for suffix := from; suffix < to; suffix++ {
		b.Read(k.s.entryAt(suffix))
	}
	if err := k.s.trips.Do(stepReadEntry, b); err != nil {
		return nil, err
	}
	for i := range b.Len() {
		if e := entryWord(b.Op(i).Word(0)); e.locked() {
			held = append(held, subtable{suffix: from + uint64(i), version: uint64(e), depth: e.depth(),
				place: e.place()})
		}
	}
	return held, nil
}

// end ends what a client has begun with an entry that it has locked. If the
// child's entry is locked by it, too, step 3 was done, and the rehash is
// finished. Otherwise the lock is taken away.
func (k *locks) end(t subtable, c rdma.ClientID) error {
	// The entry may have changed since held has read it, by what was ended
	// before.
	now, err := k.read(t.suffix)
	// It was a child, and was freed when its parent was ended.
	if err != nil || now != makeEntry(t.depth, t.place).by(c) {
		return err
	}
	if t.depth < k.s.Depth {
		child, err := k.read(t.child())
		if err != nil {
			return err
		}
		if child.locked() && child.holder() == c && child.depth() == t.depth+1 {
			return k.finish(&rehash{s: k.s, from: t, to: child.place()}, c)
		}
	}
	// Step 3 was not done, so no key has moved.
	_, err = k.change(t.suffix, now, now.free())
	return err
}

// close ends what an error has left of a rehash.
func (k *locks) close() error { return k.settle() }

func (k *locks) counts(to []telemetry.Counter) []telemetry.Counter { return to }

// check looks for locks. While no client works each is that of a dead client.
func (k *locks) check(c *checker) error {
	held, err := k.held()
	if err != nil {
		return err
	}
	c.locks = uint64(len(held))
	for _, t := range held {
		holder := entryWord(t.version).holder()
		if _, known := c.alive[holder]; known {
			c.Waits("the subtable of suffix %d is locked by client %d", t.suffix, holder)
		} else {
			c.Damaged("the subtable of suffix %d is locked by client %d, which there is not", t.suffix, holder)
		}
	}
	return nil
}
