package fusee

import (
	"fmt"

	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// head is the front of an object. It says whether the object is free, and which client wrote it
// last.
type head struct {
	mark             uint64 // the incarnation that was freed
	incarnation      uint32 // of its last use; 0: it was never used
	keyLen, valueLen int
	writer           rdma.ClientID
	seq              uint64 // the writer's number of the operation
}

const (
	headAt = keyAt // bytes of a head
	// headsPerTrip is how many objects a batch reads or marks at most.
	headsPerTrip = 256
)

// headOf decodes a head. It has no checksum: fields that are more than one word may be torn.
func headOf(p []byte) head {
	owner := le.Uint64(p[writerAt:])
	return head{mark: le.Uint64(p[markAt:]), incarnation: le.Uint32(p[incarnationAt:]),
		keyLen: int(le.Uint16(p[keyLenAt:])), valueLen: int(le.Uint16(p[valueLenAt:])),
		writer: rdma.ClientID(owner >> 48), seq: owner & (1<<48 - 1)}
}

// free reports whether the object is not in use.
func (h head) free() bool { return h.mark == uint64(h.incarnation) || h.incarnation == 0 }

// heads reads the heads of all objects of a block on one replica, in the order of the objects.
// Each is read by a READ of its own: bytes of pairs are not needed.
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

// hint sets those bits of free objects that are not set. A bit on the primary lets the owner, or
// an adopter, find the object. It reads them first, since an FAA on a set bit would carry. The
// caller sees to it that no other client sets them at the same time.
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
	// Several objects may have their bits in one word: each FAA sets one of them.
	for i, u := range units {
		if le.Uint64(read.Op(i).Buf)>>(c.indexOf(u, class)%64)&1 == 0 {
			c.addHint(add, u, class)
		}
	}
	return c.do(stepSetBits, add)
}
