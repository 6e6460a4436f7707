package swarm

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"
)

// An out-of-place buffer belongs to the client that allocated it, a writer or a reader that writes
// back. It is written once, in one chain with the word that then points at it:
//
//	0   checksum of all that follows, seeded with the key's hash: a torn, foreign or reused buffer does not have it
//	8   the tuple's stamp without its flag, which may change
//	16  length of the value
//	24  value
//
// In place (Algorithms 5 and 6) there is:
//
//	0   hash of all that follows, seeded with the metadata word: so it is valid only with that pointer and flag
//	8   length of the value
//	16  value
//
// Many write in place at the same time, in any order. What comes of it fits no word, and readers
// take the pointer.
const (
	bufferHeader  = 24
	inPlaceHeader = 16
)

var le = binary.LittleEndian

func seeded(seed uint64, p []byte) uint64 {
	var d xxhash.Digest
	d.ResetWithSeed(seed)
	d.Write(p) // never fails
	return d.Sum64()
}

// encodeBuffer fills p, of bufferHeader and the value's bytes.
func encodeBuffer(p []byte, hash uint64, s stamp, value []byte) {
	le.PutUint64(p[8:], uint64(s.time()))
	le.PutUint64(p[16:], uint64(len(value)))
	copy(p[bufferHeader:], value)
	le.PutUint64(p, seeded(hash, p[8:]))
}

// decodeBuffer returns the value in p, of any content; false: it is not s's.
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

func inPlaceSum(w Word, p []byte) uint64 { return seeded(uint64(w), p) }

// encodeInPlace fills p, of inPlaceHeader and the value's bytes.
func encodeInPlace(p []byte, w Word, value []byte) {
	le.PutUint64(p[8:], uint64(len(value)))
	copy(p[inPlaceHeader:], value)
	le.PutUint64(p, inPlaceSum(w, p[8:]))
}

// decodeInPlace returns the value in p, of any content; false: it is not w's.
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
