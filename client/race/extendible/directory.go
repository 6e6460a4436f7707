package extendible

import (
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/client/rtx"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/telemetry"
)

// The directory has an entry for each suffix of up to Depth bits. That of suffix s belongs to the subtable which holds
// the keys whose hashes end in s, by as many bits as its local depth says. It is empty as long as there is none. A
// subtable of local depth d that is split keeps its entry, now of depth d+1, and the keys whose next bit is 0; the
// others move to the entry s + 2^d. So no other entry changes, and the directory is never doubled: RACE's copies of one
// entry follow from the local depths that a client has seen.
//
// An entry is an object of rTX: lock and pointer, and behind the pointer the descriptor, which never changes. What is
// behind a descriptor, the subtable's memory, is the subtable's for ever.

// subtable is a descriptor as a client has read it, and by which pointer.
type subtable struct {
	suffix  uint64
	version rtx.Pointer
	depth   int
	place   uint64
}

// descriptorBytes is the size of a descriptor: local depth, and where the subtable lies.
const descriptorBytes = 16

func (s subtable) encode() []byte {
	return le.AppendUint64(le.AppendUint64(nil, uint64(s.depth)), s.place)
}

// moves reports whether a key moves to another subtable when this one is split.
func (s subtable) moves(hash uint64) bool { return hash>>race.SuffixShift>>s.depth&1 == 1 }

// child is the suffix of what this subtable is split into, beside itself.
func (s subtable) child() uint64 { return s.suffix | 1<<s.depth }

// errAbsent says that an entry of the directory is empty.
var errAbsent = errors.New("no such subtable")

// directory is a client's view of the directory.
type directory struct {
	*layout
	ep    rdma.Endpoint
	w     *rtx.Worker
	known []subtable // by suffix; depth -1: not known
	do    func(step rdma.Step, b *rdma.Batch) error
	drop  func(b *rdma.Batch)
}

func openDirectory(ep rdma.Endpoint, l *layout, o Options) (*directory, error) {
	w, err := rtx.Open(ep, l.objects, rtx.Options{Drift: o.Drift, Timeout: o.Timeout})
	return &directory{layout: l, ep: ep, w: w}, err
}

// find returns the subtable of a hash, as far as the client knows; what it does not know it reads.
func (d *directory) find(hash uint64) (subtable, error) {
	suffix := uint64(0)
	for {
		s, err := d.entry(suffix)
		if err != nil {
			return s, err
		}
		differ := race.Suffix(hash, s.depth) ^ suffix
		if differ == 0 {
			return s, nil
		}
		lowest := differ & -differ // the key moved to there when the subtable was split by this bit
		suffix = race.Suffix(hash, MaxDepth) & (lowest<<1 - 1)
	}
}

// entry returns what the client knows of a suffix.
func (d *directory) entry(suffix uint64) (subtable, error) {
	if suffix < uint64(len(d.known)) && d.known[suffix].depth >= 0 {
		return d.known[suffix], nil
	}
	return d.load(suffix)
}

// forget makes the client read an entry again.
func (d *directory) forget(suffix uint64) { d.known[suffix].depth = -1 }

// load reads an entry: its metadata, and then the descriptor. The error wraps errAbsent when there is none.
func (d *directory) load(suffix uint64) (subtable, error) {
	if suffix >= 1<<d.Depth {
		return subtable{}, fmt.Errorf("suffix %d of a directory of %d: %w", suffix, 1<<d.Depth, client.ErrDamaged)
	}
	root := d.objects.Root(int(suffix))
	for range mostReads {
		b := d.ep.Batch()
		op := d.look(b, suffix)
		err := d.do(stepReadEntry, b)
		m := rtx.MetaOf(op.Buf)
		d.drop(b)
		switch {
		case err != nil:
			return subtable{}, err
		case !d.objects.Absent(m.Pointer):
			s, ok, err := d.readDescriptor(suffix, m.Pointer)
			if ok || err != nil {
				return s, err
			}
		case !m.Lock.Held():
			return subtable{}, fmt.Errorf("suffix %d: %w", suffix, errAbsent)
		default: // it is being made
			if err := d.w.Await(root); err != nil {
				return subtable{}, err
			}
		}
	}
	return subtable{}, fmt.Errorf("the directory's entry for suffix %d changes all the time: %w", suffix, rdma.ErrTimeout)
}

