package extendible

import (
	"errors"
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/telemetry"
)

// The directory has an entry for each suffix of up to Depth bits. The entry of
// suffix s belongs to the subtable that holds the keys with hashes that end in s,
// by as many bits as its local depth says. It is empty as long as there is no
// such subtable. A subtable of local depth d that is split keeps its entry, now
// of depth d+1, and the keys that have 0 as their next bit. The others move to
// the entry s + 2^d. So no other entry changes, and the directory is never
// doubled: RACE's copies of one entry follow from the local depths that a client
// has seen.
//
// With RTX an entry is an object: lock and pointer, and behind the pointer the
// descriptor, which never changes. With DTX lock and descriptor lie together.
// With Locked the entry is a word. The memory that a descriptor names is a
// subtable's for ever, and never moves.

// subtable is a descriptor as a client has read it. It may be out of date, which
// each look finds out.
type subtable struct {
	// suffix is that of the hashes, in as many bits as depth.
	suffix uint64
	// version is the word of the entry by which it was read. It never comes back.
	version uint64
	// depth is the local depth.
	depth int
	// place is where the subtable lies: see layout.place.
	place uint64
}

// moves reports whether a key moves to another subtable when this one is split.
func (s subtable) moves(hash uint64) bool { return hash>>race.SuffixShift>>s.depth&1 == 1 }

// child returns the suffix of the subtable that a split makes beside this one.
func (s subtable) child() uint64 { return s.suffix | 1<<s.depth }

// errAbsent says that an entry of the directory is empty.
var errAbsent = errors.New("no such subtable")

// directory is a client's view of the directory.
type directory struct {
	*session
	// known has what the client has seen, by suffix; depth -1: not known.
	known  []subtable
	shared shared
}

// shared is how clients change the directory together. Each format has an
// implementation.
type shared interface {
	// await returns when an entry is not locked, or an error when the operation's
	// time is over.
	await(suffix uint64) error
	// create makes the first subtable, in zeroed memory.
	create(place uint64) error
	// split does a rehash; false: another client was faster.
	split(r *rehash) (bool, error)
	// settle ends what an earlier split of the worker has left.
	settle() error
	// recover ends what a client has left that was fenced off. It may be
	// interrupted, and done again.
	recover(c rdma.ClientID) error
	close() error
	check(c *checker) error
	counts(to []telemetry.Counter) []telemetry.Counter
}

// openShared returns the implementation for the pool's format.
func openShared(s *Store, o Options) (shared, error) {
	switch s.format {
	case RTX:
		return openObjects(s, o)
	case DTX:
		return openPlaces(s, o)
	}
	return &locks{s: s}, nil
}

// find returns the subtable of a hash, as far as the client knows. It reads
// entries that the client does not know.
//
// It begins at suffix 0, which every hash has once belonged to. The lowest bit by
// which the hash differs from the entry is the split by which the key has left,
// and names the entry that it has moved to.
func (d *directory) find(hash uint64) (subtable, error) {
	suffix := uint64(0)
	for {
		s, err := d.entry(suffix)
		if err != nil {
			return s, err
		}
		// These are the bits by which the hash does not belong to the entry's
		// subtable.
		differ := race.Suffix(hash, s.depth) ^ suffix
		if differ == 0 {
			return s, nil
		}
		// The key moved to there when the subtable was split by this bit.
		lowest := differ & -differ
		suffix = race.Suffix(hash, MaxDepth) & (lowest<<1 - 1)
	}
}

// entry returns what the client knows of a suffix, or reads it.
func (d *directory) entry(suffix uint64) (subtable, error) {
	if suffix < uint64(len(d.known)) && d.known[suffix].depth >= 0 {
		return d.known[suffix], nil
	}
	return d.load(suffix)
}

// forget makes the client read an entry again.
func (d *directory) forget(suffix uint64) { d.known[suffix].depth = -1 }

// load reads an entry, and then the descriptor. The error wraps errAbsent when
// the entry is empty. It waits for a lock only if the lock hides what the entry
// has.
func (d *directory) load(suffix uint64) (subtable, error) {
	if suffix >= 1<<d.Depth {
		return subtable{}, fmt.Errorf("suffix %d of a directory of %d: %w", suffix, 1<<d.Depth, client.ErrDamaged)
	}
	for range mostReads {
		b := d.ep.Batch()
		op := d.look(b, suffix)
		err := d.trips.Do(stepReadEntry, b)
		version, locked := uint64(0), false
		var s subtable
		ok := false
		if err == nil {
			// The entry has a subtable. With RTX the descriptor takes another
			// trip.
			if version, locked = d.readEntry(op, suffix); version != 0 {
				s, ok, err = d.readDescriptor(suffix, version, op.Buf)
			}
		}
		d.trips.Drop(b)
		switch {
		case err != nil || ok:
			return s, err
		// The entry has changed between the two READs: again.
		case version != 0:
		case !locked:
			return subtable{}, fmt.Errorf("suffix %d: %w", suffix, errAbsent)
		default: // it is being made
			if err := d.shared.await(suffix); err != nil {
				return subtable{}, err
			}
		}
	}
	return subtable{}, fmt.Errorf("the directory's entry for suffix %d changes all the time: %w", suffix,
		rdma.ErrTimeout)
}

// mostReads bounds how often an entry is read that changes meanwhile, which it
// does once for each split of its subtable.
const mostReads = 64

// readDescriptor reads the descriptor that an entry names, or has in p. It
// returns false if the entry has another one by now.
func (d *directory) readDescriptor(suffix, version uint64, p []byte) (s subtable, ok bool, err error) {
	b := d.ep.Batch()
	defer d.trips.Drop(b)
	if at, n, there := d.descriptorAt(version); there {
		op := b.Read(at, n)
		if err := d.trips.Do(stepReadEntry, b); err != nil {
			return s, false, err
		}
		p = op.Buf
	}
	if s, ok, err = d.decode(suffix, version, p); ok {
		d.learn(s)
	}
	return s, ok, err
}

// learn keeps what an entry says.
func (d *directory) learn(s subtable) {
	for uint64(len(d.known)) <= s.suffix {
		d.known = append(d.known, subtable{depth: -1})
	}
	d.known[s.suffix] = s
}

// look adds a READ of an entry: lock and pointer. What it shows says whether
// operations in the subtable that were complete before count: see judge.
func (d *directory) look(b *rdma.Batch, suffix uint64) *rdma.Op { return b.Read(d.entryAt(suffix)) }

// verdict is what a look says of what was done in a subtable before it.
type verdict uint8

const (
	// valid: the key's slots were in this subtable, and no rehash was about to
	// move them.
	valid verdict = iota
	// changed: the subtable was split, or the entry changed otherwise.
	changed
	// locked: a rehash may be moving the key.
	locked
)

// judge says what a look means for a key. A rehash leaves the keys alone that do
// not move, so for these its lock means nothing.
func (d *directory) judge(op *rdma.Op, s subtable, hash uint64) verdict {
	version, held := d.readEntry(op, s.suffix)
	switch {
	case version != s.version:
		return changed
	case held && s.moves(hash):
		return locked
	}
	return valid
}

// refresh makes the client read an entry again after a look that was not valid. A
// rehash that was about to move the key has ended when it returns, or was ended
// by this client because its lease was over.
func (d *directory) refresh(v verdict, s subtable) error {
	if v == locked {
		if err := d.shared.await(s.suffix); err != nil {
			return err
		}
	}
	_, err := d.load(s.suffix)
	return err
}

// isAbsent reports whether an error says that an entry is empty.
func isAbsent(err error) bool { return errors.Is(err, errAbsent) }
