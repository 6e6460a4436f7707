// Package btree is the format of the nodes of a B-link tree in disaggregated
// memory (Sherman, SIGMOD 2022, section 4): fence keys, a sibling, leaves with
// entries in no order, so that each entry can be written by itself, and internal
// nodes in order. It has no verbs.
//
// Keys are compared bytewise. A node has the keys from its lower fence on, up to
// its upper fence and without it. What is decoded was checked: no call panics on
// a node of arbitrary bytes, or leads anywhere but to Refs.
package btree

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
)

// Ref names a node, or a value beside its leaf. 0 names none.
type Ref uint64

// A node:
//
//	0   kind
//	1   level: 0 is a leaf
//	2   number of entries of an internal node
//	4   bytes of the lower fence
//	5   bytes of the upper fence
//	6   whether there is an upper fence
//	8   sibling: the node to the right on the same level
//	16  leftmost child
//	24  lower fence, upper fence, with room for a key each
//	    entries
//
// Entries of a leaf are of one size, and free or used: see leaf.go. Those of an
// internal node are packed: see internal.go.
const (
	kindAt     = 0
	levelAt    = 1
	countAt    = 2
	lowerAt    = 4
	upperAt    = 5
	boundedAt  = 6
	siblingAt  = 8
	leftmostAt = 16
	fencesAt   = 24
)

// The kinds of what trees are made of.
const (
	kindNode  = 'n'
	kindValue = 'v'
)

// MaxLevel bounds the level of a node. Trees are not as high, since a node has
// several children.
const MaxLevel = 32

// Longest keys, and the fewest entries that a node of a format has room for.
const (
	MaxKey       = 250
	leastEntries = 2
)

var le = binary.LittleEndian

// ErrFormat is wrapped by errors about formats that no node can have.
var ErrFormat = errors.New("no such format of nodes")

// Format is how large nodes, keys and entries are.
type Format struct {
	NodeBytes int // of a node
	KeyBytes  int // of the longest key
	// Margin is how many bytes in front of each leaf entry, and behind it, are
	// the caller's. A tree that writes entries one by one may put versions there.
	Margin int

	// entries is the offset of the first entry.
	entries int
	// slot is the size of a leaf's entry with its margins, and slots how many a
	// leaf has.
	slot  int
	slots int
}

// NewFormat returns a format, or an error wrapping ErrFormat.
func NewFormat(nodeBytes, keyBytes, margin int) (*Format, error) {
	f := &Format{NodeBytes: nodeBytes, KeyBytes: keyBytes, Margin: margin}
	if keyBytes < 1 || keyBytes > MaxKey || margin < 0 || nodeBytes >= 1<<16 {
		return nil, fmt.Errorf("keys of %d bytes, margins of %d, nodes of %d: want keys of 1 to %d bytes, and "+
			"nodes below 64 KiB: %w", keyBytes, margin, nodeBytes, MaxKey, ErrFormat)
	}
	f.entries = fencesAt + 2*keyBytes
	f.slot = 2*margin + slotHeader + keyBytes + Inline
	f.slots = (nodeBytes - f.entries) / f.slot
	if least := f.entries + leastEntries*max(f.slot, directoryBytes+f.recordBytes(keyBytes)); nodeBytes < least {
		return nil, fmt.Errorf("nodes of %d bytes have no room for %d entries with keys of %d: want %d at least: %w",
			nodeBytes, leastEntries, keyBytes, least, ErrFormat)
	}
	return f, nil
}

// Header is what a node says of itself.
type Header struct {
	Level        int
	Lower, Upper []byte
	// Last: there is no upper fence.
	Last bool
	// Sibling is the next node of the level; 0: there is none.
	Sibling Ref
	// Leftmost is the child of an internal node with the keys below the first
	// entry's.
	Leftmost Ref
}

// Side says where a key is: below the node's lower fence (-1), among its keys (0), or from its
// upper fence on (1).
func (h *Header) Side(key []byte) int {
	switch {
	case bytes.Compare(key, h.Lower) < 0:
		return -1
	case !h.Last && bytes.Compare(key, h.Upper) >= 0:
		return 1
	}
	return 0
}

// write begins a node: its header, and zeros behind it.
func (f *Format) write(p []byte, h *Header) {
	clear(p[:f.NodeBytes])
	p[kindAt], p[levelAt] = kindNode, byte(h.Level)
	p[lowerAt] = byte(len(h.Lower))
	if !h.Last {
		p[boundedAt], p[upperAt] = 1, byte(len(h.Upper))
	}
	le.PutUint64(p[siblingAt:], uint64(h.Sibling))
	le.PutUint64(p[leftmostAt:], uint64(h.Leftmost))
	copy(p[fencesAt:][:f.KeyBytes], h.Lower)
	if !h.Last {
		copy(p[fencesAt+f.KeyBytes:][:f.KeyBytes], h.Upper)
	}
}

// SetSibling changes a node's sibling.
func SetSibling(p []byte, sibling Ref) { le.PutUint64(p[siblingAt:], uint64(sibling)) }

// Decode returns what a node says of itself. It returns false if p is no node of
// this format. The fences point into p.
func (f *Format) Decode(p []byte) (h Header, ok bool) {
	if len(p) != f.NodeBytes || p[kindAt] != kindNode || p[levelAt] > MaxLevel {
		return h, false
	}
	lower, upper := int(p[lowerAt]), int(p[upperAt])
	if lower > f.KeyBytes || upper > f.KeyBytes || p[boundedAt] > 1 {
		return h, false
	}
	h = Header{Level: int(p[levelAt]), Last: p[boundedAt] == 0, Lower: p[fencesAt:][:lower:lower]}
	h.Sibling, h.Leftmost = Ref(le.Uint64(p[siblingAt:])), Ref(le.Uint64(p[leftmostAt:]))
	if !h.Last {
		h.Upper = p[fencesAt+f.KeyBytes:][:upper:upper]
	}
	return h, true
}

// Separator returns the shortest key that is above left and not above right,
// which is above left: it divides a node between the two. It points into right.
func Separator(left, right []byte) []byte {
	n := 0
	for n < len(left) && n < len(right) && left[n] == right[n] {
		n++
	}
	return right[:min(n+1, len(right))]
}
