package table

import (
	"math"
	"math/bits"

	"github.com/cespare/xxhash/v2"
)

// The salts of the three hashes (section 3.3): any three numbers, as long as all clients have the
// same.
// They are part of the format.
const (
	salt1 = 0x52437563_6b6f6f31
	salt2 = 0x52437563_6b6f6f32
	salt3 = 0x52437563_6b6f6f33

	// maxF bounds Params.F. The second row of most keys is any row long before.
	maxF = 1 << 20
)

// A place is where a key may be: in one of two rows of its shard, which may be the same.
type Place struct {
	Shard int
	// first and second are numbers of rows, below Params.Rows, when they come from the hashes;
	// with levels they are ids of rows: see levels.go.
	First, Second uint32
	// Bits are the key's segment bits, which say to which of the rows of a number the key
	// belongs. 0 if the table cannot grow.
	Bits uint32
}

// Other returns the row of a place that is not n. It returns n if both are the same, or n is
// neither.
func (p Place) Other(n uint32) uint32 {
	switch n {
	case p.First:
		return p.Second
	case p.Second:
		return p.First
	}
	return n
}

// Has reports whether n is one of the two rows.
func (p Place) Has(n uint32) bool { return n == p.First || n == p.Second }

// reach is, for each number of trailing zeros z, how far behind the first row the second may lie:
// the floor of f^(f+z), at least 1, and at most the rows of the table.
type reach [65]uint64

// newReach computes a reach. f may be so large that a power is infinite.
func newReach(f float64, rows int) (r reach) {
	for z := range r {
		r[z] = 1
		if far := math.Pow(f, f+float64(z)); far >= float64(rows) { // and where it is infinite
			r[z] = uint64(rows)
		} else if far > 1 {
			r[z] = uint64(far)
		}
	}
	return r
}

// Place is the paper's dependent hashing (section 3.3). With Z(h) the number of trailing zeros of
// h, and T rows:
//
//	first  = h1 mod T
//	second = first + (h2 mod floor(f^(f+Z(h3)))) mod T
//
// The shard depends on the upper half of h3's bits. Z does not depend on them, except for one key
// in 2^32, so keys of all shards have the same distances. Rows wrap around: second is below T,
// too.
func (l *Layout) Place(key []byte) Place {
	var p [8 + maxKeyBytes]byte
	n := 8 + copy(p[8:], key)
	h1, h2, h3 := salted(p[:n], salt1), salted(p[:n], salt2), salted(p[:n], salt3)
	shard, _ := bits.Mul64(h3&^(1<<32-1), uint64(l.Shards))
	rows := uint64(l.Rows)
	first := h1 % rows
	second := first + h2%l.reach[bits.TrailingZeros64(h3)]
	if second >= rows {
		second -= rows
	}
	at := Place{Shard: int(shard), First: uint32(first), Second: uint32(second)}
	if l.Levels > 0 {
		at.Bits = l.segmentBits(h1, h2, h3)
	}
	return at
}

// salted is xxHash of a salt and the key behind it. It writes the salt into the first 8 bytes of p.
func salted(p []byte, salt uint64) uint64 {
	le.PutUint64(p, salt)
	return xxhash.Sum64(p)
}
