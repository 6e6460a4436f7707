package race

import (
	"fmt"

	"github.com/farkv/farkv/node/rdma"
)

// An index that grows (RACE's extendible hashing) has subtables that lie
// anywhere. Each holds the keys with one suffix of their hashes. A key has the
// same two combined buckets in every subtable of so many groups.

const (
	// SuffixShift is where the bits of a hash begin that pick a subtable.
	SuffixShift = 33
	// MaxDepth bounds how many bits of a hash may pick a subtable: those that
	// Locate does not use, without the fingerprint's.
	MaxDepth = 23
	// HeaderBytes is the size of a bucket's header.
	HeaderBytes = bytesPerWord
	// BucketBytes is the size of a bucket: a header and seven slots.
	BucketBytes = bucketBytes
)

// Suffix returns the bits of a hash that pick a subtable of that local depth.
func Suffix(hash uint64, depth int) uint64 { return hash >> SuffixShift & (1<<depth - 1) }

// Header is the first word of each bucket. It says which hashes belong to the
// bucket's subtable. The zero Header is that of a subtable which all hashes
// belong to.
//
//	bits 56-63  local depth
//	bits 0-22   suffix of the hashes
type Header uint64

// MakeHeader returns the header of the buckets of a subtable.
func MakeHeader(depth int, suffix uint64) Header {
	if depth < 0 || depth > MaxDepth || suffix >= 1<<depth {
		panic(fmt.Sprintf("race: no header for suffix %d of %d bits", suffix, depth))
	}
	return Header(depth)<<56 | Header(suffix)
}

// Depth returns the local depth.
func (h Header) Depth() int { return int(h >> 56) }

// Suffix returns the suffix.
func (h Header) Suffix() uint64 { return uint64(h) & (1<<MaxDepth - 1) }

func (h Header) String() string { return fmt.Sprintf("suffix %0*b", h.Depth(), h.Suffix()) }

// Offset returns where a slot lies in its subtable, in bytes.
func (s Slot) Offset() uint64 { return uint64(s) * bytesPerWord }

// ReadAt adds the READs of both combined buckets of a subtable that begins at an address. at is of
// an Index of one subtable.
func (at Buckets) ReadAt(b *rdma.Batch, subtable rdma.Addr) View {
	v := View{at: at}
	for i, s := range at {
		v.ops[i] = b.Read(subtable.Add(s.Offset()), combinedBytes)
	}
	return v
}
