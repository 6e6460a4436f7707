package fusee

import (
	"fmt"

	"github.com/farkv/farkv/client/fusee/layout"
	"github.com/farkv/farkv/client/fusee/session"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// Describe returns a function that says what lies at an address of the pool that ep reaches. For
// an object it posts a READ of its block's entry, which has the size of its objects.
//
// Traces show with it what a verb reads or writes. The size of a block's objects is read when it is
// asked for, since a block may get another size class.
func Describe(ep rdma.Endpoint) (func(a rdma.Addr) string, error) {
	l, _, err := session.ReadLayoutInView(ep)
	if err != nil {
		return nil, fmt.Errorf("describe a fusee pool: %w", err)
	}
	return describer{l, ep}.describe, nil
}

// describer says what lies at addresses of a pool.
type describer struct {
	*layout.Layout
	ep rdma.Endpoint
}

// describe returns what lies at an address, or "" when nothing does. Parts are compared in the
// order in which they lie.
func (l describer) describe(a rdma.Addr) string {
	off := a.Offset()
	switch {
	case off < l.Journals:
		return "header"
	case off < l.Journals+uint64(l.Clients)*layout.JournalBytes:
		switch client, word := (off-l.Journals)/layout.JournalBytes+1, (off-l.Journals)%layout.JournalBytes/8; {
		case word < layout.JournalWords:
			return fmt.Sprintf("journal of client %d, word %d", client, word)
		case word == layout.JournalWords:
			return fmt.Sprintf("ceiling of client %d", client)
		}
		return ""
	case a.Offset() == l.SizeAt(a.Node()).Offset():
		return "size of the index"
	case a.Offset() == l.Wanted(a.Node()).Offset():
		return "size that the index is wanted to have"
	case off < l.Space.Base:
		return l.describeSlot(a)
	}
	return l.describeRegion(a)
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
func (l describer) describeSlot(a rdma.Addr) string {
	size := race.SubtableBytes(l.Groups)
	sub, r, ok := replicaAt(l.Index.Place, a, (a.Offset()-l.Index.Base)/size)
	switch {
	case a.Offset() < l.Index.Base:
		return ""
	case !ok:
		return "room for the index to grow"
	}
	s := race.Slot(uint64(sub)*size/8 + (a.Offset()-l.Index.Base)%size/8)
	if !race.IsSlot(s) {
		return fmt.Sprintf("bucket at slot %d, %s", s, role(r))
	}
	return fmt.Sprintf("slot %d, %s", s, role(r))
}

// describeRegion describes an address in the regions: an entry of the table, free bits, or part
// of an object.
func (l describer) describeRegion(a rdma.Addr) string {
	off := a.Offset() - l.Space.Base
	region, r, ok := replicaAt(l.Space.Place, a, off/l.Space.RegionBytes)
	if !ok {
		return ""
	}
	off %= l.Space.RegionBytes
	unit := (uint64(region)*l.Space.RegionBytes + off) / node.Unit
	blk, in, ok := l.Space.BlockOf(unit)
	switch first := l.Space.Bitmap(node.Block{Region: region}, 0).Offset() - l.Space.Table(region, 0).Offset(); {
	case off < first:
		return fmt.Sprintf("table entry of block %d.%d, %s", region, off/8, role(r))
	case !ok && in < l.Space.BitmapBytes():
		return fmt.Sprintf("free bits of block %d.%d, %s", region, blk.Index, role(r))
	case !ok:
		return ""
	}
	units := l.unitsOf(blk)
	if units == 0 {
		return fmt.Sprintf("block %d.%d, %s", region, blk.Index, role(r))
	}
	object := (in - l.Space.BitmapBytes()) / node.Unit / uint64(units)
	at := (in-l.Space.BitmapBytes())%uint64(units*node.Unit) + off%node.Unit
	what := "object"
	switch {
	case at == layout.MarkAt:
	case at < layout.HeaderBytes:
		what = "head of object"
	default:
		what = "log entry of object"
	}
	return fmt.Sprintf("%s %d of block %d.%d, %s", what, object, region, blk.Index, role(r))
}

// unitsOf returns how large a block's objects are; 0: it has none, or its entry could not be
// read.
func (l describer) unitsOf(blk node.Block) int {
	word, err := rdma.ReadWord(l.ep, session.StepReadTables, l.Space.Entry(blk, 0), l.Timeout)
	e := node.Entry(word)
	if err != nil || e == 0 || layout.EntryClass(e) >= len(l.Classes.Units) {
		return 0
	}
	return l.Classes.Units[layout.EntryClass(e)]
}
