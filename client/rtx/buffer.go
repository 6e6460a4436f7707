package rtx

import "github.com/cespare/xxhash/v2"

// A buffer is the data of an object, which does not change while the object's pointer names it:
//
//	0   checksum of all that follows, up to the end of the data
//	8   the pointer by which this use of the buffer is named
//	16  the object
//	24  bytes of data
//	32  data
//
// So a READ of it, whenever it comes, is either what its pointer meant or fails the check. The header says to whoever looks
// for free buffers which object to ask: one that its object's pointer does not name is free.
const headerBytes = 32

// encodeBuffer writes a buffer to p, which has headerBytes bytes and the data's.
func encodeBuffer(p []byte, use Pointer, r Ref, data []byte) {
	le.PutUint64(p[8:], uint64(use))
	le.PutUint64(p[16:], uint64(r))
	le.PutUint64(p[24:], uint64(len(data)))
	copy(p[headerBytes:], data)
	le.PutUint64(p, xxhash.Sum64(p[8:]))
}

// decodeBuffer returns the object and its data that were read by a pointer; false: that use of the buffer is over, or the
// READ was torn.
func decodeBuffer(p []byte, by Pointer) (r Ref, data []byte, ok bool) {
	n := le.Uint64(p[24:])
	if Pointer(le.Uint64(p[8:])) != by.use() || n > uint64(len(p)-headerBytes) {
		return 0, nil, false
	}
	p = p[:headerBytes+n]
	return Ref(le.Uint64(p[16:])), p[headerBytes:], le.Uint64(p) == xxhash.Sum64(p[8:])
}
