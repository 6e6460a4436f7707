package rcuckoo

import (
	"bytes"
	"encoding/binary"

	"github.com/cespare/xxhash/v2"
)

var le = binary.LittleEndian

// form is how a row is laid out:
//
//	entries   a key and its value, or its ref to an extent; as many bytes each, in whole words
//	metas     2 bytes for each entry; padded to whole words
//	version   8 bytes: how often the row was written. The paper's 8 bits come round between two looks of one reader. The highest
//	          8 are the row's level, which only grows, too: see levels.go
//	checksum  8 bytes, of all before it and of the row's place, so that no row is taken for another
//
// A row that was never written is zero, and has no entries. Since its version grows no other one
// is.
type form struct {
	entries, keyBytes, inlineBytes, entryBytes int
	metaAt, versionAt, sumAt, rowBytes         int
}

func newForm(p Params) *form {
	room := p.InlineBytes
	if p.extents() {
		room = max(room, refBytes)
	}
	f := &form{entries: p.Entries, keyBytes: p.KeyBytes, inlineBytes: p.InlineBytes, entryBytes: pad(p.KeyBytes + room)}
	f.metaAt = f.entries * f.entryBytes
	f.versionAt = f.metaAt + pad(2*f.entries)
	f.sumAt = f.versionAt + 8
	f.rowBytes = f.sumAt + 8
	return f
}

// A meta says what an entry is. From the highest bit:
//
//	used    1 bit: 0 in an entry that is free, which is all zero
//	extent  1 bit: the value is in an extent, and the entry has a ref
//	key     6 bits: its length
//	inline  8 bits: the value's length
type meta uint16

const (
	metaUsed   meta = 1 << 15
	metaExtent meta = 1 << 14
	keyBits         = 6
	inlineBits      = 8

	maxEntries = 64
)

func (m meta) used() bool   { return m&metaUsed != 0 }
func (m meta) extent() bool { return m&metaExtent != 0 }
func (m meta) key() int     { return int(m >> inlineBits & (1<<keyBits - 1)) }
func (m meta) inline() int  { return int(m & (1<<inlineBits - 1)) }

// A ref names a use of an extent.
type ref struct {
	extent uint64 // its number in the shard
	length int    // of the value
	stamp  uint64 // of the use: see extent.go
}

const (
	refBytes   = 16
	extentBits = 40
	lengthBits = 24
)

func (r ref) encode(p []byte) {
	le.PutUint64(p, r.extent<<lengthBits|uint64(r.length))
	le.PutUint64(p[8:], r.stamp)
}

func decodeRef(p []byte) ref {
	w := le.Uint64(p)
	return ref{extent: w >> lengthBits, length: int(w & maxExtentValue), stamp: le.Uint64(p[8:])}
}

// An entry is what a slot of a row holds, as it lies there: entryBytes of it. It may share them
// with a row.
type entry struct {
	body []byte
	meta meta
}

// inline encodes a pair whose value is in the entry, into p. Both must fit.
func (f *form) inline(p, key, value []byte) entry {
	p = p[:f.entryBytes]
	clear(p[copy(p, key):])
	copy(p[f.keyBytes:], value)
	return entry{p, metaUsed | meta(len(key))<<inlineBits | meta(len(value))}
}

// named encodes a pair whose value is in an extent, into p.
func (f *form) named(p, key []byte, r ref) entry {
	p = p[:f.entryBytes]
	clear(p[copy(p, key):])
	r.encode(p[f.keyBytes:])
	return entry{p, metaUsed | metaExtent | meta(len(key))<<inlineBits}
}

// sound reports whether an entry can have been written by a client.
func (f *form) sound(e entry) bool {
	switch {
	case !e.meta.used():
		return e.meta == 0
	case e.meta.key() > f.keyBytes:
		return false
	case e.meta.extent():
		return e.meta.inline() == 0 && f.keyBytes+refBytes <= f.entryBytes
	}
	return e.meta.inline() <= f.inlineBytes
}

// key, value and ref are of a sound entry, and share its bytes.
func (f *form) key(e entry) []byte   { return e.body[:e.meta.key()] }
func (f *form) value(e entry) []byte { return e.body[f.keyBytes : f.keyBytes+e.meta.inline()] }
func (f *form) ref(e entry) ref      { return decodeRef(e.body[f.keyBytes:]) }

// A row is rowBytes of memory. nil: not known.
type row []byte

// rowSeed makes a row's checksum its own.
func rowSeed(shard int, n uint32) uint64 { return spread(uint64(shard)<<32 | uint64(n)) }

// spread makes a number's bits a seed that differs in all of them; none is the seed of two numbers.
func spread(n uint64) uint64 {
	n = (n ^ n>>30) * 0xbf58476d1ce4e5b9
	n = (n ^ n>>27) * 0x94d049bb133111eb
	return n ^ n>>31
}

func (f *form) version(r row) uint64 { return le.Uint64(r[f.versionAt:]) }
func (f *form) level(r row) int      { return int(f.version(r) >> levelShift) }
func (f *form) sum(r row) uint64     { return le.Uint64(r[f.sumAt:]) }

// valid reports whether r is the row of a place, as a client left it: not torn, and not another's.
func (f *form) valid(r row, shard int, n uint32) bool {
	if f.version(r) == 0 {
		return f.zero(r)
	}
	return f.sum(r) == xxhash.Sum64(r[:f.sumAt])^rowSeed(shard, n)
}

func (f *form) zero(r row) bool {
	for i := 0; i < f.rowBytes; i += 8 {
		if le.Uint64(r[i:]) != 0 {
			return false
		}
	}
	return true
}

// seal gives a row that was changed its version, as a redo names it, and its checksum.
func (f *form) seal(r row, shard int, n uint32, version uint64) {
	le.PutUint64(r[f.versionAt:], version)
	le.PutUint64(r[f.sumAt:], xxhash.Sum64(r[:f.sumAt])^rowSeed(shard, n))
}

func (f *form) meta(r row, slot int) meta { return meta(le.Uint16(r[f.metaAt+2*slot:])) }

// entry returns what a slot holds; it shares the row's bytes.
func (f *form) entry(r row, slot int) entry {
	at := slot * f.entryBytes
	return entry{r[at : at+f.entryBytes : at+f.entryBytes], f.meta(r, slot)}
}

// find returns the slot of a key, or -1.
func (f *form) find(r row, key []byte) int {
	metas, want := r[f.metaAt:f.versionAt], metaUsed|meta(len(key))<<inlineBits
	for slot := range f.entries {
		const lengths = metaUsed | (1<<keyBits-1)<<inlineBits
		if m := meta(le.Uint16(metas[2*slot:])); m&lengths == want && bytes.Equal(r[slot*f.entryBytes:][:len(key)], key) {
			return slot
		}
	}
	return -1
}

// free returns the first slot that is free, or -1.
func (f *form) free(r row) int {
	for slot := range f.entries {
		if !f.meta(r, slot).used() {
			return slot
		}
	}
	return -1
}

// used returns how many slots are not free.
func (f *form) used(r row) (n int) {
	for slot := range f.entries {
		if f.meta(r, slot).used() {
			n++
		}
	}
	return n
}

// put sets a slot.
func (f *form) put(r row, slot int, e entry) {
	copy(r[slot*f.entryBytes:][:f.entryBytes], e.body)
	le.PutUint16(r[f.metaAt+2*slot:], uint16(e.meta))
}

// drop frees a slot.
func (f *form) drop(r row, slot int) {
	clear(r[slot*f.entryBytes:][:f.entryBytes])
	le.PutUint16(r[f.metaAt+2*slot:], 0)
}
