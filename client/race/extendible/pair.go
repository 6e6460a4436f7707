package extendible

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"

	"github.com/farkv/farkv/client/race"
)

var le = binary.LittleEndian

// A pair lies in a block, which does not change while a slot of the index names
// it:
//
//	0   checksum of all that follows
//	8   the word of this use of the block, as of a live pair
//	16  the key's hash
//	24  checksum of word, hash and lengths (4), length of the key (2), length of
//	    the value (2)
//	32  key, value
//
// A READ that comes when the block is used again finds another word, or fails the
// check. The header has a checksum of its own, since a rehash and a scan READ no
// more than that, to see where the pair belongs. A DELETE leaves a header alone,
// in its client's delete record.
const pairHeader = 32

// pair is what was READ of a block. key and value are parts of the batch's
// buffer.
type pair struct {
	word       word
	hash       uint64
	key, value []byte
}

// pairBytes returns the bytes of a pair with its header.
func pairBytes(key, value int) int { return pairHeader + key + value }

// unitsOf returns how many units hold so many bytes.
func unitsOf(bytes int) int { return (bytes + unitBytes - 1) / unitBytes }

// encodePair writes a pair to p, which has pairBytes bytes. key and value are
// copied; p stays the caller's.
func encodePair(p []byte, w word, hash uint64, key, value []byte) {
	le.PutUint64(p[8:], uint64(w.as(live)))
	le.PutUint64(p[16:], hash)
	le.PutUint64(p[24:], 0)
	le.PutUint16(p[28:], uint16(len(key)))
	le.PutUint16(p[30:], uint16(len(value)))
	le.PutUint32(p[24:], uint32(xxhash.Sum64(p[8:pairHeader])))
	copy(p[pairHeader:], key)
	copy(p[pairHeader+len(key):], value)
	le.PutUint64(p, xxhash.Sum64(p[8:]))
}

// decodeHeader reads the header of a block. It returns false if the header is
// torn, or there never was a pair.
func decodeHeader(p []byte) (w word, hash uint64, ok bool) {
	var own [pairHeader - 8]byte
	copy(own[:], p[8:pairHeader])
	le.PutUint32(own[16:], 0)
	w, hash = word(le.Uint64(own[:])), le.Uint64(own[8:])
	ok = le.Uint32(p[24:]) == uint32(xxhash.Sum64(own[:])) && !w.empty() && w.print() == race.Print(hash)
	return w, hash, ok
}

// decodePair reads the pair of a word. It returns false if that use of the block
// is over, or the READ was torn. If only key or value are torn, it returns word
// and hash all the same: the caller may see whether the pair belongs where the
// word was.
func decodePair(p []byte, w word) (pair, bool) {
	at, hash := word(le.Uint64(p[8:])), le.Uint64(p[16:])
	key, value := int(le.Uint16(p[28:])), int(le.Uint16(p[30:]))
	if at != w.as(live) || pairBytes(key, value) > len(p) {
		return pair{}, false
	}
	whole := p[:pairBytes(key, value)]
	if le.Uint64(whole) == xxhash.Sum64(whole[8:]) {
		return pair{w, hash, whole[pairHeader : pairHeader+key], whole[pairHeader+key:]}, true
	}
	if _, _, ok := decodeHeader(p); !ok {
		return pair{}, false
	}
	return pair{word: w, hash: hash}, false
}
