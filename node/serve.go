package node

import (
	"fmt"
	"math/bits"

	"github.com/farkv/farkv/node/rdma"
)

// The procedures of a memory node. Their whole state is in registered memory, so that it survives
// the process that runs them.
const (
	// ProcAlloc hands out a free block of one region (FUSEE 4.4, ALLOC). Arg: offset of the block
	// allocation table, number of blocks, offset of the first block, bytes a block, size class,
	// index to begin searching at. Ret: index of the block, its new entry, number of blocks of the
	// region that were free; with Uncounted in the index 0.
	ProcAlloc rdma.Proc = 1
	// ProcRecord records on a backup what ProcAlloc did on the primary. Arg: offset of the entry,
	// old entry, new entry, offset of the block, bytes of the block. Ret: the entry that was found.
	ProcRecord rdma.Proc = 2
	// ProcObject hands out one object (node-centric allocation, FUSEE 6.3). Arg: as ProcAlloc's up
	// to the bytes a block; size class << 32 | objects a block; bytes of a bitmap << 32 | bytes of
	// an object. Ret: index of the block, index of the object, incarnation of its last use.
	ProcObject rdma.Proc = 3
	// ProcGrow hands out the next items of an array, which is backed by memory as far as it was
	// handed out. Arg: offset of the count of those that were, offset of the first item, bytes an
	// item, number of items, how many are wanted. Ret: index of the first, how many: 1 at least.
	ProcGrow rdma.Proc = 5
	// ProcBack backs a part of the memory. Arg: its offset, its bytes. It may be called again.
	ProcBack rdma.Proc = 6
	// ProcEcho does nothing: it shows what a call takes. Ret: Arg.
	ProcEcho rdma.Proc = 4
)

// Uncounted, in the index at which ProcAlloc begins, leaves out the count of free blocks: it looks
// at all of the table, of which the search sees little when each worker begins behind what it got
// last. A node of before it begins elsewhere, and counts.
const Uncounted = 1 << 63

// Where an object of node-centric allocation says that it is free: see ProcObject.
const (
	markAt        = 0
	incarnationAt = 16 // the lower half of that word
)

// Serve runs a request on a node's memory. Each procedure has one linearization point, a CAS of a
// table word or count. A crash before it leaves nothing but memory that was backed early. A crash
// behind it leaves a block that its owner's recovery finds in the table, or items that a sweep
// finds to have no owner.
func Serve(m rdma.Memory, r *rdma.Request) error {
	switch r.Proc {
	case ProcAlloc:
		return serveAlloc(m, r)
	case ProcRecord:
		return serveRecord(m, r)
	case ProcObject:
		return serveObject(m, r)
	case ProcGrow:
		return serveGrow(m, r)
	case ProcBack:
		if !fits(m, r.Arg[0], 1, r.Arg[1]) {
			return fmt.Errorf("back %d bytes of node %d with memory: %w", r.Arg[1], m.Node(), rdma.ErrAccess)
		}
		return m.Commit(r.Arg[0], r.Arg[1])
	case ProcEcho:
		r.Ret = r.Arg
		return nil
	}
	return fmt.Errorf("call procedure %d on node %d: %w", r.Proc, m.Node(), rdma.ErrNotSupported)
}

func serveAlloc(m rdma.Memory, r *rdma.Request) error {
	table, blocks, first, bytes := r.Arg[0], r.Arg[1], r.Arg[2], r.Arg[3]
	class, from, counts := int(r.Arg[4]), r.Arg[5]&^Uncounted, r.Arg[5]&Uncounted == 0
	if r.Client == 0 || table%8 != 0 || blocks == 0 || bytes == 0 ||
		!fits(m, table, blocks, 8) || !fits(m, first, blocks, bytes) {
		return fmt.Errorf("allocate a block on node %d: %w", m.Node(), rdma.ErrAccess)
	}
	free := uint64(0)
	for i := uint64(0); counts && i < blocks; i++ {
		if m.Load(table+8*i) == 0 {
			free++
		}
	}
	for k := range blocks {
		i := (from + k) % blocks
		for { // ends: an entry that is taken from under us is not free any more
			e := Entry(m.Load(table + 8*i))
			if e.Owner() != 0 {
				break
			}
			if err := m.Commit(first+i*bytes, bytes); err != nil {
				return fmt.Errorf("allocate a block on node %d: %w", m.Node(), err)
			}
			mine := MakeEntry(r.Client, class)
			if m.CompareSwap(table+8*i, uint64(e), uint64(mine)) == uint64(e) {
				r.Ret[0], r.Ret[1], r.Ret[2] = i, uint64(mine), free
				return nil
			}
		}
	}
	return fmt.Errorf("allocate a block on node %d: region: %w", m.Node(), rdma.ErrFull)
}

