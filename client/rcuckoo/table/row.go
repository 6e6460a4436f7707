package table

import (
	"bytes"
	"encoding/binary"

	"github.com/cespare/xxhash/v2"
)

var le = binary.LittleEndian

// Form is how a row is laid out:
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
type Form struct {
	// The parameters of a row, and the size of an entry.
	Slots, keyBytes, inlineBytes, EntryBytes int
	// Offsets in a row, and its size. All are multiples of 8.
	metaAt, VersionAt, SumAt, RowBytes int
}

// newForm computes how rows are laid out. An entry has room for a ref if some values are not
// inline.
func newForm(p Params) *Form {
	room := p.InlineBytes
	if p.HasExtents() {
		room = max(room, RefBytes)
	}
	f := &Form{Slots: p.Entries, keyBytes: p.KeyBytes, inlineBytes: p.InlineBytes, EntryBytes: pad(p.KeyBytes + room)}
	f.metaAt = f.Slots * f.EntryBytes
	f.VersionAt = f.metaAt + pad(2*f.Slots)
	f.SumAt = f.VersionAt + 8
	f.RowBytes = f.SumAt + 8
	return f
}

// Meta says what an entry is. From the highest bit:
//
//	used    1 bit: 0 in an entry that is free, which is all zero
//	extent  1 bit: the value is in an extent, and the entry has a ref
//	key     6 bits: its length
//	inline  8 bits: the value's length
type Meta uint16

const (
	metaUsed   Meta = 1 << 15
	metaExtent Meta = 1 << 14
	keyBits         = 6
	inlineBits      = 8

	// maxEntries bounds the entries of a row: a redo has one bit for each in a word.
	maxEntries = 64
)

// Used reports whether the entry is not free.
func (m Meta) Used() bool { return m&metaUsed != 0 }

// Extent reports whether the value is in an extent.
func (m Meta) Extent() bool { return m&metaExtent != 0 }

// Key returns the length of the key in bytes.
func (m Meta) Key() int { return int(m >> inlineBits & (1<<keyBits - 1)) }

func (m Meta) inline() int { return int(m & (1<<inlineBits - 1)) }

// A ref names one use of an extent. The stamp differs in each use, so a ref that a client has
// read never names a later use.
type Ref struct {
	Extent uint64 // its number in the shard
	Length int    // of the value
	Stamp  uint64 // of the use: see extent.go
}

// A ref is two words: the number of the extent and the length together, and the stamp.
const (
	RefBytes   = 16
	extentBits = 40
	lengthBits = 24
)

// Encode writes a ref into the first RefBytes of p.
func (r Ref) Encode(p []byte) {
	le.PutUint64(p, r.Extent<<lengthBits|uint64(r.Length))
	le.PutUint64(p[8:], r.Stamp)
}

// DecodeRef is the inverse of encode. Any bytes are some ref: names says whether the pool can
// have it.
func DecodeRef(p []byte) Ref {
	w := le.Uint64(p)
	return Ref{Extent: w >> lengthBits, Length: int(w & maxExtentValue), Stamp: le.Uint64(p[8:])}
}

// An entry is what a slot of a row holds, as it lies there. Its body has EntryBytes, and may
// share the memory of a row.
type Entry struct {
	Body []byte
	Meta Meta
}

// Inline encodes a pair with the value in the entry, into p, which the entry shares. Both must fit.
func (f *Form) Inline(p, key, value []byte) Entry {
	p = p[:f.EntryBytes]
	clear(p[copy(p, key):])
	copy(p[f.keyBytes:], value)
	return Entry{p, metaUsed | Meta(len(key))<<inlineBits | Meta(len(value))}
}

// Named encodes a pair with the value in an extent, into p, which the entry shares.
func (f *Form) Named(p, key []byte, r Ref) Entry {
	p = p[:f.EntryBytes]
	clear(p[copy(p, key):])
	r.Encode(p[f.keyBytes:])
	return Entry{p, metaUsed | metaExtent | Meta(len(key))<<inlineBits}
}

// Sound reports whether a client can have written an entry. Each length is within its bound then,
// so that decoding stays in the entry.
func (f *Form) Sound(e Entry) bool {
	switch {
	case !e.Meta.Used():
		return e.Meta == 0
	case e.Meta.Key() > f.keyBytes:
		return false
	case e.Meta.Extent():
		return e.Meta.inline() == 0 && f.keyBytes+RefBytes <= f.EntryBytes
	}
	return e.Meta.inline() <= f.inlineBytes
}

