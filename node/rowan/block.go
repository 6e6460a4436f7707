package rowan

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"

	"github.com/farkv/farkv/node/rdma"
)

// An entry lands in blocks of up to an MTU. Each block has a header of three little-endian words,
// and a part of the entry's data:
//
//	mark u8 | kind u8 | source u16 | length of all data, 20 bits | number of the block, 12 bits
//	stamp u64
//	checksum u64 of the words above and the part, keyed by the secret and the ring
//
// The mark is not zero. So the first word of a segment is not zero once a block begins there. The
// number of blocks, and the length of each, follow from the length of the data and the MTU.
const (
	HeaderBytes = 24
	mark        = 0xa7
	lengthBits  = 20
)

// header is what a block says of its entry. Nothing of it is trusted before the checksum was
// verified.
type header struct {
	kind uint8
	// The source's number, below Options.Sources. In an own log it is the owner.
	source uint16
	// Bytes of the data of the whole entry, not of this block.
	length int
	// Number of the block in its entry, from 0.
	block int
	// Order of the source's entries; in an own log see ownStamp.
	stamp uint64
}

// layout says how the entries of one log are cut into blocks and sealed. It is immutable.
type layout struct {
	// Bytes of a block at most, with its header.
	mtu int
	// What the fabric promises: how many bytes of a segment a block takes, and in which stream it
	// lands. Own logs do not use it.
	p rdma.RingPromises
	// The key of the checksums. A block that was sealed with another seed does not verify.
	seed uint64
	// The lower half of an entry's stamp is its place in the segment: see ownStamp.
	own bool
}

// newLayout returns the layout for one ring. Entries of other rings do not verify with it.
func newLayout(p rdma.RingPromises, secret uint64, ring rdma.RingAddr) layout {
	return layout{mtu: p.MTU, p: p, seed: secret ^ uint64(ring)*0x9e3779b97f4a7c15}
}

// blocks returns the number of blocks of an entry with length bytes of data. It is at least 1, for
// an entry without data.
func (l layout) blocks(length int) int { return max(1, (length+l.part()-1)/l.part()) }

// part returns how many bytes of data a block has at most.
func (l layout) part() int { return l.mtu - HeaderBytes }

// sizeOf returns the length of an entry with the headers of all its blocks.
func (l layout) sizeOf(length int) int { return length + l.blocks(length)*HeaderBytes }

// sizeOfBlock returns the length of the block that h describes, with its header.
func (l layout) sizeOfBlock(h header) int {
	return HeaderBytes + min(l.part(), h.length-h.block*l.part())
}

// taken returns how many bytes of segments an entry takes that has n bytes with its headers. Leave
// is counted in these bytes.
func (l layout) taken(n int) uint64 { return uint64(l.p.Taken(n)) }

// stream returns the stream in which an entry with length bytes of data lands.
func (l layout) stream(length int) int { return l.p.Stream(l.sizeOf(length)) }

// strides rounds n up to whole strides: each block begins at one.
func strides(n int) int { return (n + rdma.Stride - 1) / rdma.Stride * rdma.Stride }

// seal writes all blocks of an entry to p, one behind the other. The caller owns p, which has
// sizeOf bytes.
func (l layout) seal(p []byte, h header, data []byte) {
	for h.block = range l.blocks(h.length) {
		n := l.sizeOfBlock(h)
		data = data[copy(p[HeaderBytes:n], data):]
		h.put(p)
		binary.LittleEndian.PutUint64(p[16:], l.sum(p[:n]))
		p = p[n:]
	}
}

// ownStamp returns the stamp of an entry of an own log. The upper half is the term that the worker
// gives, the lower half the entry's place in its segment, in bytes. A copy of the block elsewhere,
// such as in the data of another entry, has a stamp that does not match its place, so it is no
// entry.
func ownStamp(term uint32, place uint64) uint64 { return uint64(term)<<32 | place }

// put writes the two words ahead of the checksum.
func (h header) put(p []byte) {
	word := uint64(mark) | uint64(h.kind)<<8 | uint64(h.source)<<16 | uint64(h.length)<<32 |
		uint64(h.block)<<(32+lengthBits)
	binary.LittleEndian.PutUint64(p, word)
	binary.LittleEndian.PutUint64(p[8:], h.stamp)
}

// sum returns the checksum of a whole block. It covers everything but itself.
func (l layout) sum(block []byte) uint64 {
	var d xxhash.Digest
	d.ResetWithSeed(l.seed)
	d.Write(block[:16])
	d.Write(block[HeaderBytes:])
	return d.Sum64()
}

// parseHeader reads a header without checking it. The caller verifies the block, or knows that one
// is there.
func parseHeader(p []byte) header {
	word := binary.LittleEndian.Uint64(p)
	return header{
		kind: uint8(word >> 8), source: uint16(word >> 16), length: int(word >> 32 & (1<<lengthBits - 1)),
		block: int(word >> (32 + lengthBits)), stamp: binary.LittleEndian.Uint64(p[8:]),
	}
}

// parse returns the header of the block that p begins with, and its part of the data, which aliases
// p. It reports false if no whole, intact block begins there: the mark, the block's number, the
// length and the checksum must agree.
func (l layout) parse(p []byte) (h header, part []byte, ok bool) {
	if len(p) < HeaderBytes || p[0] != mark {
		return h, nil, false
	}
	h = parseHeader(p)
	if h.block >= l.blocks(h.length) {
		return h, nil, false
	}
	n := l.sizeOfBlock(h)
	if n > len(p) || binary.LittleEndian.Uint64(p[16:]) != l.sum(p[:n]) {
		return h, nil, false
	}
	return h, p[HeaderBytes:n], true
}
