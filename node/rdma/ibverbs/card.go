package ibverbs

import (
	"encoding/binary"
	"fmt"

	"github.com/farkv/farkv/node/rdma"
)

// card is what one end of a connection tells the other. Each end draws its psn for each connection,
// so that packets of an earlier one are not taken for those of this.
type card struct {
	qpn, psn uint32
	lid      uint16   // InfiniBand's address within its subnet; 0 on Ethernet
	gid      [16]byte // the address
	ethernet bool
	mtu      uint8 // path MTU at most, as libibverbs counts: 1 is 256 bytes, 5 is 4096
	rdAtomic uint8 // READs and atomics in flight that it takes, or makes
	// Of a node's end alone: its memory.
	base uint64
	key  uint32
}

// cardBytes is the size of a card: a multiple of 8.
const cardBytes = 56

// cardVersion is the first byte of a card. The second says what kind of network it is.
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
// wraps rdma.ErrAccess.
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
