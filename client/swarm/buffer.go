package swarm

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"
)

// An out-of-place buffer belongs to the client that allocated it, a writer or a reader that writes
// back, until a word points at it. It is written once, in one chain before the CAS that makes the
// word point at it:
//
//	0   checksum of all that follows, seeded with the object's hash: a buffer that is torn, or of
//	    another object, does not have it
//	8   the tuple's stamp without its flag, which may change: so a reused buffer is recognized
//	16  length of the value
//	24  value
//
// In place (Algorithms 5 and 6) there is:
//
//	0   hash of all that follows, seeded with the metadata word: so it is valid only for that
//	    stamp, pointer and flag
//	8   length of the value
//	16  value
//
// Several clients may write in place at the same time, and their words land in any order. What
// mixes two values fits no metadata word. Then readers follow the pointer.
const (
	bufferHeader  = 24
	inPlaceHeader = 16
)

var le = binary.LittleEndian

// seeded returns the hash of p with a seed.
func seeded(seed uint64, p []byte) uint64 {
	var d xxhash.Digest
	d.ResetWithSeed(seed)
	d.Write(p) // never fails
	return d.Sum64()
}

// encodeBuffer fills p, which has bufferHeader bytes and the value's length.
func encodeBuffer(p []byte, hash uint64, s stamp, value []byte) {
	le.PutUint64(p[8:], uint64(s.time()))
	le.PutUint64(p[16:], uint64(len(value)))
	copy(p[bufferHeader:], value)
	le.PutUint64(p, seeded(hash, p[8:]))
}

// decodeBuffer returns the value in p, as a part of p. p may hold anything: memory that was
// reused or is torn. false: it is not the tuple of s.
func decodeBuffer(p []byte, hash uint64, s stamp) ([]byte, bool) {
	n := le.Uint64(p[16:])
	if n > uint64(len(p)-bufferHeader) || le.Uint64(p[8:]) != uint64(s.time()) {
		return nil, false
	}
	end := bufferHeader + int(n)
	if le.Uint64(p) != seeded(hash, p[8:end]) {
		return nil, false
	}
	return p[bufferHeader:end:end], true
}

// inPlaceSum returns the checksum of what lies in place for the word w.
func inPlaceSum(w Word, p []byte) uint64 { return seeded(uint64(w), p) }

// encodeInPlace fills p, which has inPlaceHeader bytes and the value's length.
func encodeInPlace(p []byte, w Word, value []byte) {
	le.PutUint64(p[8:], uint64(len(value)))
	copy(p[inPlaceHeader:], value)
	le.PutUint64(p, inPlaceSum(w, p[8:]))
}

// decodeInPlace returns the value in p, as a part of p. p may hold anything. false: it is not the
// value of the word w.
func decodeInPlace(p []byte, w Word) ([]byte, bool) {
	n := le.Uint64(p[8:])
	if n > uint64(len(p)-inPlaceHeader) {
		return nil, false
	}
	end := inPlaceHeader + int(n)
	if le.Uint64(p) != inPlaceSum(w, p[8:end]) {
		return nil, false
	}
	return p[inPlaceHeader:end:end], true
}
