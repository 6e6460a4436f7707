package original

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"sort"

	"github.com/cespare/xxhash/v2"
	"github.com/farkv/farkv/node/rdma"
)

var le = binary.LittleEndian

// Inline is how many bytes of a value lie in its entry at most. A longer value
// lies beside the leaf, in a block.
const Inline = 8

// ref names a node of the tree, or a block: its memory node in bits 32 to 47, and
// below its number there, from 1 on. 0 names none.
type ref uint64

// makeRef returns the ref of the object with an index, from 0 on.
func makeRef(node, index int) ref { return ref(node)<<32 | ref(index+1) }

// refMask covers the ref in a pointer or in the root's word.
const refMask = 1<<48 - 1

// node returns the memory node.
func (r ref) node() int { return int(r >> 32) }

// index returns the place in the arena, from 0 on.
func (r ref) index() int     { return int(uint32(r)) - 1 }
func (r ref) String() string { return fmt.Sprintf("%d/%d", r.node(), r.index()) }

// pointer names a use of a block: its ref, and above it the lower 16 bits of its
// generation. A block that is used again has another generation, by which a
// reader notices.
type pointer uint64

// makePointer returns the pointer of a use of a block.
func makePointer(r ref, generation uint16) pointer { return pointer(r) | pointer(generation)<<48 }

// ref returns the block that the pointer names.
func (p pointer) ref() ref { return ref(p & refMask) }

// generation returns which use of the block it names.
func (p pointer) generation() uint16 { return uint16(p >> 48) }

// owned returns the word of the block while a client owns this use of it.
func (p pointer) owned(by rdma.ClientID) uint64 { return uint64(makeOwner(by, p.generation())) }

// next returns the pointer of the block's next use.
func (p pointer) next() pointer { return makePointer(p.ref(), p.generation()+1) }

// root is the word that names the root: its ref, and its level above. Levels only
// grow, so the word never comes back.
type root uint64

// makeRoot returns the root's word.
func makeRoot(r ref, level int) root { return root(r) | root(level)<<48 }
func (w root) ref() ref              { return ref(w & refMask) }
func (w root) level() int            { return int(w >> 48) }

// owner is the word of an object: its owner in the upper 16 bits, and in the
// lower 16 its generation, which pointers to it have, too. Owner 0: it is free.
type owner uint64

// linked owns what the tree names. No client has that identity.
const linked rdma.ClientID = 0xffff

// makeOwner returns the word of an object that a client owns.
func makeOwner(c rdma.ClientID, generation uint16) owner { return owner(c)<<48 | owner(generation) }
func (w owner) client() rdma.ClientID                    { return rdma.ClientID(w >> 48) }
func (w owner) generation() uint16                       { return uint16(w) }

// format is how large nodes, keys and entries are.
//
// A node is two copies of its header, and its entries. Of the copies that are
// whole, the one of the higher version counts. All fields that are written one by
// one are words, which do not tear. A header:
//
//	0   checksum, of what follows and the node's ref
//	4   version: raised when the header is written; its lowest bit says in
//	    which copy
//	6   level: 0 is a leaf
//	7   1: there is no upper fence
//	8   sibling: the node to the right on the same level
//	16  leftmost child of an internal node
//	24  bytes of the lower fence, bytes of the upper one
//	26  number of entries of an internal node
//	28  their checksum
//	32  lower fence, upper fence, each in as many words as keys take
//
// An entry of a leaf is a word that says what it is (see slot), a key, and a word
// with the value or a pointer to its block. An entry of an internal node is a
// word with a child and the length of its key, and the key. Those of an internal
// node are in order.
type format struct {
	nodeBytes, keyBytes, valueBytes int

	// keyRoom is the bytes of a key in whole words.
	keyRoom int
	// header is the size of one copy of the header.
	header int
	// body is the offset of the entries.
	body int
	// slot is the size of a leaf's entry, and slots how many a leaf has.
	slot  int
	slots int
	// child is the size of an internal node's entry, and children how many it has
	// room for.
	child    int
	children int
	// blockBytes is the size of a block: room for the longest pair.
	blockBytes int
}

const (
	sumAt      = 0
	versionAt  = 4
	levelAt    = 6
	lastAt     = 7
	siblingAt  = 8
	leftmostAt = 16
	lowerAt    = 24
	upperAt    = 25
	countAt    = 26
	bodySumAt  = 28
	fencesAt   = 32

	// leastEntries is the least number of entries that a node has room for.
	leastEntries = 2
)

