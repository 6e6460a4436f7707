package rtx

import (
	"github.com/cespare/xxhash/v2"

	"github.com/farkv/farkv/node/rdma"
)

// HeaderBytes is the size of a buffer's header, which precedes the data:
//
//	0   checksum of all that follows, up to the end of the data
//	8   the pointer by which this use of the buffer is named
//	16  the object
//	24  bytes of data
//	32  data
//
// Nothing of a buffer changes while its object's pointer names it. So a READ of
// it, whenever it comes, returns what the pointer meant, or fails the check. The
// header also says which object to ask when free buffers are looked for: a buffer
// is free when the pointer of that object does not name it.
//
// Where Shape.Shared says that indexes change data by verbs of their own, the
// checksum covers the header only.
//
// Buffers are whole units of 64 bytes. So sizes that are a multiple of 64 bytes,
// less HeaderBytes, waste nothing.
const HeaderBytes = 32

// covered returns where the bytes that the checksum covers end, counted from the
// start of the buffer.
func (l *Layout) covered(class, data int) int {
	if l.Shared>>class&1 != 0 {
		return HeaderBytes
	}
	return HeaderBytes + data
}

// encodeBuffer writes a buffer to p, which has HeaderBytes bytes and those of the
// data. data is copied; p stays the caller's.
func (l *Layout) encodeBuffer(p []byte, use Pointer, r Ref, data []byte) {
	le.PutUint64(p[8:], uint64(use))
	le.PutUint64(p[16:], uint64(r))
	le.PutUint64(p[24:], uint64(len(data)))
	copy(p[HeaderBytes:], data)
	le.PutUint64(p, xxhash.Sum64(p[8:l.covered(use.class(), len(data))]))
}

// Decode returns the object and the data of the buffer that a pointer names, from
// what was READ at Layout.Buffer. It returns false when that use of the buffer is
// over, or the READ was torn. data is a part of p.
func (l *Layout) Decode(p []byte, by Pointer) (r Ref, data []byte, ok bool) {
	n := le.Uint64(p[24:])
	if Pointer(le.Uint64(p[8:])) != by.use() || n > uint64(len(p)-HeaderBytes) {
		return 0, nil, false
	}
	whole := le.Uint64(p) == xxhash.Sum64(p[8:l.covered(by.class(), int(n))])
	return Ref(le.Uint64(p[16:])), p[HeaderBytes : HeaderBytes+n], whole
}

// Buffer returns the address and the length of the buffer that a pointer names,
// with its header. It returns false when the pointer names none.
func (l *Layout) Buffer(p Pointer) (at rdma.Addr, bytes int, ok bool) {
	if l.Absent(p) || p.class() >= len(l.Sizes) {
		return 0, 0, false
	}
	return l.buffer(p), l.bufferBytes(p.class()), true
}