// mostReads bounds how often an entry is read that changes meanwhile: once for each split of its subtable.
const mostReads = 64

// readDescriptor reads what a pointer names; false: the entry has another one by now.
func (d *directory) readDescriptor(suffix uint64, p rtx.Pointer) (s subtable, ok bool, err error) {
	at, n, ok := d.objects.Buffer(p)
	if !ok {
		return s, false, fmt.Errorf("the directory's entry for suffix %d names %#x: %w", suffix, uint64(p), client.ErrDamaged)
	}
	b := d.ep.Batch()
	defer d.drop(b)
	op := b.Read(at, n)
	if err := d.do(stepReadEntry, b); err != nil {
		return s, false, err
	}
	_, data, ok := d.objects.Decode(op.Buf, p)
	if !ok {
		return s, false, nil
	}
	if s, err = d.decode(suffix, p, data); err != nil {
		return s, false, err
	}
	d.learn(s)
	return s, true, nil
}

// learn notes what an entry says.
func (d *directory) learn(s subtable) {
	for uint64(len(d.known)) <= s.suffix {
		d.known = append(d.known, subtable{depth: -1})
	}
	d.known[s.suffix] = s
}

// look adds a READ of an entry's lock and pointer.
func (d *directory) look(b *rdma.Batch, suffix uint64) *rdma.Op {
	return b.Read(d.objects.Meta(d.objects.Root(int(suffix))), rtx.MetaBytes)
}

// verdict is what a look says of what was done in a subtable before it.
type verdict uint8

const (
	valid   verdict = iota // the key's slots were in this subtable, and no rehash was about to move them
	changed                // the subtable was split, or the entry changed otherwise
	locked                 // a rehash may be moving the key
)

// judge says what a look means for a key. A rehash leaves keys alone that do not move: for them its lock means nothing.
func (d *directory) judge(op *rdma.Op, s subtable, hash uint64) verdict {
	m := rtx.MetaOf(op.Buf)
	switch {
	case m.Pointer != s.version:
		return changed
	case m.Lock.Held() && s.moves(hash):
		return locked
	}
	return valid
}

// refresh makes the client read an entry again behind a look that was not valid. A rehash that was about to move the
// key has ended then, or was ended by this client, since its lease was over.
func (d *directory) refresh(v verdict, s subtable) error {
	if v == locked {
		if err := d.w.Await(d.objects.Root(int(s.suffix))); err != nil {
			return err
		}
	}
	_, err := d.load(s.suffix)
	return err
}

// create makes the first subtable.
func (d *directory) create(place uint64) error {
	return d.w.Run(func(tx *rtx.Tx) error {
		return tx.Write(d.objects.Root(0), subtable{place: place}.encode())
	})
}

// split is a rehash, one transaction: the subtable is locked, copy makes memory at a place hold what moves there, and two
// descriptors are changed. done: false when another client was faster.
func (d *directory) split(s subtable, place uint64, takes time.Duration, copy func(s subtable) error) (done bool, err error) {
	err = d.w.Run(func(tx *rtx.Tx) error {
		done = false
		tx.Takes(takes)
		root := d.objects.Root(int(s.suffix))
		if err := tx.Lock(root); err != nil {
			return err
		}
		data, err := tx.Read(root)
		if err != nil {
			return err
		}
		now, err := d.decode(s.suffix, s.version, data)
		if err != nil || now.depth != s.depth {
			return err
		}
		if err := copy(now); err != nil {
			return err
		}
		done = true
		if err := tx.Write(root, subtable{depth: s.depth + 1, place: now.place}.encode()); err != nil {
			return err
		}
		return tx.Write(d.objects.Root(int(s.child())), subtable{depth: s.depth + 1, place: place}.encode())
	})
	return done && err == nil, err
}

// Counts appends the directory's counters.
func (d *directory) counts(to []telemetry.Counter) []telemetry.Counter { return d.w.Counts(to) }

func isAbsent(err error) bool { return errors.Is(err, errAbsent) }
