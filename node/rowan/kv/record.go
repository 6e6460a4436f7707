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
// The records of a key are ordered by term and version. No two records of a shard have both the
// same, except copies, which are equal.
const recordBytes = 16

// Kinds of entries. A DEL is a tombstone: it has no value.
const (
	kindPut uint8 = iota + 1
	kindDel
)

// headBytes is the length of what is ahead of the key in an entry's first block.
const headBytes = rowan.HeaderBytes + recordBytes

// order tells which of two records of a key is newer.
type order struct {
	term    uint32
	version uint64
}

// before reports whether o is older than p.
func (o order) before(p order) bool {
	return o.term < p.term || o.term == p.term && o.version < p.version
}

// record is the content of an entry. Its key and value alias the entry's data.
type record struct {
	order
	shard      int
	key, value []byte
}

// recordSize returns the length of a pair's record.
func recordSize(key, value []byte) int { return recordBytes + len(key) + len(value) }

// put writes a record to p, which the caller owns and which has recordSize bytes.
func (r *record) put(p []byte) {
	le := binary.LittleEndian
	le.PutUint64(p, r.version|uint64(r.shard)<<48)
	le.PutUint64(p[8:], uint64(r.term)|uint64(len(r.key))<<32)
	copy(p[recordBytes:], r.key)
	copy(p[recordBytes+len(r.key):], r.value)
}

// parseRecord returns the record at the beginning of p. The end of the value may be missing in p.
// It reports false if p is no record, or ends within the key.
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

// Hash returns the hash of a key. It decides the key's shard, the worker that writes the key, and
// its place in an index.
func Hash(key []byte) uint64 { return xxhash.Sum64(key) }

// WorkerOf returns the number of the worker that writes keys with a hash. It depends on the lower
// half of the hash, while the shard depends on the upper half.
func WorkerOf(hash uint64, workers int) int { return int(uint64(uint32(hash)) * uint64(workers) >> 32) }

// found is an entry that an index names, and what was READ of it. key and value alias what was
// READ.
type found struct {
	at     uint64 // offset in the node's memory
	kind   uint8
	length int // of its data
	order
	key []byte
	// The value of an entry of one block, if all of it was READ.
	value []byte
	// The number of blocks, if the first one was verified.
	parts int
}

// parseFound returns what the beginning of an entry says, which was READ at an offset. It verifies
// nothing. It reports false if the key is longer than what was READ: then it is not the key that
// the caller looks for.
func parseFound(at uint64, p []byte) (f found, ok bool) {
	f.at = at
	f.kind, f.length = rowan.Head(p)
	r, ok := parseRecord(p[rowan.HeaderBytes:])
	f.order, f.key = r.order, r.key
	return f, ok
}

// entrySize returns how many bytes of a segment an entry of one block takes, with length bytes of
// data.
func entrySize(length int) int64 {
	return int64((rowan.HeaderBytes + length + rdma.Stride - 1) / rdma.Stride * rdma.Stride)
}

// termOf returns the term in which an entry came to the server first: another server appended it,
// the server itself wrote it, or it was copied to the server. Copies by its own cleaners keep the
// term.
func termOf(e *rowan.Entry) uint64 { return e.Stamp >> 32 }
