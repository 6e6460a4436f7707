package ibverbs

import (
	"encoding/binary"
	"fmt"

	"github.com/farkv/farkv/node/rdma"
)

// Cards go through the node: in an attach frame to a node's memory or ring and in its answer, and
// in a meet frame from a sender to a mailbox and back. Numbers are little-endian. In bytes:
//
//	 0     version
//	 1     kind of network: 0 InfiniBand, 1 Ethernet
//	 2     path MTU
//	 3     READs and atomics
//	 4- 5  lid
//	 6- 7  0
//	 8-11  number of the queue pair
//	12-15  first packet's number
//	16-31  gid
//	32-39  base
//	40-43  key
//	44-55  0
//
// What is 0 is not looked at.

// card is what one end of a connection tells the other. Each end draws its psn for each connection,
// so that packets of an earlier one are not taken for those of this.
type card struct {
	// qpn and psn have 24 bits on the wire. The number of a queue pair is used again by its device
	// some time after it was destroyed; the psn is what tells packets of the two apart.
	qpn, psn uint32
	// lid is all that packets are sent by on InfiniBand: both ends are in one subnet.
	lid uint16 // InfiniBand's address within its subnet; 0 on Ethernet
	// gid is an IP address on RoCE v2. Ends on InfiniBand tell theirs, and connect does not need
	// it.
	gid [16]byte // the address
	// Ends whose networks differ do not connect.
	ethernet bool
	// mtu is the port's. A connection uses the lesser one of both ends'. A block of a ring has to
	// fit it.
	mtu uint8 // path MTU at most, as libibverbs counts: 1 is 256 bytes, 5 is 4096
	// rdAtomic is what this end takes. The other end makes no more, nor more than its own device
	// can.
	rdAtomic uint8 // READs and atomics in flight that it takes, or makes
	// Of a node's end: its memory. In the answer of a mailbox base is how many bytes a buffer has,
	// and there is no key: a SEND names no memory of the other end.
	base uint64
	key  uint32
}

// cardBytes is the size of a card: a multiple of 8. Frames pad what they carry to whole words, and
// parseCard takes no other length than this.
const cardBytes = 56

// cardVersion is the first byte of a card. The second says what kind of network it is. Programs of
// two versions do not connect, rather than misread each other.
const cardVersion = 1

func (c card) bytes() []byte {
	p := make([]byte, cardBytes)
	le := binary.LittleEndian
	p[0] = cardVersion
	if c.ethernet {
		p[1] = 1
	}
	p[2], p[3] = c.mtu, c.rdAtomic
	le.PutUint16(p[4:], c.lid)
	le.PutUint32(p[8:], c.qpn)
	le.PutUint32(p[12:], c.psn)
	copy(p[16:], c.gid[:])
	le.PutUint64(p[32:], c.base)
	le.PutUint32(p[40:], c.key)
	return p
}

// parseCard reads what the other end says, and believes nothing that does not make sense. The error
// wraps rdma.ErrAccess. It keeps libibverbs from values that a device would take for something
// else. rdAtomic, base and key are not judged: connect bounds the first, and the device at the
// memory the others.
func parseCard(p []byte) (c card, err error) {
	le := binary.LittleEndian
	if len(p) != cardBytes || p[0] != cardVersion || p[1] > 1 {
		return c, fmt.Errorf("the other device's card has %d bytes, or another version: %w", len(p), rdma.ErrAccess)
	}
	c = card{
		ethernet: p[1] == 1, mtu: p[2], rdAtomic: p[3], lid: le.Uint16(p[4:]), qpn: le.Uint32(p[8:]),
		psn: le.Uint32(p[12:]), base: le.Uint64(p[32:]), key: le.Uint32(p[40:]),
	}
	copy(c.gid[:], p[16:])
	if c.qpn == 0 || c.qpn >= 1<<24 || c.psn >= 1<<24 || c.mtu < 1 || c.mtu > 5 {
		return card{}, fmt.Errorf("the other device's card makes no sense: %w", rdma.ErrAccess)
	}
	return c, nil
}
