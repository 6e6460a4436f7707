package extendible

import (
	"errors"
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/chunks"
	"github.com/farkv/farkv/client/dtx"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/client/rtx"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

const (
	// walkAtOnce is how many entries of the directory a walk reads in a trip, and
	// groupsAtOnce how many groups of a subtable.
	walkAtOnce   = 256
	groupsAtOnce = 64
)

// walk reads all of the directory, in order of suffixes. Clients may work
// meanwhile: an entry that changes is left out, or returned as it was. What dead
// nodes had is left out, too. hidden counts entries that a lock hides.
func (l *layout) walk(ep rdma.Endpoint) (all []subtable, hidden int, err error) {
	for from := uint64(0); from < 1<<l.Depth; from += walkAtOnce {
		some, locked, err := l.walkSome(ep, from, min(from+walkAtOnce, 1<<l.Depth))
		if err != nil {
			return nil, 0, fmt.Errorf("read the directory: %w", err)
		}
		all, hidden = append(all, some...), hidden+locked
	}
	return all, hidden, nil
}

// walkSome is walk for the suffixes from one up to another. It reads entries, and
// then the descriptors that they name.
func (l *layout) walkSome(ep rdma.Endpoint, from, to uint64) (some []subtable, hidden int, err error) {
	b := ep.Batch()
	defer b.Release()
	for suffix := from; suffix < to; suffix++ {
		b.Read(l.entryAt(suffix))
	}
	if err := l.whereLeft(rdma.Do(ep, b.As(stepReadEntry), l.Timeout)); err != nil {
		return nil, 0, err
	}
	descriptors := ep.Batch()
	defer descriptors.Release()
	for i := range b.Len() {
		// A dead node had the entry.
		if b.Op(i).Err != nil {
			continue
		}
		version, locked := l.readEntry(b.Op(i), from+uint64(i))
		// An empty entry has no subtable. One that is locked may have one.
		if version == 0 {
			if locked {
				hidden++
			}
			continue
		}
		// The version names the descriptor. One that is READ behind it, and is
		// of another version, is left out.
		some = append(some, subtable{suffix: from + uint64(i), version: version})
		if at, n, ok := l.descriptorAt(version); ok {
			descriptors.Read(at, n)
		}
	}
	if descriptors.Len() > 0 {
		if err := l.whereLeft(rdma.Do(ep, descriptors.As(stepReadEntry), l.Timeout)); err != nil {
			return nil, 0, err
		}
	}
	kept := some[:0]
	for i, s := range some {
		// DTX's and Locked's entries have their descriptor in them.
		p := b.Op(int(s.suffix - from)).Buf
		if descriptors.Len() > 0 {
			if descriptors.Op(i).Err != nil {
				continue
			}
			p = descriptors.Op(i).Buf
		}
		s, ok, err := l.decode(s.suffix, s.version, p)
		if err != nil {
			return nil, 0, err
		}
		if ok {
			kept = append(kept, s)
		}
	}
	return kept, hidden, nil
}

// whereLeft is the error of a look at a pool that leaves out what dead nodes had.
func (l *layout) whereLeft(err error) error {
	if errors.Is(err, rdma.ErrNodeDown) {
		return nil
	}
	return err
}

// entryAt returns where a suffix's entry lies, and how many bytes it has.
func (l *layout) entryAt(suffix uint64) (rdma.Addr, int) {
	switch l.format {
	case RTX:
		return l.objects.Meta(l.objects.Root(int(suffix))), rtx.MetaBytes
	case DTX:
		return l.places.Object(l.places.Root(int(suffix)))
	}
	n := uint64(l.nodes)
	return rdma.At(int(suffix%n), node.HeaderBytes+suffix/n*8), 8
}

// readEntry returns the version of an entry that was read, and whether the entry
// is locked. The version differs from all earlier ones of the entry. 0: the entry
// has no subtable; or, if it is locked, what it has is not known.
func (l *layout) readEntry(op *rdma.Op, suffix uint64) (version uint64, locked bool) {
	switch l.format {
	case RTX:
		m := rtx.MetaOf(op.Buf)
		if !l.objects.Absent(m.Pointer) {
			version = uint64(m.Pointer)
		}
		return version, m.Lock.Held()
	case DTX:
		v, data, ok := dtx.Decode(op.Buf, l.places.Root(int(suffix)))
		if ok && data == nil {
			v = 0
		}
		// It is locked, or the READ was torn.
		if !ok {
			return 0, true
		}
		return uint64(v), false
	}
	e := entryWord(op.Word(0))
	return e.version(), e.locked()
}

// descriptorAt returns where the descriptor of an entry lies. It returns false if
// the entry itself has it.
func (l *layout) descriptorAt(version uint64) (at rdma.Addr, bytes int, ok bool) {
	if l.format != RTX {
		return 0, 0, false
	}
	return l.objects.Buffer(rtx.Pointer(version))
}

// decode reads a descriptor, from what its entry names, or from the entry itself.
// It returns false if the entry has another one by now. The error wraps
// client.ErrDamaged.
func (l *layout) decode(suffix, version uint64, p []byte) (s subtable, ok bool, err error) {
	s = subtable{suffix: suffix, version: version}
	var data []byte
	switch l.format {
	case RTX:
		if _, data, ok = l.objects.Decode(p, rtx.Pointer(version)); !ok {
			return s, false, nil
		}
	case DTX:
		_, data, _ = dtx.Decode(p, l.places.Root(int(suffix)))
	default:
		e := entryWord(version)
		s.depth, s.place = e.depth(), e.place()
	}
	if len(data) == descriptorBytes {
		s.depth, s.place = int(le.Uint64(data)), le.Uint64(data[8:])
	}
	if s.depth >= 0 && s.depth <= l.Depth && suffix < 1<<s.depth && l.validPlace(s.place) {
		return s, true, nil
	}
	return s, false, fmt.Errorf("the entry of suffix %d, %#x, has local depth %d, place %d: %w", suffix, version,
		s.depth, s.place, client.ErrDamaged)
}

// readGroups reads groups of a subtable, and calls f with each word, headers
// included.
// The READs are of different moments: slots may be changed in between.
func (l *layout) readGroups(ep rdma.Endpoint, place uint64, from, to int, f func(slot race.Slot, word uint64)) error {
	for ; from < to; from += groupsAtOnce {
		first := race.Slot(from * race.GroupBytes / bytesPerWord)
		n := min(groupsAtOnce, to-from) * race.GroupBytes
		p, err := rdma.ReadBytes(ep, stepReadSubtable, l.subtableAt(place).Add(first.Offset()), n, l.Timeout)
		if err != nil {
			return fmt.Errorf("read the subtable at %v: %w", l.subtableAt(place), err)
		}
		for i := range n / bytesPerWord {
			f(first+race.Slot(i), le.Uint64(p[i*bytesPerWord:]))
		}
	}
	return nil
}

// handed returns how many chunks of an arena were handed out, on nodes that
// answer.
func (l *layout) handed(ep rdma.Endpoint, a *chunks.Arena) (n uint64, err error) {
	for k := range l.nodes {
		all, err := a.Survey(ep, stepReadTable, k, l.Timeout)
		if err := l.whereLeft(err); err != nil {
			return 0, err
		}
		for _, e := range all {
			if e != 0 {
				n++
			}
		}
	}
	return n, nil
}
