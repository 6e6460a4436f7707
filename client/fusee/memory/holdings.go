package memory

import (
	"cmp"
	"slices"

	"github.com/farkv/farkv/client/fusee/layout"
	"github.com/farkv/farkv/node"
)

// Holdings are the blocks that a client allocates in, and its free objects.
type Holdings struct {
	*layout.Layout
	// Free objects by class, in blocks of Own.
	Slabs []Slab
	// Blocks in which this client allocates or which it is about to leave, as it knows them, by
	// region and index. The primary's block allocation table decides: see tidy. Each operation
	// looks one up, which in a map takes several times as long.
	own [][]*Block
	// deletes is the class of the largest object that a DELETE of this client may need, of the keys
	// that it has written.
	deletes int
}

// borrow returns the smallest class from the given one on of which the client has an idle object,
// if it keeps as many others as the reserve that are large enough for its DELETEs. So one idle
// object suffices for these, not one a class.
func (h *Holdings) borrow(class, reserve int) (from int, ok bool) {
	idle := 0
	for larger := len(h.Slabs) - 1; larger >= min(class, h.deletes); larger-- {
		n := h.Slabs[larger].Idle()
		if idle += n; n > 0 && larger >= class {
			from, ok = larger, true
		}
	}
	return from, ok && idle > reserve
}

// has reports whether a class has a free object, beside the reserve.
func (h *Holdings) has(class, reserve int) bool {
	from, ok := h.borrow(class, reserve)
	return ok && from == class
}

// serves reports whether a block of a class is as good as one of the wanted class: its objects are
// large enough, and as many. Or, if asked for, whether they are large enough.
func (h *Holdings) serves(class, wanted int, larger bool) bool {
	return class >= wanted && (larger || h.Classes.Objects[class] == h.Classes.Objects[wanted])
}

// hold makes a block one of this client's. It adds no free objects.
func (h *Holdings) hold(b *Block) {
	for b.Index >= len(h.own[b.Region]) {
		h.own[b.Region] = append(h.own[b.Region], nil)
	}
	h.own[b.Region][b.Index] = b
	s := &h.Slabs[b.Class]
	s.Blocks = append(s.Blocks, b)
}

// Own returns a block of this client's; nil: it has none there.
func (h *Holdings) Own(b node.Block) *Block {
	if list := h.own[b.Region]; b.Index < len(list) {
		return list[b.Index]
	}
	return nil
}

// drop ends what hold began. The block is in no slab any more.
func (h *Holdings) drop(b *Block) { h.own[b.Region][b.Index] = nil }

// share returns how many free objects of a class a client may hold in a pool that is mostly
// handed out: so few that a hundred clients leave room for each other, but at least a block's.
func (h *Holdings) share(class int) int {
	return max(h.Classes.Objects[class], len(h.Space.Place)*h.Space.Blocks()*h.Classes.Objects[class]/restShare)
}

// takeUp makes an empty block of this client's one in which it allocates.
func (h *Holdings) takeUp(b *Block) {
	h.hold(b)
	for i := range b.Incarnations {
		b.setIdle(i)
		h.Slabs[b.Class].Free.Push(Place{b, i})
	}
}

// PlaceOf returns the object at a unit as one of this client's blocks knows it. It is not ok when
// the client owns none of the class there.
func (h *Holdings) PlaceOf(unit uint64, class int) (p Place, ok bool) {
	blk, _, _ := h.Space.BlockOf(unit)
	if b := h.Own(blk); b != nil && b.Class == class {
		return Place{b, h.IndexOf(unit, class)}, true
	}
	return Place{}, false
}

