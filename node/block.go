package node

import (
	"fmt"

	"github.com/farkv/farkv/node/rdma"
)

// Unit is the granule of replicated memory in bytes: objects are whole units and pointers count
// them.
const Unit = 64

// Space is the replicated memory of a pool (FUSEE 4.4): regions, each on Replicas nodes, divided
// into blocks. At the front of a region stands its block allocation table, a word a block; at the
// front of a block its free bitmap, a bit an object. Both are changed by atomics only. Objects fill
// the rest of a block.
//
// A pointer into the space is a unit number: region*RegionBytes/Unit + offset/Unit. Unit 0 is never
// an object.
type Space struct {
	Base        uint64 // where regions begin on each node
	RegionBytes uint64
	BlockBytes  uint64
	Replicas    int
	Place       [][]Replica // by region; the first is the primary
}

// Blocks returns the number of blocks of a region.
func (s *Space) Blocks() int { return int((s.RegionBytes - s.tableBytes()) / s.BlockBytes) }

// tableBytes is the size of the block allocation table: a word for each block that could fit, in
// whole units.
func (s *Space) tableBytes() uint64 {
	return (s.RegionBytes/s.BlockBytes*8 + Unit - 1) / Unit * Unit
}

// BitmapBytes is the size of a block's free bitmap: a bit a unit, so that it never changes place
// whatever the block's size class, and its words stay words that only atomics change.
func (s *Space) BitmapBytes() uint64 { return (s.BlockBytes/Unit/8 + Unit - 1) / Unit * Unit }

// Objects returns how many objects of the given size in units fit a block.
func (s *Space) Objects(units int) int {
	return int((s.BlockBytes - s.BitmapBytes()) / Unit / uint64(units))
}

// At returns the address of a region's byte on one of its replicas.
func (s *Space) At(region, replica int, off uint64) rdma.Addr {
	r := s.Place[region][replica]
	return rdma.At(r.Node, s.Base+uint64(r.Index)*s.RegionBytes+off)
}

// Split returns the region and the byte offset in it of a unit.
func (s *Space) Split(unit uint64) (region int, off uint64) {
	per := s.RegionBytes / Unit
	return int(unit / per), unit % per * Unit
}

// Copies returns how many replicas a region has now.
func (s *Space) Copies(region int) int { return len(s.Place[region]) }

// CopiesOf returns how many replicas a unit has now.
func (s *Space) CopiesOf(unit uint64) int { return len(s.Place[unit/(s.RegionBytes/Unit)]) }

// Units returns the number of units of the whole space: pointers lie below it.
func (s *Space) Units() uint64 { return uint64(len(s.Place)) * (s.RegionBytes / Unit) }

// UnitAt returns the address of a unit on one of its replicas.
func (s *Space) UnitAt(unit uint64, replica int) rdma.Addr {
	region, off := s.Split(unit)
	return s.At(region, replica, off)
}

// Block names a block: its region and its place in it.
type Block struct{ Region, Index int }

// BlockOf returns the block that a unit lies in; ok is false where the unit lies in none, but in a
// table or a bitmap or beyond the space.
func (s *Space) BlockOf(unit uint64) (b Block, off uint64, ok bool) {
	if unit >= s.Units() {
		return Block{}, 0, false
	}
	region, in := s.Split(unit)
	if in < s.tableBytes() {
		return Block{}, 0, false
	}
	in -= s.tableBytes()
	b = Block{region, int(in / s.BlockBytes)}
	off = in % s.BlockBytes
	return b, off, b.Index < s.Blocks() && off >= s.BitmapBytes()
}

// start is the offset of a block in its region.
func (s *Space) start(b Block) uint64 { return s.tableBytes() + uint64(b.Index)*s.BlockBytes }

// Object returns the unit of the i-th object of a block of objects of the given size in units.
func (s *Space) Object(b Block, i, units int) uint64 {
	return (uint64(b.Region)*s.RegionBytes+s.start(b)+s.BitmapBytes())/Unit + uint64(i*units)
}

// Bitmap returns the address of a block's free bitmap on one replica.
func (s *Space) Bitmap(b Block, replica int) rdma.Addr { return s.At(b.Region, replica, s.start(b)) }

// Entry returns the address of a block's word in the block allocation table on one replica.
func (s *Space) Entry(b Block, replica int) rdma.Addr {
	return s.At(b.Region, replica, uint64(b.Index)*8)
}

// Table returns the address of a region's block allocation table on one replica; it has Blocks
// words.
func (s *Space) Table(region, replica int) rdma.Addr { return s.At(region, replica, 0) }

// Entry is a word of the block allocation table: the owner of the block, the size class of its
// objects, and a generation that changes with every owner. So a CAS from an entry that was read
// takes the block over only if the owner has not changed since.
type Entry uint64

// Owners that are no clients.
const (
	// Left owns the blocks that departed clients left behind, for others to adopt.
	Left rdma.ClientID = 0xffff
	// OfNode owns the blocks of which the node itself hands out objects (node-centric allocation,
	// FUSEE 6.3).
	OfNode rdma.ClientID = 0xfffe
)

// MakeEntry packs a block's first entry: owner in bits 48 to 63, class in bits 40 to 47, generation
// 0 below.
func MakeEntry(owner rdma.ClientID, class int) Entry {
	return Entry(uint64(owner)<<48 | uint64(uint8(class))<<40)
}

const generations = 1<<40 - 1

// Next returns the entry that follows e when the block passes to owner, with objects of class.
func (e Entry) Next(owner rdma.ClientID, class int) Entry {
	return MakeEntry(owner, class) | (e+1)&generations
}

// Owner returns the owner of the block; 0 is no owner.
func (e Entry) Owner() rdma.ClientID { return rdma.ClientID(e >> 48) }

// Class returns the size class of the block's objects.
func (e Entry) Class() int { return int(uint8(e >> 40)) }

// Generation returns how often the block has changed its owner or class. Later entries of a block
// have greater ones.
func (e Entry) Generation() uint64 { return uint64(e) & generations }

func (e Entry) String() string { return fmt.Sprintf("owner %d, class %d", e.Owner(), e.Class()) }