func serveRecord(m rdma.Memory, r *rdma.Request) error {
	entry, expect, value, block, bytes := r.Arg[0], r.Arg[1], r.Arg[2], r.Arg[3], r.Arg[4]
	if entry%8 != 0 || !fits(m, entry, 1, 8) || !fits(m, block, 1, bytes) {
		return fmt.Errorf("record a block on node %d: %w", m.Node(), rdma.ErrAccess)
	}
	if err := m.Commit(block, bytes); err != nil {
		return fmt.Errorf("record a block on node %d: %w", m.Node(), err)
	}
	r.Ret[0] = m.CompareSwap(entry, expect, value)
	return nil
}

// serveObject takes a free object out of the node's own blocks of the class, or makes a free block
// one of them. In the bitmaps of these blocks a set bit is a hint at a free object, as in those
// that clients own, so that frees are the same.
func serveObject(m rdma.Memory, r *rdma.Request) error {
	table, blocks, first, bytes := r.Arg[0], r.Arg[1], r.Arg[2], r.Arg[3]
	class, objects := int(r.Arg[4]>>32), r.Arg[4]&0xffffffff
	bitmap, size := r.Arg[5]>>32, r.Arg[5]&0xffffffff
	if table%8 != 0 || first%8 != 0 || bytes%8 != 0 || bitmap%8 != 0 || size%8 != 0 || size < incarnationAt+8 ||
		!fits(m, table, blocks, 8) || !fits(m, first, blocks, bytes) ||
		bitmap*8 < objects || bitmap > bytes || objects > (bytes-bitmap)/size {
		return fmt.Errorf("allocate an object on node %d: %w", m.Node(), rdma.ErrAccess)
	}
	mine := MakeEntry(OfNode, class)
	for i := range blocks {
		at := first + i*bytes
		e := Entry(m.Load(table + 8*i))
		if e == 0 {
			if err := m.Commit(at, bytes); err != nil {
				return fmt.Errorf("allocate an object on node %d: %w", m.Node(), err)
			}
			if e = Entry(m.CompareSwap(table+8*i, 0, uint64(mine))); e == 0 {
				e = mine
				for w := range (objects + 63) / 64 {
					m.FetchAdd(at+8*w, ^uint64(0)>>(64-min(64, objects-64*w)))
				}
			}
		}
		if e != mine {
			continue
		}
		if j, incarnation, ok := takeObject(m, at, at+bitmap, size, objects); ok {
			r.Ret[0], r.Ret[1], r.Ret[2] = i, j, incarnation
			return nil
		}
	}
	return fmt.Errorf("allocate an object on node %d: region: %w", m.Node(), rdma.ErrFull)
}

// serveGrow moves the count past items that have memory.
func serveGrow(m rdma.Memory, r *rdma.Request) error {
	count, first, bytes, items, want := r.Arg[0], r.Arg[1], r.Arg[2], r.Arg[3], r.Arg[4]
	if count%8 != 0 || want == 0 || !fits(m, count, 1, 8) || !fits(m, first, items, bytes) {
		return fmt.Errorf("hand out %d items on node %d: %w", want, m.Node(), rdma.ErrAccess)
	}
	for used := m.Load(count); used < items; { // ends: it is higher each time
		n := min(want, items-used)
		if err := m.Commit(first+used*bytes, n*bytes); err != nil {
			return fmt.Errorf("hand out %d items on node %d: %w", want, m.Node(), err)
		}
		found := m.CompareSwap(count, used, used+n)
		if found == used {
			r.Ret[0], r.Ret[1] = used, n
			return nil
		}
		used = found
	}
	return fmt.Errorf("hand out %d items on node %d: array: %w", want, m.Node(), rdma.ErrFull)
}

// takeObject takes the first object of a block that has its bit set and is free by its mark. Bits
// of other objects are cleared on the way. The worker that clears a bit owns the object: a free
// object is hinted at once only.
func takeObject(m rdma.Memory, bitmap, front, size, objects uint64) (j, incarnation uint64, ok bool) {
	for w := range (objects + 63) / 64 {
		for set := m.Load(bitmap + 8*w); set != 0; set = m.Load(bitmap + 8*w) {
			if m.CompareSwap(bitmap+8*w, set, set&(set-1)) != set {
				continue
			}
			if j = 64*w + uint64(bits.TrailingZeros64(set)); j >= objects {
				continue
			}
			incarnation = m.Load(front+j*size+incarnationAt) & 0xffffffff
			if incarnation == 0 || m.Load(front+j*size+markAt) == incarnation {
				return j, incarnation, true
			}
		}
	}
	return 0, 0, false
}

// fits reports whether n items of the given size at off lie in m; it does not overflow.
func fits(m rdma.Memory, off, n, size uint64) bool {
	return off <= m.Size() && size > 0 && n <= (m.Size()-off)/size
}
