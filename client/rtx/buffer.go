package rtx

import (
	"github.com/cespare/xxhash/v2"

	"github.com/farkv/farkv/node/rdma"
)

// HeaderBytes is what a buffer has beside its data, which does not change while the object's
// pointer names it:
//
//	0   checksum of all that follows, up to the end of the data
//	8   the pointer by which this use of the buffer is named
//	16  the object
//	24  bytes of data
//	32  data
//
// So a READ of it, whenever it comes, is either what its pointer meant or fails the check. The
// header says which object to ask when free buffers are looked for: a buffer that its object's
// pointer does not name is free.
//
// Where Shape.Shared says that indexes change data by verbs of their own, the checksum is over the
// header.
//
// Buffers are whole units of 64 bytes, so that sizes of a multiple of 64 bytes less HeaderBytes
// waste nothing.
const HeaderBytes = 32

// covered returns how many bytes of a buffer, from its checksum on, that is over.
func (l *Layout) covered(class, data int) int {
	if l.Shared>>class&1 != 0 {
		return HeaderBytes
	}
	return HeaderBytes + data
}

// encodeBuffer writes a buffer to p, which has HeaderBytes bytes and the data's.
func (l *Layout) encodeBuffer(p []byte, use Pointer, r Ref, data []byte) {
	le.PutUint64(p[8:], uint64(use))
	le.PutUint64(p[16:], uint64(r))
	le.PutUint64(p[24:], uint64(len(data)))
	copy(p[HeaderBytes:], data)
	le.PutUint64(p, xxhash.Sum64(p[8:l.covered(use.class(), len(data))]))
}

// Decode returns the object and the data of a buffer that was READ at Layout.Buffer, by the pointer
// that names it; false: that use of the buffer is over, or the READ was torn.
func (l *Layout) Decode(p []byte, by Pointer) (r Ref, data []byte, ok bool) {
	n := le.Uint64(p[24:])
	if Pointer(le.Uint64(p[8:])) != by.use() || n > uint64(len(p)-HeaderBytes) {
		return 0, nil, false
	}
	whole := le.Uint64(p) == xxhash.Sum64(p[8:l.covered(by.class(), int(n))])
	return Ref(le.Uint64(p[16:])), p[HeaderBytes : HeaderBytes+n], whole
}

// Buffer returns the address and the length of the buffer that a pointer names, with its header;
// false: it names none.
func (l *Layout) Buffer(p Pointer) (at rdma.Addr, bytes int, ok bool) {
	if l.Absent(p) || p.class() >= len(l.Sizes) {
		return 0, 0, false
	}
	return l.buffer(p), l.bufferBytes(p.class()), true
}
