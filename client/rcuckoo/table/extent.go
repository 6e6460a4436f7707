package table

import (
	"bytes"

	"github.com/cespare/xxhash/v2"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// Extents hold the values that are too long for their entries (section 3.1). They come in size
// classes, see class.go, and lie in slabs, which nodes hand out one by one. A slab is, from its
// front:
//
//	marks    8 bytes for each extent, changed by atomics only: the stamp of its last use, and
//	         whether that use goes on; 0 at first
//	extents  stamp (8 bytes), checksum (8), lengths of key and value (8), key, value
//
// A client claims free extents by CASes, some at a time: see take.go of package extents. A claim
// gives an extent its next stamp, which has the client's identity in it. So no two uses of an
// extent have the same stamp, and the claims of two clients differ. In the paper a client frees an
// extent by a WRITE of a free bit, which only the slab's owner reads. Here it is a CAS of the mark,
// and any client may claim the extent: else what idle clients own could not be used. The CAS names
// the use that it ends, so any client may repeat it at any time.
//
//	client that brings a value             client that replaces it, or deletes it
//	1. WRITE of its claim list, see claims.go      6. WRITE of its redo, which names the use
//	2. CAS of the mark: free -> used       7. WRITE of the row, without the ref
//	3. WRITE of stamp, key, value          8. CAS of the mark: used -> free
//	4. WRITE of its redo
//	5. WRITE of the row, with a ref
//
// 1 lands before 2. 3 completes before 4 is posted. 4 and 5, and 6 to 8, land in this order. A
// reader that has the ref reads stamp, key and value. It accepts them if they have the ref's
// stamp, and the checksum is that of the stamp, the extent and the content. No client writes into
// an extent from 5 to 8. What a crash leaves:
//
//   - between 2 and 4: an extent that is used, and that no row names, nor ever will. The dead
//     client's claim list names it, so its recovery frees it.
//   - between 4 and 5: repair writes the row.
//   - between 6 and 8: repair writes the row, and does 8 again.
const (
	// Offsets in an extent. contentAt is that of the checksum, which covers all that is behind it.
	StampAt   = 0
	contentAt = 8
	LengthsAt = 16
	KeyAt     = ExtentHeader

	MarkBytes = 8
)

// Mark returns the mark of an extent while the use with a stamp goes on, or after it has ended.
func Mark(stamp uint64, used bool) uint64 {
	if used {
		return stamp<<1 | 1
	}
	return stamp << 1
}

// NextStamp returns the stamp of a client's use that follows another use. From the highest bit:
// class (5 bits), number of the use (42 bits), identity (16). A pool with one class has 47 bits
// for the number. The numbers of uses do not overflow in a pool's life.
func NextStamp(stamp uint64, c rdma.ClientID) uint64 { return (stamp>>16+1)<<16 | uint64(c) }

// slabOf returns the slab of a unit, and its index there.
func (u *Units) slabOf(unit uint64) (slab, i int) {
	return int(unit) / u.slabExtents, int(unit) % u.slabExtents
}

// AllExtents bounds the numbers of a shard's extents.
func (u *Units) AllExtents() uint64 { return u.AllUnits() << (u.classes - 1) }

// SlabAt is where a slab begins, with its marks, at the leader.
func (l *Layout) SlabAt(shard, slab int) rdma.Addr {
	return l.At(l.Areas.Slabs, shard, uint64(slab)*l.SlabBytes)
}

// ExtentAt is an extent's content on one copy of its shard.
func (l *Layout) ExtentAt(at node.Replica, r Ref) rdma.Addr {
	return l.Areas.Slabs.At(at, l.ExtentOff(r))
}

// Names reports whether a ref can name an extent of the pool with a key of so many bytes. If not,
// memory is damaged: no client writes such a ref.
func (u *Units) Names(r Ref, key int) bool {
	_, place := u.UnitOf(r.Extent)
	class := u.Class(r.Stamp)
	return r.Extent < u.AllExtents() && r.Length <= u.extentBytes && r.Stamp > 0 &&
		u.Real(class, place) && uint64(KeyAt+key+r.Length) <= u.SizeOf(class)
}

// extentSum is the checksum of an extent in one use, so that neither another extent's content nor
// that of another use passes.
func extentSum(content []byte, shard int, r Ref) uint64 {
	return xxhash.Sum64(content) ^ Spread(Spread(uint64(shard)<<extentBits|r.Extent)^r.Stamp)
}

// AddValue adds the WRITE of a pair to a batch: step 3. The pair must fit. It returns what is
// written, which belongs to the batch, for the WRITEs to backups.
func (l *Layout) AddValue(b *rdma.Batch, shard int, r Ref, key, value []byte) (content []byte) {
	p := b.Alloc(KeyAt + len(key) + len(value))
	le.PutUint64(p[StampAt:], r.Stamp)
	le.PutUint64(p[LengthsAt:], uint64(len(key))<<32|uint64(len(value)))
	copy(p[KeyAt+copy(p[KeyAt:], key):], value)
	le.PutUint64(p[contentAt:], extentSum(p[LengthsAt:], shard, r))
	b.Write(l.ExtentAt(l.Leads[shard], r), p)
	return p
}

// AddRead adds the READ of the pair that a ref names, with a key, from one copy of its shard.
func (l *Layout) AddRead(b *rdma.Batch, at node.Replica, r Ref, key []byte) *rdma.Op {
	return b.Read(l.ExtentAt(at, r), KeyAt+len(key)+r.Length)
}

// ValueOf returns the value from what AddRead has read, and shares its memory. false: it is torn,
// or of a later use of the extent, so the ref is out of date.
func (l *Layout) ValueOf(p []byte, shard int, r Ref, key []byte) ([]byte, bool) {
	end := KeyAt + len(key)
	ok := len(p) == end+r.Length && le.Uint64(p[StampAt:]) == r.Stamp &&
		le.Uint64(p[LengthsAt:]) == uint64(len(key))<<32|uint64(r.Length) &&
		le.Uint64(p[contentAt:]) == extentSum(p[LengthsAt:], shard, r) && bytes.Equal(p[KeyAt:end], key)
	if !ok {
		return nil, false
	}
	return p[end:], true
}

// AddMark adds the CAS that ends a use: step 8. It does nothing if the use has ended, so it may
// be repeated.
func (l *Layout) AddMark(b *rdma.Batch, shard int, r Ref) {
	b.CompareSwap(l.MarkAt(shard, r.Extent), Mark(r.Stamp, true), Mark(r.Stamp, false))
}
