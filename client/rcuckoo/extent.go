package rcuckoo

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
// A client claims free extents by CASes, some at a time: see slab.go. A claim gives an extent its
// next stamp, which has the client's identity in it. So no two uses of an extent have the same
// stamp, and the claims of two clients differ. In the paper a client frees an extent by a WRITE
// of a free bit, which only the slab's owner reads. Here it is a CAS of the mark, and any client
// may claim the extent: else what idle clients own could not be used. The CAS names the use that
// it ends, so any client may repeat it at any time.
//
//	client that brings a value             client that replaces it, or deletes it
//	1. WRITE of its hand, see hand.go      6. WRITE of its redo, which names the use
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
//     client's hand names it, so its recovery frees it.
//   - between 4 and 5: repair writes the row.
//   - between 6 and 8: repair writes the row, and does 8 again.
const (
	// Offsets in an extent. contentAt is that of the checksum, which covers all that is behind it.
	stampAt   = 0
	contentAt = 8
	lengthsAt = 16
	keyAt     = extentHeader

	markBytes = 8
)

// mark returns the mark of an extent while the use with a stamp goes on, or after it has ended.
func mark(stamp uint64, used bool) uint64 {
	if used {
		return stamp<<1 | 1
	}
	return stamp << 1
}

// nextStamp returns the stamp of a client's use that follows another use. From the highest bit:
// class (5 bits), number of the use (42 bits), identity (16). A pool with one class has 47 bits
// for the number. The numbers of uses do not overflow in a pool's life.
func nextStamp(stamp uint64, c rdma.ClientID) uint64 { return (stamp>>16+1)<<16 | uint64(c) }

// slabOf returns the slab of a unit, and its index there.
func (l *layout) slabOf(unit uint64) (slab, i int) {
	return int(unit) / l.SlabExtents, int(unit) % l.SlabExtents
}

// allExtents bounds the numbers of a shard's extents.
func (l *layout) allExtents() uint64 { return l.allUnits() << (l.Classes - 1) }

// slabAt is where a slab begins, with its marks, at the leader.
func (l *layout) slabAt(shard, slab int) rdma.Addr {
	return l.at(l.slabs, shard, uint64(slab)*l.slab)
}

// extentAt is an extent's content on one copy of its shard.
func (l *layout) extentAt(at node.Replica, r ref) rdma.Addr {
	return l.slabs.at(at, l.extentOff(r))
}

// names reports whether a ref can name an extent of the pool with a key of so many bytes. If not,
// memory is damaged: no client writes such a ref.
func (l *layout) names(r ref, key int) bool {
	_, place := l.unitOf(r.extent)
	class := l.class(r.stamp)
	return r.extent < l.allExtents() && r.length <= l.ExtentBytes && r.stamp > 0 &&
		l.real(class, place) && uint64(keyAt+key+r.length) <= l.sizeOf(class)
}

// extentSum is the checksum of an extent in one use, so that neither another extent's content nor
// that of another use passes.
func extentSum(content []byte, shard int, r ref) uint64 {
	return xxhash.Sum64(content) ^ spread(spread(uint64(shard)<<extentBits|r.extent)^r.stamp)
}

// addValue adds the WRITE of a pair to a batch: step 3. The pair must fit. It returns what is
// written, which belongs to the batch, for the WRITEs to backups.
func (l *layout) addValue(b *rdma.Batch, shard int, r ref, key, value []byte) (content []byte) {
	p := b.Alloc(keyAt + len(key) + len(value))
	le.PutUint64(p[stampAt:], r.stamp)
	le.PutUint64(p[lengthsAt:], uint64(len(key))<<32|uint64(len(value)))
	copy(p[keyAt+copy(p[keyAt:], key):], value)
	le.PutUint64(p[contentAt:], extentSum(p[lengthsAt:], shard, r))
	b.Write(l.extentAt(l.leads[shard], r), p)
	return p
}

// addRead adds the READ of the pair that a ref names, with a key, from one copy of its shard.
func (l *layout) addRead(b *rdma.Batch, at node.Replica, r ref, key []byte) *rdma.Op {
	return b.Read(l.extentAt(at, r), keyAt+len(key)+r.length)
}

// valueOf returns the value from what addRead has read, and shares its memory. false: it is torn,
// or of a later use of the extent, so the ref is out of date.
func (l *layout) valueOf(p []byte, shard int, r ref, key []byte) ([]byte, bool) {
	end := keyAt + len(key)
	ok := len(p) == end+r.length && le.Uint64(p[stampAt:]) == r.stamp &&
		le.Uint64(p[lengthsAt:]) == uint64(len(key))<<32|uint64(r.length) &&
		le.Uint64(p[contentAt:]) == extentSum(p[lengthsAt:], shard, r) && bytes.Equal(p[keyAt:end], key)
	if !ok {
		return nil, false
	}
	return p[end:], true
}

// addMark adds the CAS that ends a use: step 8. It does nothing if the use has ended, so it may
// be repeated.
func (l *layout) addMark(b *rdma.Batch, shard int, r ref) {
	b.CompareSwap(l.markAt(shard, r.extent), mark(r.stamp, true), mark(r.stamp, false))
}