// newFormat returns a format. The error wraps ErrParams.
func newFormat(nodeBytes, keyBytes, valueBytes int) (*format, error) {
	if keyBytes < 1 || keyBytes > MaxKey || valueBytes < 0 || valueBytes > MaxValue || nodeBytes < 0 ||
		nodeBytes > MaxNode {
		return nil, fmt.Errorf("nodes of %d bytes, keys of %d, values of %d: want up to %d, 1 to %d, and up to %d: %w",
			nodeBytes, keyBytes, valueBytes, MaxNode, MaxKey, MaxValue, ErrParams)
	}
	nodeBytes = (nodeBytes + 7) &^ 7
	f := &format{nodeBytes: nodeBytes, keyBytes: keyBytes, valueBytes: valueBytes, keyRoom: (keyBytes + 7) &^ 7}
	f.header = fencesAt + 2*f.keyRoom
	f.body = 2 * f.header
	f.slot, f.child = 16+f.keyRoom, 8+f.keyRoom
	f.slots, f.children = (nodeBytes-f.body)/f.slot, (nodeBytes-f.body)/f.child
	if nodeBytes < f.body+leastEntries*f.slot {
		return nil, fmt.Errorf("nodes of %d bytes have no room for %d entries with keys of %d: want %d at least: %w",
			nodeBytes, leastEntries, keyBytes, f.body+leastEntries*f.slot, ErrParams)
	}
	f.blockBytes = (blockHeader + f.keyRoom + valueBytes + 63) &^ 63
	return f, nil
}

// checksum returns the checksum of bytes that belong to an object. It depends on
// the object's ref, so bytes of another object are not taken for this one's.
func checksum(p []byte, of uint64) uint32 {
	// The object's ref is mixed in behind the hash, so that the hash is computed
	// over p alone.
	h := xxhash.Sum64(p) ^ of*0x9e3779b97f4a7c15
	h ^= h >> 32
	h *= 0xd6e8feb86659fd93
	return uint32(h >> 32)
}

// header is what a node says of itself.
type header struct {
	// version is raised with each header that is written. Slots have the version
	// as of which they were written.
	version uint16
	// level is 0 for a leaf.
	level int
	// The node has the keys from lower on, up to upper and without it.
	lower, upper []byte
	// last: there is no upper fence.
	last bool
	// sibling is the next node of the level. leftmost is the child of an internal
	// node with the keys below the first entry's.
	sibling, leftmost ref
	// count is the number of entries of an internal node, and bodySum their
	// checksum.
	count   int
	bodySum uint32
}

// beyond reports whether a key is at the upper fence or above it: then it belongs
// to a node to the right.
func (h *header) beyond(key []byte) bool { return !h.last && bytes.Compare(key, h.upper) >= 0 }

// has reports whether a key belongs to the node.
func (h *header) has(key []byte) bool { return bytes.Compare(key, h.lower) >= 0 && !h.beyond(key) }

// copyOf returns the copy of the header that a version is written to. It is the
// one that does not count before, so the header that counts is whole at any
// moment.
func (f *format) copyOf(p []byte, version uint16) []byte {
	return p[int(version&1)*f.header:][:f.header]
}

// writeHeader writes a header to c, which has the bytes of a copy.
func (f *format) writeHeader(c []byte, r ref, h *header) {
	clear(c[:f.header])
	le.PutUint16(c[versionAt:], h.version)
	c[levelAt] = byte(h.level)
	le.PutUint64(c[siblingAt:], uint64(h.sibling))
	le.PutUint64(c[leftmostAt:], uint64(h.leftmost))
	c[lowerAt] = byte(len(h.lower))
	copy(c[fencesAt:][:f.keyRoom], h.lower)
	if h.last {
		c[lastAt] = 1
	} else {
		c[upperAt] = byte(len(h.upper))
		copy(c[fencesAt+f.keyRoom:], h.upper)
	}
	le.PutUint16(c[countAt:], uint16(h.count))
	le.PutUint32(c[bodySumAt:], h.bodySum)
	le.PutUint32(c[sumAt:], checksum(c[versionAt:f.header], uint64(r)))
}

