package rpc

import (
	"encoding/binary"

	"github.com/farkv/farkv/node/rdma"
)

// A message is a header of 16 bytes, little-endian, and a body:
//
//	id u64 | kind u8 | 0 u8 | code u16 | at u32
//
// at is the node of the sender's mailbox, plus one; 0: the mailbox is at all nodes. With it peers
// at different nodes can ask each other. The byte that is 0 has no meaning yet: what has another
// value there is of a later format, and refused.
const headerBytes = 16

type kind uint8

const (
	kindRequest kind = iota + 1 // code is the procedure
	kindAnswer                  // code is the handler's status
)

// header identifies a message. An answer has the id of its request.
type header struct {
	// Of the request. No two requests of the owners of one mailbox have the same. Ids of different
	// mailboxes may be the same, so an answer counts by its sender, too.
	id   uint64
	kind kind
	code uint16
	at   uint32
}

func (h header) put(p []byte) {
	le := binary.LittleEndian
	le.PutUint64(p, h.id)
	le.PutUint64(p[8:], uint64(h.kind)|uint64(h.code)<<16|uint64(h.at)<<32)
}

// parse returns a message's header and body, which aliases p. It reports false for anything else.
// What is refused is dropped: a mailbox takes messages of any worker of the pool.
func parse(p []byte) (h header, body []byte, ok bool) {
	if len(p) < headerBytes {
		return h, nil, false
	}
	le := binary.LittleEndian
	h = header{le.Uint64(p), kind(p[8]), le.Uint16(p[10:]), le.Uint32(p[12:])}
	ok = (h.kind == kindRequest || h.kind == kindAnswer) && p[9] == 0 && h.at <= rdma.MaxNodes
	return h, p[headerBytes:], ok
}

// from returns the mailbox that a message with the header came from; 0: the sender closed it
// meanwhile.
func (h header) from(m *rdma.Message) rdma.BoxAddr {
	if h.at == 0 || m.From == 0 {
		return m.From
	}
	return rdma.BoxAt(int(h.at-1), m.From.Number())
}
