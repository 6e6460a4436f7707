package btree

import (
	"bytes"
	"slices"
	"sort"
)

// The entries of an internal node are in order. A directory has the offset of
// each. Behind it lie the records, packed, since separators are short:
//
//	0  bytes of the separator
//	1  child
//	9  separator
const (
	directoryBytes = 2
	recordHeader   = 9
)

// recordBytes returns the size of a record with a key of so many bytes.
func (f *Format) recordBytes(key int) int { return recordHeader + key }

// Entry is a child with the lowest key that belongs to it: the separator from the child before.
type Entry struct {
	Key   []byte
	Child Ref
}

// Internal is a node above level 0 that was decoded. It points into the bytes
// that it was decoded from, and is valid as long as these do not change.
type Internal struct {
	Header
	f *Format
	p []byte
	n int
}

// DecodeInternal decodes an internal node. It checks that all entries lie in p,
// in order, between the fences. It returns false if p is no such node.
func (f *Format) DecodeInternal(p []byte) (n Internal, ok bool) {
	h, ok := f.Decode(p)
	if !ok || h.Level == 0 || h.Leftmost == 0 {
		return n, false
	}
	n = Internal{h, f, p, int(le.Uint16(p[countAt:]))}
	records := f.entries + n.n*directoryBytes
	if records > f.NodeBytes {
		return n, false
	}
	before := h.Lower
	for i := range n.n {
		at := n.offset(i)
		if at < records || at+recordHeader > f.NodeBytes {
			return n, false
		}
		key := int(p[at])
		if key > f.KeyBytes || at+recordHeader+key > f.NodeBytes {
			return n, false
		}
		e := n.Entry(i)
		if e.Child == 0 || bytes.Compare(e.Key, before) <= 0 || h.Side(e.Key) != 0 {
			return n, false
		}
		before = e.Key
	}
	return n, true
}

// Room returns how many bytes of entries an internal node has room for.
func (f *Format) Room() int { return f.NodeBytes - f.entries }

// Bytes returns how many bytes entries take.
func (f *Format) Bytes(entries []Entry) (n int) {
	for i := range entries {
		n += directoryBytes + f.recordBytes(len(entries[i].Key))
	}
	return n
}

// WriteInternal writes an internal node to p. The entries are in order, and fit
// the node: see Room.
func (f *Format) WriteInternal(p []byte, h Header, entries []Entry) {
	f.write(p, &h)
	le.PutUint16(p[countAt:], uint16(len(entries)))
	at := f.entries + len(entries)*directoryBytes
	for i := range entries {
		e := &entries[i]
		le.PutUint16(p[f.entries+i*directoryBytes:], uint16(at))
		p[at] = byte(len(e.Key))
		le.PutUint64(p[at+1:], uint64(e.Child))
		at += recordHeader + copy(p[at+recordHeader:], e.Key)
	}
}

// Count returns how many entries there are: one less than children.
func (n *Internal) Count() int { return n.n }

// offset returns where the i-th record lies.
func (n *Internal) offset(i int) int { return int(le.Uint16(n.p[n.f.entries+i*directoryBytes:])) }

// Entry returns the i-th entry. Its key points into the node.
func (n *Internal) Entry(i int) Entry {
	at := n.offset(i)
	key := int(n.p[at])
	return Entry{n.p[at+recordHeader:][:key:key], Ref(le.Uint64(n.p[at+1:]))}
}

// Place returns which child a key belongs to: from 0, the leftmost, to Count.
func (n *Internal) Place(key []byte) int {
	return sort.Search(n.n, func(i int) bool { return bytes.Compare(n.Entry(i).Key, key) > 0 })
}

// Child returns the i-th child, from 0, the leftmost, to Count.
func (n *Internal) Child(i int) Ref {
	if i == 0 {
		return n.Leftmost
	}
	return n.Entry(i - 1).Child
}

// Bounds returns the fences of the i-th child. last: it has no upper fence.
func (n *Internal) Bounds(i int) (lower, upper []byte, last bool) {
	lower, upper, last = n.Lower, n.Upper, n.Last
	if i > 0 {
		lower = n.Entry(i - 1).Key
	}
	if i < n.n {
		upper, last = n.Entry(i).Key, false
	}
	return lower, upper, last
}

// Entries appends all entries to a list. They point into the node.
func (n *Internal) Entries(to []Entry) []Entry {
	for i := range n.n {
		to = append(to, n.Entry(i))
	}
	return to
}

// InsertEntry inserts an entry into a list that is in order and does not have its key.
func InsertEntry(list []Entry, e Entry) []Entry {
	i, _ := slices.BinarySearchFunc(list, e.Key, func(a Entry, key []byte) int { return bytes.Compare(a.Key, key) })
	return slices.Insert(list, i, e)
}

// HalveEntries returns which of the entries of an internal node that is too full
// goes up to its parent. Those before it stay. Its child becomes the leftmost one
// of the new node, which gets those behind it. last: the node is the last one of
// its level, and its last entry is the new one. Then keys seem to come in order,
// and all others but one stay.
func (f *Format) HalveEntries(entries []Entry, last bool) (up int) {
	if last {
		return len(entries) - 2
	}
	half, n := f.Bytes(entries)/2, 0
	for i := range entries {
		if n += directoryBytes + f.recordBytes(len(entries[i].Key)); n > half {
			return min(max(i, 1), len(entries)-2)
		}
	}
	return len(entries) - 2
}
