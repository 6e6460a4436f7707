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
//	marks    8 bytes for each extent, changed by atomics: the stamp of its last use, and whether it is used; 0 at first
//	extents  stamp (8 bytes), checksum (8), lengths of key and value (8), key, value
//
// A client claims free extents by CASes, some at a time: see slab.go. A claim gives an extent its
// next stamp, which has the client's identity in it: so no two uses of it are taken for each other,
// nor is what a client has claimed for what another one was about to. The paper's free bit, which a
// client WRITEs for the slab's owner, is a CAS here, and any client that finds it takes the extent:
// else no client could use what idle ones own. The CAS names the use that it ends, so any client
// may do it again, at any time.
//
//	client that brings a value             client that replaces it, or deletes it
//	1. WRITE of its hand, see hand.go      6. WRITE of its redo, which names the use
//	2. CAS of the mark: free -> used       7. WRITE of the row, without the ref
//	3. WRITE of stamp, key, value          8. CAS of the mark: used -> free
//	4. WRITE of its redo
//	5. WRITE of the row, with a ref
//
// 1 lands before 2, 3 completes before 4 is posted; 4 and 5, and 6 to 8, land in this order. A
// reader of the ref reads stamp, key and value, and takes what bears the stamp, and a checksum of
// it, of the extent and of the content. No client writes into an extent from 5 to 8. What a crash
// leaves:
//
//   - between 2 and 4: an extent that is used, and that no row names, nor ever will. The dead client's hand has it.
//   - between 4 and 5: repair writes the row.
//   - between 6 and 8: repair writes the row, and does 8 again.
const (
	stampAt   = 0
	contentAt = 8 // of what the checksum is, behind it
	lengthsAt = 16
	keyAt     = extentHeader

	markBytes = 8
)

// mark is an extent's, in a use or behind it.
func mark(stamp uint64, used bool) uint64 {
	if used {
		return stamp<<1 | 1
	}
	return stamp << 1
}

// nextStamp returns that of a client's use behind another one. From the highest bit: class (5 bits),
// number of the use (42 bits), identity (16). A pool without classes has 47 bits for the number.
func nextStamp(stamp uint64, c rdma.ClientID) uint64 { return (stamp>>16+1)<<16 | uint64(c) }

// slabOf returns the slab of a unit, and its place there.
func (l *layout) slabOf(unit uint64) (slab, i int) {
	return int(unit) / l.SlabExtents, int(unit) % l.SlabExtents
}

// allExtents bounds the numbers of a shard's extents.
func (l *layout) allExtents() uint64 { return l.allUnits() << (l.Classes - 1) }

func (l *layout) slabAt(shard, slab int) rdma.Addr {
	return l.at(l.slabs, shard, uint64(slab)*l.slab)
}

// extentAt is an extent's content on one copy of its shard.
func (l *layout) extentAt(at node.Replica, r ref) rdma.Addr {
	return l.slabs.at(at, l.extentOff(r))
}

// names reports whether a ref can be one of the pool's, of a pair whose key has so many bytes. What
// fails is damaged.
func (l *layout) names(r ref, key int) bool {
	_, place := l.unitOf(r.extent)
	class := l.class(r.stamp)
	return r.extent < l.allExtents() && r.length <= l.ExtentBytes && r.stamp > 0 &&
		l.real(class, place) && uint64(keyAt+key+r.length) <= l.sizeOf(class)
}

func extentSum(content []byte, shard int, r ref) uint64 {
	return xxhash.Sum64(content) ^ spread(spread(uint64(shard)<<extentBits|r.extent)^r.stamp)
}

// addValue adds the WRITE of a pair to a batch: step 3. The pair must fit.
func (l *layout) addValue(b *rdma.Batch, shard int, r ref, key, value []byte) (content []byte) {
	p := b.Alloc(keyAt + len(key) + len(value))
	le.PutUint64(p[stampAt:], r.stamp)
	le.PutUint64(p[lengthsAt:], uint64(len(key))<<32|uint64(len(value)))
	copy(p[keyAt+copy(p[keyAt:], key):], value)
	le.PutUint64(p[contentAt:], extentSum(p[lengthsAt:], shard, r))
	b.Write(l.extentAt(l.leads[shard], r), p)
	return p
}

// addRead adds the READ, from one copy of its shard, of a pair with a key that a ref names.
func (l *layout) addRead(b *rdma.Batch, at node.Replica, r ref, key []byte) *rdma.Op {
	return b.Read(l.extentAt(at, r), keyAt+len(key)+r.length)
}

// valueOf returns the value of what addRead has read. false: it is torn, or of another use of the
// extent: the ref is an old one.
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

// addMark adds the CAS that ends a use: step 8. It does nothing where that was done.
func (l *layout) addMark(b *rdma.Batch, shard int, r ref) {
	b.CompareSwap(l.markAt(shard, r.extent), mark(r.stamp, true), mark(r.stamp, false))
}