// readCopy returns what a copy of the header says. It returns false if the copy
// is not whole. The fences point into c.
func (f *format) readCopy(c []byte, r ref) (h header, ok bool) {
	lower, upper := int(c[lowerAt]), int(c[upperAt])
	if le.Uint32(c) != checksum(c[versionAt:f.header], uint64(r)) || lower > f.keyBytes || upper > f.keyBytes {
		return h, false
	}
	h = header{
		version: le.Uint16(c[versionAt:]), level: int(c[levelAt]), last: c[lastAt] == 1,
		lower:   c[fencesAt:][:lower:lower],
		sibling: ref(le.Uint64(c[siblingAt:])), leftmost: ref(le.Uint64(c[leftmostAt:])),
		count:   int(le.Uint16(c[countAt:])),
		bodySum: le.Uint32(c[bodySumAt:]),
	}
	if !h.last {
		h.upper = c[fencesAt+f.keyRoom:][:upper:upper]
	}
	// A header that is whole may be another format's: what it says has to fit
	// this one.
	return h, h.level <= mostHeight && (h.level == 0) == (h.leftmost == 0) && h.count <= f.children &&
		h.last == (h.sibling == 0)
}

// newer reports whether version a comes after version b. Versions wrap, so this
// holds for versions that are less than 32,768 apart.
func newer(a, b uint16) bool { return int16(a-b) > 0 }

// readHeader returns a node's header: the newer one of its copies that are whole.
// It returns false if none is.
func (f *format) readHeader(p []byte, r ref) (header, bool) {
	a, aOK := f.readCopy(p[:f.header], r)
	b, bOK := f.readCopy(p[f.header:f.body], r)
	// Writers raise the version by one, and write the copy that its lowest bit
	// says, so the copies are never of the same version.
	if bOK && (!aOK || newer(b.version, a.version)) {
		return b, true
	}
	return a, aOK
}

// writeNode writes a new node without entries to p.
func (f *format) writeNode(p []byte, r ref, h *header) {
	clear(p[:f.nodeBytes])
	f.writeHeader(f.copyOf(p, h.version), r, h)
}

const (
	// A slot has nothing, a value of 0 to Inline bytes, or a pointer.
	slotFree = iota
	slotInline
	slotBeside = slotInline + Inline + 1
)

// The word in front of a slot:
//
//	0  checksum, of what follows, and of the key and the value's word unless
//	   the slot is free
//	4  version of the node's header when it was written
//	6  bytes of the key
//	7  kind
//
// The word is 0 in a slot that was never used.
const (
	slotVersionAt = 4
	slotKeyAt     = 6
	slotKindAt    = 7
	slotHeader    = 8
)

// leaf is a node of level 0 that was read, with its ref. It points into the bytes
// that it was read into.
type leaf struct {
	header
	f *format
	p []byte
	r ref
}

// readLeaf returns a leaf. It returns false if p has no whole header of a leaf.
// Single slots may be torn all the same: see steady.
func (f *format) readLeaf(p []byte, r ref) (l leaf, ok bool) {
	h, ok := f.readHeader(p, r)
	return leaf{h, f, p, r}, ok && h.level == 0
}

// offset returns where the i-th slot lies in the node.
func (l *leaf) offset(i int) int { return l.f.body + i*l.f.slot }

// slot returns the bytes of the i-th slot.
func (l *leaf) slot(i int) []byte { return l.p[l.offset(i):][:l.f.slot] }

// kind returns what the i-th slot has: see slotFree.
func (l *leaf) kind(i int) int { return int(l.slot(i)[slotKindAt]) }

// value returns the i-th slot's word of the value: inline bytes, or a pointer.
func (l *leaf) value(i int) uint64 { return le.Uint64(l.slot(i)[slotHeader+l.f.keyRoom:]) }

// inline returns the value that lies in a slot.
func (l *leaf) inline(i int) []byte {
	n := l.kind(i) - slotInline
	return l.slot(i)[slotHeader+l.f.keyRoom:][:n:n]
}

// key returns the key of a slot.
func (l *leaf) key(i int) []byte {
	s := l.slot(i)
	n := int(s[slotKeyAt])
	return s[slotHeader:][:n:n]
}

