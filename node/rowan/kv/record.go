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
const RecordBytes = 16

// Kinds of entries. A DEL is a tombstone: it has no value.
const (
	Put uint8 = iota + 1
	Del
)

// HeadBytes is the length of what is ahead of the key in an entry's first block.
const HeadBytes = rowan.HeaderBytes + RecordBytes

// Order tells which of two records of a key is newer.
type Order struct {
	Term    uint32
	Version uint64
}

// Before reports whether o is older than p.
func (o Order) Before(p Order) bool {
	return o.Term < p.Term || o.Term == p.Term && o.Version < p.Version
}

// Record is the content of an entry. Its key and value alias the entry's data.
type Record struct {
	Order
	Shard      int
	Key, Value []byte
}

// RecordSize returns the length of a pair's record.
func RecordSize(key, value []byte) int { return RecordBytes + len(key) + len(value) }

// Put writes a record to p, which the caller owns and which has recordSize bytes.
func (r *Record) Put(p []byte) {
	le := binary.LittleEndian
	le.PutUint64(p, r.Version|uint64(r.Shard)<<48)
	le.PutUint64(p[8:], uint64(r.Term)|uint64(len(r.Key))<<32)
	copy(p[RecordBytes:], r.Key)
	copy(p[RecordBytes+len(r.Key):], r.Value)
}

// ParseRecord returns the record at the beginning of p. The end of the value may be missing in p.
// It reports false if p is no record, or ends within the key.
func ParseRecord(p []byte) (r Record, ok bool) {
	if len(p) < RecordBytes {
		return r, false
	}
	le := binary.LittleEndian
	first, second := le.Uint64(p), le.Uint64(p[8:])
	r.Version, r.Shard, r.Term = first&(1<<48-1), int(first>>48), uint32(second)
	n := RecordBytes + int(uint16(second>>32))
	if len(p) < n || second>>48 != 0 {
		return r, false
	}
	r.Key, r.Value = p[RecordBytes:n:n], p[n:]
	return r, true
}

// Hash returns the hash of a key. It decides the key's shard, the worker that writes the key, and
// its place in an index.
func Hash(key []byte) uint64 { return xxhash.Sum64(key) }

// WorkerOf returns the number of the worker that writes keys with a hash. It depends on the lower
// half of the hash, while the shard depends on the upper half.
func WorkerOf(hash uint64, workers int) int { return int(uint64(uint32(hash)) * uint64(workers) >> 32) }

// Found is an entry that an index names, and what was READ of it. key and value alias what was
// READ.
type Found struct {
	At     uint64 // offset in the node's memory
	Kind   uint8
	Length int // of its data
	Order
	Key []byte
	// The value of an entry of one block, if all of it was READ.
	Value []byte
	// The number of blocks, if the first one was verified.
	Parts int
}

// ParseFound returns what the beginning of an entry says, which was READ at an offset. It verifies
// nothing. It reports false if the key is longer than what was READ: then it is not the key that
// the caller looks for.
func ParseFound(at uint64, p []byte) (f Found, ok bool) {
	f.At = at
	f.Kind, f.Length = rowan.Head(p)
	r, ok := ParseRecord(p[rowan.HeaderBytes:])
	f.Order, f.Key = r.Order, r.Key
	return f, ok
}

// EntrySize returns how many bytes of a segment an entry of one block takes, with length bytes of
// data.
func EntrySize(length int) int64 {
	return int64((rowan.HeaderBytes + length + rdma.Stride - 1) / rdma.Stride * rdma.Stride)
}

// TermOf returns the term in which an entry came to the server first: another server appended it,
// the server itself wrote it, or it was copied to the server. Copies by its own cleaners keep the
// term.
func TermOf(e *rowan.Entry) uint64 { return e.Stamp >> 32 }