// Key returns the key of a sound entry, and shares its bytes.
func (f *Form) Key(e Entry) []byte { return e.Body[:e.Meta.Key()] }

// Value returns the value of a sound entry that is inline, and shares its bytes.
func (f *Form) Value(e Entry) []byte { return e.Body[f.keyBytes : f.keyBytes+e.Meta.inline()] }

// Ref returns the ref of a sound entry with its value in an extent.
func (f *Form) Ref(e Entry) Ref { return DecodeRef(e.Body[f.keyBytes:]) }

// Row is RowBytes of memory. nil: its content is not known.
type Row []byte

// rowSeed makes the checksums of equal rows at different places differ.
func rowSeed(shard int, n uint32) uint64 { return Spread(uint64(shard)<<32 | uint64(n)) }

// Spread mixes the bits of a number (the finalizer of splitmix64). It is a permutation: different
// numbers have different results.
func Spread(n uint64) uint64 {
	n = (n ^ n>>30) * 0xbf58476d1ce4e5b9
	n = (n ^ n>>27) * 0x94d049bb133111eb
	return n ^ n>>31
}

// Version returns the version word of a row: how often the row was written, and in its highest 8
// bits the level.
func (f *Form) Version(r Row) uint64 { return le.Uint64(r[f.VersionAt:]) }

// Level returns how often a row was divided.
func (f *Form) Level(r Row) int { return int(f.Version(r) >> LevelShift) }

// Sum returns the checksum that a row was sealed with.
func (f *Form) Sum(r Row) uint64 { return le.Uint64(r[f.SumAt:]) }

// Valid reports whether r is the row of a place as a client wrote it: it is not torn, and no
// other row. A row that is torn while its version is 0 is not valid either, as it must be zero.
func (f *Form) Valid(r Row, shard int, n uint32) bool {
	if f.Version(r) == 0 {
		return f.zero(r)
	}
	return f.Sum(r) == xxhash.Sum64(r[:f.SumAt])^rowSeed(shard, n)
}

// zero reports whether a row is as in a new pool.
func (f *Form) zero(r Row) bool {
	for i := 0; i < f.RowBytes; i += 8 {
		if le.Uint64(r[i:]) != 0 {
			return false
		}
	}
	return true
}

// Seal gives a changed row its version and its checksum. A redo names both.
func (f *Form) Seal(r Row, shard int, n uint32, version uint64) {
	le.PutUint64(r[f.VersionAt:], version)
	le.PutUint64(r[f.SumAt:], xxhash.Sum64(r[:f.SumAt])^rowSeed(shard, n))
}

// Meta returns what the entry in a slot is.
func (f *Form) Meta(r Row, slot int) Meta { return Meta(le.Uint16(r[f.metaAt+2*slot:])) }

// Entry returns what a slot holds; it shares the row's bytes.
func (f *Form) Entry(r Row, slot int) Entry {
	at := slot * f.EntryBytes
	return Entry{r[at : at+f.EntryBytes : at+f.EntryBytes], f.Meta(r, slot)}
}

// Find returns the slot of a key, or -1.
func (f *Form) Find(r Row, key []byte) int {
	metas, want := r[f.metaAt:f.VersionAt], metaUsed|Meta(len(key))<<inlineBits
	for slot := range f.Slots {
		const lengths = metaUsed | (1<<keyBits-1)<<inlineBits
		if m := Meta(le.Uint16(metas[2*slot:])); m&lengths == want &&
			bytes.Equal(r[slot*f.EntryBytes:][:len(key)], key) {
			return slot
		}
	}
	return -1
}

// Free returns the first free slot, or -1.
func (f *Form) Free(r Row) int {
	for slot := range f.Slots {
		if !f.Meta(r, slot).Used() {
			return slot
		}
	}
	return -1
}

// Used returns how many slots are not free.
func (f *Form) Used(r Row) (n int) {
	for slot := range f.Slots {
		if f.Meta(r, slot).Used() {
			n++
		}
	}
	return n
}

// Put sets a slot. The row is not valid until it is sealed.
func (f *Form) Put(r Row, slot int, e Entry) {
	copy(r[slot*f.EntryBytes:][:f.EntryBytes], e.Body)
	le.PutUint16(r[f.metaAt+2*slot:], uint16(e.Meta))
}

// Drop frees a slot, and makes it zero. The row is not valid until it is sealed.
func (f *Form) Drop(r Row, slot int) {
	clear(r[slot*f.EntryBytes:][:f.EntryBytes])
	le.PutUint16(r[f.metaAt+2*slot:], 0)
}
