package kv

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
)

// A record is the data of an entry of a log, little-endian:
//
//	version, 48 bits | shard u16
//	term u32 | length of the key u16 | 0 u16
//	key
//	value, to the end; a DEL has none
//
// Records of one key are ordered by term and version. No two of a shard have the same, but copies
// of one are equal.
const recordBytes = 16

// Kinds of entries.
const (
	kindPut uint8 = iota + 1
	kindDel
)

// headBytes is how much of an entry is ahead of its key.
const headBytes = rowan.HeaderBytes + recordBytes

// order says which of two records of a key is newer.
type order struct {
	term    uint32
	version uint64
}

// before reports whether o is older than p.
func (o order) before(p order) bool {
	return o.term < p.term || o.term == p.term && o.version < p.version
}

// record is what an entry says of a key.
type record struct {
	order
	shard      int
	key, value []byte
}

// recordSize returns how long the record of a pair is.
func recordSize(key, value []byte) int { return recordBytes + len(key) + len(value) }

// put writes a record to p, which has its size.
func (r *record) put(p []byte) {
	le := binary.LittleEndian
	le.PutUint64(p, r.version|uint64(r.shard)<<48)
	le.PutUint64(p[8:], uint64(r.term)|uint64(len(r.key))<<32)
	copy(p[recordBytes:], r.key)
	copy(p[recordBytes+len(r.key):], r.value)
}

// parseRecord returns the record in the data of an entry, as far as p has it: the rest of the value
// may be missing. False: it is none.
func parseRecord(p []byte) (r record, ok bool) {
	if len(p) < recordBytes {
		return r, false
	}
	le := binary.LittleEndian
	first, second := le.Uint64(p), le.Uint64(p[8:])
	r.version, r.shard, r.term = first&(1<<48-1), int(first>>48), uint32(second)
	n := recordBytes + int(uint16(second>>32))
	if len(p) < n || second>>48 != 0 {
		return r, false
	}
	r.key, r.value = p[recordBytes:n:n], p[n:]
	return r, true
}

// Hash is that of a key: it says which shard the key is of, which worker's of a server, and where
// it is in an index.
func Hash(key []byte) uint64 { return xxhash.Sum64(key) }

// WorkerOf returns which of a server's workers writes the keys with a hash. It depends on the lower
// half of its bits, and the shard on the upper ones.
func WorkerOf(hash uint64, workers int) int { return int(uint64(uint32(hash)) * uint64(workers) >> 32) }

// found is an entry that an index names.
type found struct {
	at     uint64 // offset in the node's memory
	kind   uint8
	length int // of its data
	order
	key   []byte
	value []byte // of an entry of one block, where all of it was READ
	parts int    // blocks, where it was verified
}

// parseFound returns what the beginning of an entry's first block says, which was read at an
// address. False: the key is longer than what was read, so that it is another one.
func parseFound(at uint64, p []byte) (f found, ok bool) {
	f.at = at
	f.kind, f.length = rowan.Head(p)
	r, ok := parseRecord(p[rowan.HeaderBytes:])
	f.order, f.key = r.order, r.key
	return f, ok
}

// entrySize returns how much of a segment an entry takes with so much data, in one block.
func entrySize(length int) int64 {
	return int64((rowan.HeaderBytes + length + rdma.Stride - 1) / rdma.Stride * rdma.Stride)
}
