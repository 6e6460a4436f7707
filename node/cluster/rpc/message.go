package rpc

import (
	"encoding/binary"

	"github.com/farkv/farkv/node/rdma"
)

// A message begins with a header of 16 bytes, little-endian; its body is behind:
//
//	id u64 | kind u8 | 0 u8 | code u16 | at u32
//
// At is the node of the sender's mailbox, and 1 more; 0: the mailbox is at all nodes. So peers that
// are at one node each may ask each other.
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
	at   uint32
}

func (h header) put(p []byte) {
	le := binary.LittleEndian
	le.PutUint64(p, h.id)
	le.PutUint64(p[8:], uint64(h.kind)|uint64(h.code)<<16|uint64(h.at)<<32)
}

// parse returns a message's header and body; false: it is none.
func parse(p []byte) (h header, body []byte, ok bool) {
	if len(p) < headerBytes {
		return h, nil, false
	}
	le := binary.LittleEndian
	h = header{le.Uint64(p), kind(p[8]), le.Uint16(p[10:]), le.Uint32(p[12:])}
	ok = (h.kind == kindRequest || h.kind == kindAnswer) && p[9] == 0 && h.at <= rdma.MaxNodes
	return h, p[headerBytes:], ok
}

// from returns the mailbox that a message with the header is from: 0 if the sender closed it
// meanwhile.
func (h header) from(m *rdma.Message) rdma.BoxAddr {
	if h.at == 0 || m.From == 0 {
		return m.From
	}
	return rdma.BoxAt(int(h.at-1), m.From.Number())
}
