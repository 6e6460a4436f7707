package extendible

import (
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/client/rtx"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// walkAtOnce is how many entries of the directory a walk reads in a trip, and groupsAtOnce how many groups of a
// subtable.
const (
	walkAtOnce   = 256
	groupsAtOnce = 64
)

// walk reads all of the directory, in order of suffixes. Clients may work meanwhile: what changes then is left out, or
// was there.
func (l *layout) walk(ep rdma.Endpoint) (all []subtable, err error) {
	for from := uint64(0); from < 1<<l.Depth; from += walkAtOnce {
		some, err := l.walkSome(ep, from, min(from+walkAtOnce, 1<<l.Depth))
		if err != nil {
			return nil, fmt.Errorf("read the directory: %w", err)
		}
		all = append(all, some...)
	}
	return all, nil
}

func (l *layout) walkSome(ep rdma.Endpoint, from, to uint64) (some []subtable, err error) {
	b := ep.Batch()
	defer b.Release()
	for suffix := from; suffix < to; suffix++ {
		b.Read(l.objects.Meta(l.objects.Root(int(suffix))), rtx.MetaBytes)
	}
	if err := rdma.Do(ep, b.As(stepReadEntry), l.Timeout); err != nil {
		return nil, err
	}
	descriptors := ep.Batch()
	defer descriptors.Release()
	for i := range b.Len() {
		p := rtx.MetaOf(b.Op(i).Buf).Pointer
		if at, n, ok := l.objects.Buffer(p); ok {
			descriptors.Read(at, n)
			some = append(some, subtable{suffix: from + uint64(i), version: p})
		}
	}
	if descriptors.Len() == 0 {
		return nil, nil
	}
	if err := rdma.Do(ep, descriptors.As(stepReadEntry), l.Timeout); err != nil {
		return nil, err
	}
	kept := some[:0]
	for i, s := range some {
		if _, data, ok := l.objects.Decode(descriptors.Op(i).Buf, s.version); ok {
			s, err := l.decode(s.suffix, s.version, data)
			if err != nil {
				return nil, err
			}
			kept = append(kept, s)
		}
	}
	return kept, nil
}

// decode reads a descriptor.
func (l *layout) decode(suffix uint64, p rtx.Pointer, data []byte) (subtable, error) {
	if len(data) == descriptorBytes {
		s := subtable{suffix: suffix, version: p, depth: int(le.Uint64(data)), place: le.Uint64(data[8:])}
		if s.depth >= 0 && s.depth <= l.Depth && suffix < 1<<s.depth && l.validPlace(s.place) {
			return s, nil
		}
	}
	return subtable{}, fmt.Errorf("the descriptor of suffix %d is %x: %w", suffix, data, client.ErrDamaged)
}

// readGroups reads groups of a subtable, and calls f with each word, headers among them.
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

// entries reads the words of all chunks of an arena on a node.
func (l *layout) entries(ep rdma.Endpoint, a *arena, n int) (all []node.Entry, err error) {
	for from := 0; from < int(a.chunks); from += tableAtOnce {
		words := min(tableAtOnce, int(a.chunks)-from)
		p, err := rdma.ReadBytes(ep, stepReadTable, a.entryAt(n, from), 8*words, l.Timeout)
		if err != nil {
			return nil, fmt.Errorf("read the tables of node %d: %w", n, err)
		}
		for i := range words {
			all = append(all, node.Entry(le.Uint64(p[8*i:])))
		}
	}
	return all, nil
}

// handed returns how many chunks of an arena were handed out, on all nodes that answer.
func (l *layout) handed(ep rdma.Endpoint, a *arena) (n uint64, err error) {
	for k := range l.nodes {
		all, err := l.entries(ep, a, k)
		if err != nil {
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
