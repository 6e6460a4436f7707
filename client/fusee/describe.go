package fusee

import (
	"fmt"

	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// Describe returns a function that says what lies at an address of the pool that ep reaches. For
// an object it posts a READ of its block's entry, which has the size of its objects.
func Describe(ep rdma.Endpoint) (func(a rdma.Addr) string, error) {
	l, _, err := readLayoutInView(ep)
	if err != nil {
		return nil, fmt.Errorf("describe a fusee pool: %w", err)
	}
	return func(a rdma.Addr) string { return l.describe(ep, a) }, nil
}

// describe returns what lies at an address, or "" when nothing does. Parts are compared in the
// order in which they lie.
func (l *layout) describe(ep rdma.Endpoint, a rdma.Addr) string {
	off := a.Offset()
	switch {
	case off < l.journals:
		return "header"
	case off < l.journals+uint64(l.Clients)*journalBytes:
		switch client, word := (off-l.journals)/journalBytes+1, (off-l.journals)%journalBytes/8; {
		case word < journalWords:
			return fmt.Sprintf("journal of client %d, word %d", client, word)
		case word == journalWords:
			return fmt.Sprintf("ceiling of client %d", client)
		}
		return ""
	case a.Offset() == l.size(a.Node()).Offset():
		return "size of the index"
	case a.Offset() == l.wanted(a.Node()).Offset():
		return "size that the index is wanted to have"
	case off < l.space.Base:
		return l.describeSlot(a)
	}
	return l.describeRegion(ep, a)
}

// replicaAt finds what lies in the index-th place of a node: the number of the item, and which of
// its replicas it is.
func replicaAt(place [][]node.Replica, a rdma.Addr, index uint64) (item, replica int, ok bool) {
	for i, replicas := range place {
		for r, at := range replicas {
			if at.Node == a.Node() && uint64(at.Index) == index {
				return i, r, true
			}
		}
	}
	return 0, 0, false
}

// role returns the name of a replica by its number.
func role(replica int) string {
	if replica == 0 {
		return "primary"
	}
	return fmt.Sprintf("backup %d", replica)
}

// describeSlot describes an address in the index. The first word of a bucket is no slot.
func (l *layout) describeSlot(a rdma.Addr) string {
	size := race.SubtableBytes(l.Groups)
	sub, r, ok := replicaAt(l.index.Place, a, (a.Offset()-l.index.Base)/size)
	switch {
	case a.Offset() < l.index.Base:
		return ""
	case !ok:
		return "room for the index to grow"
	}
	s := race.Slot(uint64(sub)*size/8 + (a.Offset()-l.index.Base)%size/8)
	if !race.IsSlot(s) {
		return fmt.Sprintf("bucket at slot %d, %s", s, role(r))
	}
	return fmt.Sprintf("slot %d, %s", s, role(r))
}

// describeRegion describes an address in the regions: an entry of the table, free bits, or part
// of an object.
func (l *layout) describeRegion(ep rdma.Endpoint, a rdma.Addr) string {
	off := a.Offset() - l.space.Base
	region, r, ok := replicaAt(l.space.Place, a, off/l.space.RegionBytes)
	if !ok {
		return ""
	}
	off %= l.space.RegionBytes
	unit := (uint64(region)*l.space.RegionBytes + off) / node.Unit
	blk, in, ok := l.space.BlockOf(unit)
	switch first := l.space.Bitmap(node.Block{Region: region}, 0).Offset() - l.space.Table(region, 0).Offset(); {
	case off < first:
		return fmt.Sprintf("table entry of block %d.%d, %s", region, off/8, role(r))
	case !ok && in < l.space.BitmapBytes():
		return fmt.Sprintf("free bits of block %d.%d, %s", region, blk.Index, role(r))
	case !ok:
		return ""
	}
	units := l.unitsOf(ep, blk)
	if units == 0 {
		return fmt.Sprintf("block %d.%d, %s", region, blk.Index, role(r))
	}
	object := (in - l.space.BitmapBytes()) / node.Unit / uint64(units)
	at := (in-l.space.BitmapBytes())%uint64(units*node.Unit) + off%node.Unit
	what := "object"
	switch {
	case at == markAt:
	case at < headerBytes:
		what = "head of object"
	default:
		what = "log entry of object"
	}
	return fmt.Sprintf("%s %d of block %d.%d, %s", what, object, region, blk.Index, role(r))
}

// unitsOf returns how large a block's objects are; 0: it has none, or its entry could not be
// read.
func (l *layout) unitsOf(ep rdma.Endpoint, blk node.Block) int {
	word, err := rdma.ReadWord(ep, stepReadTables, l.space.Entry(blk, 0), l.Timeout)
	e := node.Entry(word)
	if err != nil || e == 0 || entryClass(e) >= len(l.classes.units) {
		return 0
	}
	return l.classes.units[entryClass(e)]
}