// slotSum returns the checksum that a slot should have. That of a free slot
// covers its word alone, so a DELETE writes one word.
func (f *format) slotSum(s []byte, r ref) uint32 {
	if s[slotKindAt] == slotFree {
		return checksum(s[slotVersionAt:slotHeader], uint64(r))
	}
	return checksum(s[slotVersionAt:f.slot], uint64(r))
}

// whole reports whether a slot is as it was written, and not torn.
func (l *leaf) whole(i int) bool {
	s := l.slot(i)
	// The slot was never used.
	if le.Uint64(s) == 0 {
		return true
	}
	return int(s[slotKeyAt]) <= l.f.keyBytes && s[slotKindAt] <= slotBeside && le.Uint32(s) == l.f.slotSum(s, l.r)
}

// steady reports whether a slot is whole, and is not of a later header than the
// one that was read. In the latter case the slot may have had a key that a split
// has moved since: a reader with the old fences would miss that key.
func (l *leaf) steady(i int) bool {
	return l.whole(i) && (le.Uint64(l.slot(i)) == 0 || !newer(le.Uint16(l.slot(i)[slotVersionAt:]), l.version))
}

// find returns the slot of a key, or -1 if there is none. The slot may not be
// steady.
func (l *leaf) find(key []byte) int {
	for i := range l.f.slots {
		s := l.slot(i)
		if s[slotKindAt] != slotFree && int(s[slotKeyAt]) == len(key) && bytes.Equal(s[slotHeader:][:len(key)], key) {
			return i
		}
	}
	return -1
}

// allSteady reports whether all slots are steady.
func (l *leaf) allSteady() bool {
	for i := range l.f.slots {
		if !l.steady(i) {
			return false
		}
	}
	return true
}

// used reports whether a slot has a pair of the leaf. Pairs beyond the upper
// fence were moved by a split that did not come to free their slots.
func (l *leaf) used(i int) bool { return l.kind(i) != slotFree && !l.beyond(l.key(i)) }

// free returns a slot without a pair, or -1 if the leaf is full.
func (l *leaf) free() int {
	for i := range l.f.slots {
		if !l.used(i) {
			return i
		}
	}
	return -1
}

// pairs appends the slots that have a pair, in the order of their keys.
func (l *leaf) pairs(to []int) []int {
	for i := range l.f.slots {
		if l.used(i) {
			to = append(to, i)
		}
	}
	slices.SortFunc(to, func(a, b int) int { return bytes.Compare(l.key(a), l.key(b)) })
	return to
}

// writeSlot writes a pair to the slot s of node r, as of a version of the node's
// header.
func (f *format) writeSlot(s []byte, r ref, version uint16, key []byte, kind int, value uint64) {
	clear(s[:f.slot])
	le.PutUint16(s[slotVersionAt:], version)
	s[slotKeyAt], s[slotKindAt] = byte(len(key)), byte(kind)
	copy(s[slotHeader:], key)
	le.PutUint64(s[slotHeader+f.keyRoom:], value)
	le.PutUint32(s, f.slotSum(s, r))
}

// renewSlot writes the word in front of a slot again, as of a version. The rest
// of the slot stays as it is.
func (f *format) renewSlot(s []byte, r ref, version uint16, kind int) {
	le.PutUint16(s[slotVersionAt:], version)
	if s[slotKindAt] = byte(kind); kind == slotFree {
		s[slotKeyAt] = 0
	}
	le.PutUint32(s, f.slotSum(s, r))
}

// inlineWord returns the word and the kind of a value that lies in its slot.
func inlineWord(value []byte) (word uint64, kind int) {
	var p [Inline]byte
	copy(p[:], value)
	return le.Uint64(p[:]), slotInline + len(value)
}

// internal is a node above level 0 that was read. It points into the bytes that
// it was read into.
type internal struct {
	header
	f *format
	p []byte
}

// childKeyAt is the byte of an entry's word that has the length of its key. Refs
// leave it free.
const childKeyAt = 7

// readInternal returns an internal node, by the newer one of its headers that
// belongs to the entries. It returns false if none does: the node is being
// written.
func (f *format) readInternal(p []byte, r ref) (internal, bool) {
	a, aOK := f.readCopy(p[:f.header], r)
	b, bOK := f.readCopy(p[f.header:f.body], r)
	if bOK && (!aOK || newer(b.version, a.version)) {
		a, b, aOK, bOK = b, a, bOK, aOK
	}
	// The newer header may be written before its entries. The older one counts as
	// long as its entries are there.
	if aOK && f.bodyWhole(p, r, &a) {
		return internal{a, f, p}, true
	}
	return internal{b, f, p}, bOK && f.bodyWhole(p, r, &b)
}

