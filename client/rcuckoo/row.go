package rcuckoo

import (
	"bytes"
	"encoding/binary"

	"github.com/cespare/xxhash/v2"
)

var le = binary.LittleEndian

// form is how a row is laid out:
//
//	entries   a key and its value, or its ref to an extent; all of one size, in whole words
//	metas     2 bytes for each entry; padded to whole words
//	version   8 bytes: how often the row was written. The highest 8 bits are the row's level,
//	          which only grows, too: see levels.go. The paper has 8 bits, which repeat: a reader
//	          could take two different rows for the same.
//	checksum  8 bytes, of all before it and of the row's place, so that no row is taken for
//	          another
//
// A row that was never written is zero, and has no entries. Each write increases the version, so
// no other row is zero.
type form struct {
	// The parameters of a row, and the size of an entry.
	entries, keyBytes, inlineBytes, entryBytes int
	// Offsets in a row, and its size. All are multiples of 8.
	metaAt, versionAt, sumAt, rowBytes int
}

// newForm computes how rows are laid out. An entry has room for a ref if some values are not
// inline.
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

	// maxEntries bounds the entries of a row: a redo has one bit for each in a word.
	maxEntries = 64
)

func (m meta) used() bool   { return m&metaUsed != 0 }
func (m meta) extent() bool { return m&metaExtent != 0 }
func (m meta) key() int     { return int(m >> inlineBits & (1<<keyBits - 1)) }
func (m meta) inline() int  { return int(m & (1<<inlineBits - 1)) }

// A ref names one use of an extent. The stamp differs in each use, so a ref that a client has
// read never names a later use.
type ref struct {
	extent uint64 // its number in the shard
	length int    // of the value
	stamp  uint64 // of the use: see extent.go
}

// A ref is two words: the number of the extent and the length together, and the stamp.
const (
	refBytes   = 16
	extentBits = 40
	lengthBits = 24
)

// encode writes a ref into the first refBytes of p.
func (r ref) encode(p []byte) {
	le.PutUint64(p, r.extent<<lengthBits|uint64(r.length))
	le.PutUint64(p[8:], r.stamp)
}

// decodeRef is the inverse of encode. Any bytes are some ref: names says whether the pool can
// have it.
func decodeRef(p []byte) ref {
	w := le.Uint64(p)
	return ref{extent: w >> lengthBits, length: int(w & maxExtentValue), stamp: le.Uint64(p[8:])}
}

// An entry is what a slot of a row holds, as it lies there. Its body has entryBytes, and may
// share the memory of a row.
type entry struct {
	body []byte
	meta meta
}

// inline encodes a pair with the value in the entry, into p, which the entry shares. Both must fit.
func (f *form) inline(p, key, value []byte) entry {
	p = p[:f.entryBytes]
	clear(p[copy(p, key):])
	copy(p[f.keyBytes:], value)
	return entry{p, metaUsed | meta(len(key))<<inlineBits | meta(len(value))}
}

// named encodes a pair with the value in an extent, into p, which the entry shares.
func (f *form) named(p, key []byte, r ref) entry {
	p = p[:f.entryBytes]
	clear(p[copy(p, key):])
	r.encode(p[f.keyBytes:])
	return entry{p, metaUsed | metaExtent | meta(len(key))<<inlineBits}
}

// sound reports whether a client can have written an entry. Each length is within its bound then,
// so that decoding stays in the entry.
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

// A row is rowBytes of memory. nil: its content is not known.
type row []byte

// rowSeed makes the checksums of equal rows at different places differ.
func rowSeed(shard int, n uint32) uint64 { return spread(uint64(shard)<<32 | uint64(n)) }

// spread mixes the bits of a number (the finalizer of splitmix64). It is a permutation: different
// numbers have different results.
func spread(n uint64) uint64 {
	n = (n ^ n>>30) * 0xbf58476d1ce4e5b9
	n = (n ^ n>>27) * 0x94d049bb133111eb
	return n ^ n>>31
}

func (f *form) version(r row) uint64 { return le.Uint64(r[f.versionAt:]) }
func (f *form) level(r row) int      { return int(f.version(r) >> levelShift) }
func (f *form) sum(r row) uint64     { return le.Uint64(r[f.sumAt:]) }

// valid reports whether r is the row of a place as a client wrote it: it is not torn, and no
// other row. A row that is torn while its version is 0 is not valid either, as it must be zero.
func (f *form) valid(r row, shard int, n uint32) bool {
	if f.version(r) == 0 {
		return f.zero(r)
	}
	return f.sum(r) == xxhash.Sum64(r[:f.sumAt])^rowSeed(shard, n)
}

// zero reports whether a row is as in a new pool.
func (f *form) zero(r row) bool {
	for i := 0; i < f.rowBytes; i += 8 {
		if le.Uint64(r[i:]) != 0 {
			return false
		}
	}
	return true
}

// seal gives a changed row its version and its checksum. A redo names both.
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
		if m := meta(le.Uint16(metas[2*slot:])); m&lengths == want &&
			bytes.Equal(r[slot*f.entryBytes:][:len(key)], key) {
			return slot
		}
	}
	return -1
}

// free returns the first free slot, or -1.
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

// put sets a slot. The row is not valid until it is sealed.
func (f *form) put(r row, slot int, e entry) {
	copy(r[slot*f.entryBytes:][:f.entryBytes], e.body)
	le.PutUint16(r[f.metaAt+2*slot:], uint16(e.meta))
}

// drop frees a slot, and makes it zero. The row is not valid until it is sealed.
func (f *form) drop(r row, slot int) {
	clear(r[slot*f.entryBytes:][:f.entryBytes])
	le.PutUint16(r[f.metaAt+2*slot:], 0)
}
