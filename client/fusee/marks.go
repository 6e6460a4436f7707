package fusee

import (
	"fmt"

	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// head is the front of an object: all that reports whether it is free, and its owner if it is not.
type head struct {
	mark             uint64
	incarnation      uint32
	keyLen, valueLen int
	writer           rdma.ClientID
	seq              uint64
}

const (
	headAt       = keyAt // bytes of a head
	headsPerTrip = 256
)

func headOf(p []byte) head {
	owner := le.Uint64(p[writerAt:])
	return head{mark: le.Uint64(p[markAt:]), incarnation: le.Uint32(p[incarnationAt:]),
		keyLen: int(le.Uint16(p[keyLenAt:])), valueLen: int(le.Uint16(p[valueLenAt:])),
		writer: rdma.ClientID(owner >> 48), seq: owner & (1<<48 - 1)}
}

// free reports whether the object is not in use.
func (h head) free() bool { return h.mark == uint64(h.incarnation) || h.incarnation == 0 }

// heads reads the heads of all objects of a block on one replica.
func (c *Client) heads(blk node.Block, class, replica int) ([]head, error) {
	list := make([]head, 0, c.classes.objects[class])
	for len(list) < cap(list) {
		b := c.ep.Batch()
		for i := len(list); i < min(len(list)+headsPerTrip, cap(list)); i++ {
			b.Read(c.space.UnitAt(c.space.Object(blk, i, c.classes.units[class]), replica), headAt)
		}
		err := c.do(stepReadHeads, b)
		for i := 0; err == nil && i < b.Len(); i++ {
			list = append(list, headOf(b.Op(i).Buf))
		}
		b.Release()
		if err != nil {
			return nil, fmt.Errorf("read the heads of block %v on replica %d: %w", blk, replica, err)
		}
	}
	return list, nil
}

// hint sets the bits of free objects that are not set.
func (c *Client) hint(units []uint64, class int) error {
	read, add := c.ep.Batch(), c.ep.Batch()
	defer read.Release()
	defer add.Release()
	for _, u := range units {
		blk, _, _ := c.space.BlockOf(u)
		read.Read(c.hintWord(blk, c.indexOf(u, class)), 8)
	}
	if err := c.do(stepSetBits, read); err != nil {
		return err
	}
	for i, u := range units {
		if le.Uint64(read.Op(i).Buf)>>(c.indexOf(u, class)%64)&1 == 0 {
			c.addHint(add, u, class)
		}
	}
	return c.do(stepSetBits, add)
}