// bodyWhole reports whether the entries are those of a header.
func (f *format) bodyWhole(p []byte, r ref, h *header) bool {
	return h.level > 0 && h.bodySum == checksum(p[f.body:][:h.count*f.child], uint64(r))
}

// entry is a child of an internal node with the lowest key that belongs to it.
type entry struct {
	key   []byte
	child ref
}

// entry returns the i-th entry. Its key points into the node.
func (n *internal) entry(i int) entry {
	p := n.p[n.f.body+i*n.f.child:][:n.f.child]
	k := int(p[childKeyAt])
	return entry{p[8:][:k:k], ref(le.Uint64(p) & refMask)}
}

// place returns which child a key belongs to: from 0, the leftmost, to count.
func (n *internal) place(key []byte) int {
	return sort.Search(n.count, func(i int) bool { return bytes.Compare(n.entry(i).key, key) > 0 })
}

// at returns the i-th child, from 0, the leftmost, to count.
func (n *internal) at(i int) ref {
	if i == 0 {
		return n.leftmost
	}
	return n.entry(i - 1).child
}

// entries appends all entries to a list.
func (n *internal) entries(to []entry) []entry {
	for i := range n.count {
		to = append(to, n.entry(i))
	}
	return to
}

// writeInternal writes the entries of an internal node to p, and the copy of its
// header. It sets count and checksum in h.
func (f *format) writeInternal(p []byte, r ref, h *header, entries []entry) {
	clear(p[f.body:f.nodeBytes])
	for i := range entries {
		at := p[f.body+i*f.child:]
		le.PutUint64(at, uint64(entries[i].child))
		at[childKeyAt] = byte(len(entries[i].key))
		copy(at[8:], entries[i].key)
	}
	// The checksum of the entries is part of the header, so a header says which
	// entries it belongs to.
	h.count = len(entries)
	h.bodySum = checksum(p[f.body:][:h.count*f.child], uint64(r))
	f.writeHeader(f.copyOf(p, h.version), r, h)
}

// A block has a pair with a value that is longer than Inline:
//
//	0   checksum, of what follows
//	4   bytes of the value, 24 bits, and of the key
//	8   pointer to itself, as of this use
//	16  pointer to the block that it takes the place of; 0: none
//	24  key, in as many words as keys take
//	    value
//
// The pointer at 16 is a record for the recovery: it says what the writer of this
// block has to free.
const (
	blockSelfAt     = 8
	blockReplacesAt = 16
	blockHeader     = 24
)

// writeBlock writes a block to p and returns its bytes, a part of p.
func (f *format) writeBlock(p []byte, self, replaces pointer, key, value []byte) []byte {
	n := blockHeader + f.keyRoom + len(value)
	clear(p[:blockHeader+f.keyRoom])
	le.PutUint32(p[4:], uint32(len(value))|uint32(len(key))<<24)
	le.PutUint64(p[blockSelfAt:], uint64(self))
	le.PutUint64(p[blockReplacesAt:], uint64(replaces))
	copy(p[blockHeader:], key)
	copy(p[blockHeader+f.keyRoom:], value)
	// A block names itself, so its checksum needs no ref.
	le.PutUint32(p, checksum(p[4:n], 0))
	return p[:n]
}

// block is a block that was read. key and value point into the bytes that it was
// read into.
type block struct {
	// self names this use of the block, and replaces the block that this one took
	// the place of.
	self, replaces pointer
	key, value     []byte
}

// readBlock returns a block. It returns false if p is not a whole one.
func (f *format) readBlock(p []byte) (b block, ok bool) {
	lengths := le.Uint32(p[4:])
	key, value := int(lengths>>24), int(lengths&0xffffff)
	end := blockHeader + f.keyRoom + value
	if key > f.keyBytes || end > len(p) || le.Uint32(p) != checksum(p[4:end], 0) {
		return b, false
	}
	return block{
		self: pointer(le.Uint64(p[blockSelfAt:])), replaces: pointer(le.Uint64(p[blockReplacesAt:])),
		key: p[blockHeader:][:key:key], value: p[blockHeader+f.keyRoom : end : end],
	}, true
}
