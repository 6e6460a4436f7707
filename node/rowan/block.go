package rowan

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"

	"github.com/farkv/farkv/node/rdma"
)

// An entry lands in blocks of up to an MTU, each with a header of three words, little-endian, and a
// part of the data:
//
//	mark u8 | kind u8 | source u16 | length of all data, 20 bits | number of the block, 12 bits
//	stamp u64
//	checksum u64 of the words above and the part, keyed by the secret and the ring
//
// The mark is not zero, so that neither is a segment's first word once a block begins there. How
// many blocks there are, and how long each is, follows from the length and the MTU.
const (
	HeaderBytes = 24
	mark        = 0xa7
	lengthBits  = 20
)

// header is what a block says of its entry.
type header struct {
	kind   uint8
	source uint16
	length int // of the entry's data
	block  int
	stamp  uint64
}

// layout is how entries of one ring are cut into blocks, and sealed.
type layout struct {
	mtu  int
	p    rdma.RingPromises
	seed uint64
	own  bool // an entry's stamp has its place in the segment: see ownStamp
}

// newLayout seals entries for one ring: those of another are none here.
func newLayout(p rdma.RingPromises, secret uint64, ring rdma.RingAddr) layout {
	return layout{mtu: p.MTU, p: p, seed: secret ^ uint64(ring)*0x9e3779b97f4a7c15}
}

// blocks returns how many blocks an entry with so much data has.
func (l layout) blocks(length int) int { return max(1, (length+l.part()-1)/l.part()) }

// part is how much data a block has at most.
func (l layout) part() int { return l.mtu - HeaderBytes }

// sizeOf returns how long an entry is with its headers.
func (l layout) sizeOf(length int) int { return length + l.blocks(length)*HeaderBytes }

// sizeOfBlock returns how long the block is.
func (l layout) sizeOfBlock(h header) int {
	return HeaderBytes + min(l.part(), h.length-h.block*l.part())
}

// taken returns how many bytes of segments an entry of n bytes with its headers takes.
func (l layout) taken(n int) uint64 { return uint64(l.p.Taken(n)) }

// stream returns the stream of an entry with so much data.
func (l layout) stream(length int) int { return l.p.Stream(l.sizeOf(length)) }

// strides returns how many bytes of a segment n bytes take.
func strides(n int) int { return (n + rdma.Stride - 1) / rdma.Stride * rdma.Stride }

// seal writes an entry to p, which has sizeOf bytes.
func (l layout) seal(p []byte, h header, data []byte) {
	for h.block = range l.blocks(h.length) {
		n := l.sizeOfBlock(h)
		data = data[copy(p[HeaderBytes:n], data):]
		h.put(p)
		binary.LittleEndian.PutUint64(p[16:], l.sum(p[:n]))
		p = p[n:]
	}
}

// ownStamp is the stamp of an entry of an own log: the term that its worker gives, above its place
// in the segment.
func ownStamp(term uint32, place uint64) uint64 { return uint64(term)<<32 | place }

func (h header) put(p []byte) {
	word := uint64(mark) | uint64(h.kind)<<8 | uint64(h.source)<<16 | uint64(h.length)<<32 |
		uint64(h.block)<<(32+lengthBits)
	binary.LittleEndian.PutUint64(p, word)
	binary.LittleEndian.PutUint64(p[8:], h.stamp)
}

// sum is the checksum of a block.
func (l layout) sum(block []byte) uint64 {
	var d xxhash.Digest
	d.ResetWithSeed(l.seed)
	d.Write(block[:16])
	d.Write(block[HeaderBytes:])
	return d.Sum64()
}

func parseHeader(p []byte) header {
	word := binary.LittleEndian.Uint64(p)
	return header{
		kind: uint8(word >> 8), source: uint16(word >> 16), length: int(word >> 32 & (1<<lengthBits - 1)),
		block: int(word >> (32 + lengthBits)), stamp: binary.LittleEndian.Uint64(p[8:]),
	}
}

// parse returns the block that p begins with, and its part of the data; false: no whole block
// begins there.
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
