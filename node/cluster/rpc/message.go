package rpc

import "encoding/binary"

// A message begins with a header of 16 bytes, little-endian; its body is behind:
//
//	id u64 | kind u8 | 0 u8 | code u16 | 0 u32
const headerBytes = 16

type kind uint8

const (
	kindRequest kind = iota + 1 // code is the procedure
	kindAnswer                  // code is the handler's status
)

type header struct {
	id   uint64 // of the request; no two of one mailbox's owner are the same
	kind kind
	code uint16
}

func (h header) put(p []byte) {
	le := binary.LittleEndian
	le.PutUint64(p, h.id)
	le.PutUint64(p[8:], uint64(h.kind)|uint64(h.code)<<16)
}

// parse returns a message's header and body; false: it is none.
func parse(p []byte) (h header, body []byte, ok bool) {
	if len(p) < headerBytes {
		return h, nil, false
	}
	le := binary.LittleEndian
	h = header{le.Uint64(p), kind(p[8]), le.Uint16(p[10:])}
	ok = (h.kind == kindRequest || h.kind == kindAnswer) && p[9] == 0 && le.Uint32(p[12:]) == 0
	return h, p[headerBytes:], ok
}
