package rcuckoo

import (
	"bytes"

	"github.com/cespare/xxhash/v2"
	"github.com/farkv/farkv/node/rdma"
)

// Extents hold the values that are too long for their entries (section 3.1). They are all of one size, and lie in slabs, which
// belong to one client each: see slab.go. A slab is, from its front:
//
//	marks    8 bytes for each extent: the stamp of its last use that has ended
//	extents  stamp (8 bytes), checksum (8), lengths of key and value (8), key, value
//
// A use of an extent has a stamp, one more than the last. So an extent is free if its mark is its stamp, as in a slab that was
// never used, where both are 0. The paper's free bit is a mark here: a bit that is set late would free the next use.
//
//	client that owns the slab         client that replaces the entry, or deletes it
//	1. WRITE of stamp, key, value     4. WRITE of its redo, which names the extent and its stamp
//	2. WRITE of its redo              5. WRITE of the row, without the ref
//	3. WRITE of the row, with a ref   6. WRITE of the mark
//
// 1 completes before 2 is posted; 4, 5 and 6 land in this order. A reader of the ref reads stamp, key and value, and takes what
// bears the stamp, and a checksum of it, of the extent and of the content. Nobody writes into an extent from 3 to 6. What a crash
// leaves:
//
//   - before 1 is whole, or between 1 and 2: a use that no row names, nor ever will. The slab's next owner finds it, see adopt.go.
//   - between 2 and 3: repair writes the row.
//   - between 4 and 6: repair writes the row and then the mark, if the extent still bears that stamp and not that mark. So
//     nobody marks twice: who finds the mark leaves it, since the extent may be used again from then on, and who does not knows
//     that it cannot have been. A mark that comes late all the same, from a client that an adopter has overtaken, names a use
//     that is over: it frees nothing. If another mark was there it hides that, and the extent waits for the slab's next owner.
//   - an owner that dies leaves slabs, which have another owner when its identity was recovered: when nothing of it can land
//     any more, and its operations have come to their ends.
const (
	stampAt   = 0
	contentAt = 8 // of what the checksum is, behind it
	lengthsAt = 16
	keyAt     = extentHeader

	markBytes = 8
)

// slabOf returns the slab of an extent, and its place there.
func (l *layout) slabOf(extent uint64) (slab, i int) {
	return int(extent) / l.SlabExtents, int(extent) % l.SlabExtents
}

// extents tells how many a shard has.
func (l *layout) allExtents() uint64 { return uint64(l.Slabs) * uint64(l.SlabExtents) }

func (l *layout) slabAt(shard, slab int) rdma.Addr {
	return l.at(l.slabs, shard, uint64(slab)*l.slab)
}

func (l *layout) markAt(shard int, extent uint64) rdma.Addr {
	slab, i := l.slabOf(extent)
	return l.slabAt(shard, slab).Add(uint64(i) * markBytes)
}

func (l *layout) extentAt(shard int, extent uint64) rdma.Addr {
	slab, i := l.slabOf(extent)
	return l.slabAt(shard, slab).Add(uint64(l.SlabExtents)*markBytes + uint64(i)*l.extent)
}

// names tells whether a ref can be one of the pool's. What fails is damaged.
func (l *layout) names(r ref) bool {
	return r.extent < l.allExtents() && r.length <= l.ExtentBytes && r.stamp > 0
}

func extentSum(content []byte, shard int, r ref) uint64 {
	return xxhash.Sum64(content) ^ spread(spread(uint64(shard)<<extentBits|r.extent)^r.stamp)
}

// addValue adds the WRITE of a pair to a batch: step 1. The pair must fit.
func (l *layout) addValue(b *rdma.Batch, shard int, r ref, key, value []byte) {
	p := b.Alloc(keyAt + len(key) + len(value))
	le.PutUint64(p[stampAt:], r.stamp)
	le.PutUint64(p[lengthsAt:], uint64(len(key))<<32|uint64(len(value)))
	copy(p[keyAt+copy(p[keyAt:], key):], value)
	le.PutUint64(p[contentAt:], extentSum(p[lengthsAt:], shard, r))
	b.Write(l.extentAt(shard, r.extent), p)
}

// addRead adds the READ of a pair with a key that a ref names.
func (l *layout) addRead(b *rdma.Batch, shard int, r ref, key []byte) *rdma.Op {
	return b.Read(l.extentAt(shard, r.extent), keyAt+len(key)+r.length)
}

// valueOf returns the value of what addRead has read. false: it is torn, or of another use of the extent: the ref is an old one.
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

// addMark adds the WRITE of the mark that a use has ended: step 6. Only who took the ref out of its row may write it.
func (l *layout) addMark(b *rdma.Batch, shard int, r ref) {
	p := b.Alloc(markBytes)
	le.PutUint64(p, r.stamp)
	b.Write(l.markAt(shard, r.extent), p)
}

// addMarkReads adds the READs that tell a repairer whether step 6 of a redo is missing: see unmarked.
func (l *layout) addMarkReads(b *rdma.Batch, shard int, r ref) (mark, stamp *rdma.Op) {
	return b.Read(l.markAt(shard, r.extent), markBytes), b.Read(l.extentAt(shard, r.extent).Add(stampAt), 8)
}

// unmarked tells whether the use that a redo has ended is yet to be marked. The redo's client is fenced off, and nobody else
// repairs: what was not marked stays so.
func unmarked(mark, stamp *rdma.Op, r ref) bool {
	return le.Uint64(stamp.Buf) == r.stamp && le.Uint64(mark.Buf) != r.stamp
}