// Block is a block that this client owns: no other client allocates in it. The primary's block
// allocation table names this client. What is here is lost with the client; marks on the nodes
// let others learn it again (inherit).
type Block struct {
	node.Block
	Class int
	// Entry is the block's table entry, as this client read or wrote it. CASes expect it.
	Entry node.Entry
	// Incarnations of each object, by its last use. 0: it was not used since the block was carved,
	// and its memory is zero. Only the owner uses objects, so no other client advances them.
	Incarnations []uint32
	// floor is the incarnation at which an object begins that was never used, so that its
	// incarnations differ from those in old logs.
	floor uint32
	// ready has a bit for each object, which is set while the object is in the free list or ripe.
	// A report that it was freed adds nothing then.
	ready []uint64
	// suspect: a scan of the block failed, or its primary moved. Hints may be lost, so marks have
	// to be read: see reread.
	suspect bool
	// parting: this client is leaving the block, and takes no objects of it.
	parting bool
	// hinted is how many objects of a departed client's block are free by its hints.
	hinted int
}

// makeBlock returns a block of which no object was ever used.
func makeBlock(blk node.Block, class int, entry node.Entry, objects int) *Block {
	return &Block{
		Block: blk, Class: class, Entry: entry,
		Incarnations: make([]uint32, objects), ready: make([]uint64, (objects+63)/64),
	}
}

// Idle reads, and setIdle and setBusy change an object's bit in ready.
func (b *Block) Idle(i int) bool { return b.ready[i/64]>>(i%64)&1 != 0 }

func (b *Block) setIdle(i int) { b.ready[i/64] |= 1 << (i % 64) }

func (b *Block) setBusy(i int) { b.ready[i/64] &^= 1 << (i % 64) }

// use begins the next use of an object: it makes the next incarnation, and the object is not free
// any more. After 2^32 uses the incarnation is 1 again, as 0 is none.
func (b *Block) use(i int) uint32 {
	b.setBusy(i)
	if b.Incarnations[i] == 0 {
		b.Incarnations[i] = b.floor
	}
	b.Incarnations[i]++
	if b.Incarnations[i] == 0 {
		b.Incarnations[i] = 1
	}
	return b.Incarnations[i]
}

// Slab holds a client's objects of one size class (FUSEE 4.4). Objects are taken in the order of
// the free list, so that each rests as long as possible.
type Slab struct {
	Blocks []*Block
	Free   Queue[Place]
	// cursor is the block at which the next background scan begins.
	cursor int
	// taken counts the objects since the last scan, and gap is how many there should be.
	taken int
	gap   int
	// used is when an operation took an object last: Allocator.writes.
	used uint64
}

// Place is a free object.
type Place struct {
	Block *Block
	Index int
}

// Idle returns how many free objects the slab has.
func (s *Slab) Idle() int { return s.Free.Len() }

// surplus returns the blocks with the most free objects, of which no more than keep are left
// without them. It returns syncBlocks at most, so an operation does not wait for all blocks of a
// client that holds many.
func (s *Slab) surplus(keep int) []*Block {
	left := s.Idle()
	if left <= keep {
		return nil
	}
	idle := make(map[*Block]int, len(s.Blocks))
	for _, p := range s.Free.Items() {
		idle[p.Block]++
	}
	blocks := slices.Clone(s.Blocks)
	slices.SortStableFunc(blocks, func(x, y *Block) int { return cmp.Compare(idle[y], idle[x]) })
	n := 0
	for ; left > keep && n < syncBlocks; n++ {
		left -= idle[blocks[n]]
	}
	return blocks[:n]
}

// Split takes blocks and their free objects out of the slab, and returns a slab of them. Both keep
// the order of the free list.
func (s *Slab) Split(blocks ...*Block) *Slab {
	part := &Slab{Blocks: slices.Clone(blocks)}
	goes := make(map[*Block]bool, len(blocks))
	for _, b := range blocks {
		goes[b] = true
	}
	s.Blocks = slices.DeleteFunc(s.Blocks, func(b *Block) bool { return goes[b] })
	kept := Queue[Place]{list: s.Free.list[:0]} // in the same memory
	for _, p := range s.Free.Items() {
		if goes[p.Block] {
			part.Free.Push(p)
		} else {
			kept.Push(p)
		}
	}
	s.Free, s.cursor = kept, 0
	return part
}
