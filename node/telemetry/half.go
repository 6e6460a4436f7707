package telemetry

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"
)

// A half of a record:
//
//	sequence  8 bytes  of the writer's publications: the newest valid half counts
//	life      8 bytes  of the writer: it must be that of the claim
//	at        8 bytes  nanoseconds of the writer's wall clock
//	length    8 bytes
//	checksum  8 bytes  over all of the above, and the content
//	content            of the given length: see appendProcess
//
// A writer writes the halves in turn. So whatever a crash in the midst of a WRITE, or one that
// tears, makes of one half, the other one holds what was published before.
const (
	halfHead = 40
	halfSum  = 32 // where the checksum is
	halfMost = halfBytes - halfHead
)

type half struct {
	seq, life uint64
	content   []byte
}

// appendHalf appends the half of a record that holds p.
func appendHalf(dst []byte, seq, life uint64, p *Process) []byte {
	from := len(dst)
	dst = append(dst, make([]byte, halfHead)...)
	dst = appendProcess(dst, p, halfMost)
	h := dst[from:]
	le := binary.LittleEndian
	le.PutUint64(h, seq)
	le.PutUint64(h[8:], life)
	le.PutUint64(h[16:], uint64(p.At.UnixNano()))
	le.PutUint64(h[24:], uint64(len(h)-halfHead))
	le.PutUint64(h[halfSum:], checksum(h, halfSum, halfHead))
	return dst
}

// checksum is over what comes before sumAt, and what comes from content on.
func checksum(p []byte, sumAt, content int) uint64 {
	var d xxhash.Digest
	d.Reset()
	_, _ = d.Write(p[:sumAt])
	_, _ = d.Write(p[content:])
	return d.Sum64()
}

// parseHalf reads a half; false: it is none of that life, or not whole.
func parseHalf(p []byte, life uint64) (h half, ok bool) {
	le := binary.LittleEndian
	n := le.Uint64(p[24:])
	if n > uint64(len(p)-halfHead) {
		return half{}, false
	}
	p = p[:halfHead+n]
	if le.Uint64(p[halfSum:]) != checksum(p, halfSum, halfHead) {
		return half{}, false
	}
	h = half{le.Uint64(p), le.Uint64(p[8:]), p[halfHead:]}
	return h, h.life == life
}

// newest returns the newest half of a record that is whole and that life wrote.
func newest(record []byte, life uint64) (h half, ok bool) {
	for i := range 2 {
		if other, whole := parseHalf(record[i*halfBytes:][:halfBytes], life); whole && (!ok || other.seq > h.seq) {
			h, ok = other, true
		}
	}
	return h, ok
}
