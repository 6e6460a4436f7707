package dtx

import (
	"github.com/cespare/xxhash/v2"
)

// An object is one piece of memory, at a fixed place and of a fixed size:
//
//	0   lock: see Version; changed by atomics only
//	8   checksum of all that follows, up to the end of the data
//	16  version of the data
//	24  bytes of data (32), life (16), there (1)
//	32  data
//
// What follows the lock is the object's body. It is WRITTEN under the lock only.
// A READ of an object that shows a lock that is not held, the same version in the
// body, and the right checksum is of one moment, whichever of its words was read
// first: the moment at which the lock was read. The object had that version then,
// and no other body has it.
//
// There is a checksum over all of it, and not a version in each cache line as in
// FaRM: DESIGN promises 8 bytes that are atomic and not 64, data stays
// contiguous, and an RNIC moves 8 bytes more and not one in 8.
//
// Objects are whole units of 64 bytes. So sizes that are a multiple of 64 bytes,
// less HeaderBytes, waste nothing.
const (
	checksumAt = 8
	versionAt  = 16
	shapeAt    = 24
	headBytes  = HeaderBytes

	// bodyHead is the part of a body before the data. A body begins at
	// checksumAt.
	bodyHead = headBytes - checksumAt

	// thereShift is the bit of the word at shapeAt that says that the object is
	// there.
	thereShift = 48
)

// HeaderBytes is the size of an object without its data.
const HeaderBytes = 32

// body is what follows the lock of an object. data is a part of what it was
// decoded from.
type body struct {
	// version is that of the data: the transaction that wrote it.
	version Version
	// there: there is an object. A place without one has a body, too, once it was
	// used.
	there bool
	// life is that of the object's Ref.
	life uint64
	data []byte
}

// bodyBytes returns the size of a body, from its checksum on.
func bodyBytes(data int) int { return bodyHead + data }

// encode writes a body to p, which has bodyBytes bytes and stays the caller's.
func (o *body) encode(p []byte) {
	shape := uint64(len(o.data)) | o.life<<32
	if o.there {
		shape |= 1 << thereShift
	}
	le.PutUint64(p[versionAt-checksumAt:], uint64(o.version))
	le.PutUint64(p[shapeAt-checksumAt:], shape)
	copy(p[bodyHead:], o.data)
	le.PutUint64(p, xxhash.Sum64(p[versionAt-checksumAt:bodyBytes(len(o.data))]))
}

// decodeHead returns what a head says, and how many bytes of data. It does not
// look at the checksum, so what it returns may be torn.
func decodeHead(p []byte) (o body, n uint64) {
	shape := le.Uint64(p[shapeAt:])
	o.version, o.there, o.life = Version(le.Uint64(p[versionAt:])), shape>>thereShift&1 != 0, shape>>32&0xffff
	return o, shape & (1<<32 - 1)
}

// decode reads the body of an object that was READ from its lock on. It returns
// false if the body is not that of version v, or is torn. The data is a part of
// p.
func decode(p []byte, v Version) (o body, ok bool) {
	if v == 0 {
		return body{}, true
	}
	o, n := decodeHead(p)
	if o.version != v || n > uint64(len(p)-headBytes) {
		return body{}, false
	}
	o.data = p[headBytes : headBytes+n]
	return o, le.Uint64(p[checksumAt:]) == xxhash.Sum64(p[versionAt:headBytes+n])
}

// Decode returns the version and the data of an object that was READ at
// Layout.Object; nil: there is no such object. It returns false if another
// transaction holds the lock, or the READ was torn: see Worker.Await. The data is
// a part of p.
func Decode(p []byte, r Ref) (v Version, data []byte, ok bool) {
	v = Version(le.Uint64(p))
	if v.Held() {
		return v, nil, false
	}
	o, ok := decode(p, v)
	if !ok || !o.is(r) {
		return v, nil, ok
	}
	return v, o.data[:len(o.data):len(o.data)], true
}

// is reports whether a body is that of an object, and not that of another one
// that has had the same place.
func (o *body) is(r Ref) bool { return o.there && o.life == r.life() }
