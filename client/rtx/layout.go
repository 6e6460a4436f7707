package rtx

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"slices"

	"github.com/farkv/farkv/client/chunks"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

var le = binary.LittleEndian

// Shape is what all clients of a pool have to agree on. An index stores it in its
// pool's header.
type Shape struct {
	// Nodes is the number of memory nodes. Objects are spread over them, and none
	// is replicated.
	Nodes int
	// Base is the offset of the first byte on each node that belongs to objects;
	// 0: right behind the pool's header. It is a multiple of 8.
	Base uint64
	// Memory is the offset behind the last byte that belongs to objects, usually
	// Fabric.Size.
	Memory uint64
	// Clients bounds the identities: those of the pool's workers are 1 to
	// Clients. More of them leave fewer bits of a lock for sequences.
	Clients int
	// Roots is the number of objects that are there from the beginning: see
	// Layout.Root.
	Roots int
	// Objects bounds the other objects of a node. A client that makes objects
	// takes room for ChunkObjects at a time.
	Objects int
	// Sizes are the bytes of data that a buffer holds, ascending, 8 sizes at
	// most. Data takes the smallest buffer that it fits in.
	Sizes []int
	// Bit i of Shared: indexes change data of Sizes[i] by verbs of their own. So
	// no checksum covers that data, and chunks of that size keep their size.
	Shared uint8
	// Writes bounds the objects that one transaction changes; 16 by default. The
	// record of each client's log has room for so many.
	Writes int
	// Chunk is the bytes of data that a client takes at a time. The default is 64
	// KiB, or less in a small pool of many clients.
	Chunk int
	// Spare is how many chunks of data of a node no new object takes. So objects
	// of a full pool can still be replaced, and freed.
	Spare int
	// SequenceBits and TagBits make words narrower than they could be, so that
	// tests see them come to their ends; 0: as wide as there is room for.
	SequenceBits, TagBits int
}

// Layout is where everything of a Shape lies, the same on each node:
//
//	logs      of the clients for which identity modulo Nodes is the node's number
//	roots     metadata of 16 bytes, root i on node i modulo Nodes
//	tables    a word a chunk of metadata, then a word a chunk of data: node.Entry
//	metadata  chunks of 64 objects
//	data      chunks of buffers of one size
//
// States, locks, pointers and tables are changed by atomics only. Ceilings, log
// records and buffers are changed by WRITEs only. All is zero in a new pool. A
// Layout does not change after NewLayout, so workers share one.
type Layout struct {
	Shape
	// These are the bits of a lock's sequence, and of a pointer's unit.
	sequenceBits, unitBits int
	// These are the largest values that sequences and tags take. They are less
	// than the bits hold where a test asks for narrower words.
	maxSequence, maxTag uint64

	// logBytes is the size of a client's log. The others are offsets of the first
	// log, and of the first root's metadata.
	logBytes, logs, roots uint64
	// These are the chunks of metadata, all of class metaClass, and the chunks of
	// data.
	metas, data chunks.Arena
	// units is the number of units of 64 bytes that a node has for data.
	units uint64
}

// ChunkObjects is how many objects a client takes room for at a time.
const ChunkObjects = 64

const (
	metaChunk = ChunkObjects * MetaBytes
	// Each buffer is a number of whole units.
	unitBytes = 64

	// These are the least widths of words: a narrower word would come back within
	// hours. Shape.SequenceBits and Shape.TagBits may ask for less, in tests.
	leastSequence, leastTag = 40, 20
)

// ErrShape is wrapped by errors about shapes that no pool can have.
var ErrShape = errors.New("no such pool of objects")

// NewLayout returns the layout of a shape, with the defaults of fields that are
// zero. It returns an error wrapping ErrShape where the memory has no room for a
// chunk, or words have no room for sequences or tags.
func NewLayout(s Shape) (*Layout, error) {
	if s.Base == 0 {
		s.Base = node.HeaderBytes
	}
	if s.Writes == 0 {
		s.Writes = 16
	}
	s.Sizes = slices.Clone(s.Sizes)
	l := &Layout{Shape: s}
	if err := l.check(); err != nil {
		return nil, err
	}
	largest := l.bufferBytes(len(l.Sizes) - 1)
	if l.Chunk == 0 { // clients that have a few of them leave most of the pool to others
		l.Chunk = min(64<<10, max(4*largest, int(l.Memory)/l.Clients/16))
	}
	l.Chunk = (max(l.Chunk, largest) + unitBytes - 1) / unitBytes * unitBytes
	l.place()
	if int(l.data.Count) <= l.Spare || l.metas.Count == 0 && l.Objects > 0 {
		return nil, fmt.Errorf("%d bytes a node have no room for a chunk of %d: %w", l.Memory, l.Chunk, ErrShape)
	}
	return l, l.widths()
}

// check returns an error for a field that is out of its range.
func (l *Layout) check() error {
	ascending := slices.IsSorted(l.Sizes) && len(l.Sizes) > 0 && l.Sizes[0] > 0
	switch {
	case l.Nodes < 1 || l.Nodes >= rdma.MaxNodes || l.Memory > rdma.MaxOffset || l.Base%8 != 0:
		return fmt.Errorf("%d nodes, bytes %d to %d: %w", l.Nodes, l.Base, l.Memory, ErrShape)
	case l.Clients < 1 || l.Clients >= int(node.OfNode) || l.Roots < 0 || l.Objects < 0 || l.Spare < 0 ||
		l.Writes < 2 || l.Writes > 1<<12:
		return fmt.Errorf("%d clients, %d roots, %d objects, %d writes: %w", l.Clients, l.Roots, l.Objects, l.Writes,
			ErrShape)
	case !ascending || len(l.Sizes) > classes || l.Chunk < 0:
		return fmt.Errorf("sizes %v, chunks of %d bytes: want 1 to %d sizes in order: %w", l.Sizes, l.Chunk, classes,
			ErrShape)
	}
	return nil
}

// place divides a node's memory: see Layout for the order. Metadata gets the room
// that Shape.Objects needs, and data what is left. Metadata and data begin at
// multiples of 64 bytes.
func (l *Layout) place() {
	up := func(n, by int) uint64 { return uint64((n + by - 1) / by) }
	l.logBytes = (entriesAt + uint64(l.Writes)*entryBytes + 63) &^ 63
	l.logs = l.Base
	l.roots = l.logs + up(l.Clients+1, l.Nodes)*l.logBytes
	l.metas = chunks.Arena{Bytes: metaChunk, Count: up(l.Objects, metaChunk/MetaBytes)}
	l.metas.Table = l.roots + up(l.Roots, l.Nodes)*MetaBytes
	l.data = chunks.Arena{Bytes: uint64(l.Chunk), Table: l.metas.Table + 8*l.metas.Count}
	at := l.data.Table
	if left := l.metas.Count * metaChunk; at+left+128 < l.Memory {
		l.data.Count = (l.Memory - at - left - 128) / (l.data.Bytes + 8)
	}
	l.metas.First = (at + 8*l.data.Count + 63) &^ 63
	l.data.First = l.metas.First + l.metas.Count*metaChunk
	l.units = l.data.Count * l.data.Bytes / unitBytes
}

// widths divides the bits of locks and pointers. Sequences are never wider than a
// log's state has room for.
func (l *Layout) widths() error {
	narrow := func(room, asked int) int {
		if asked > 0 {
			return min(room, asked)
		}
		return room
	}
	owner := bits.Len(uint(l.Clients))
	l.sequenceBits = bits.TrailingZeros64(uint64(lockWanted)) - owner
	l.unitBits = bits.Len64(l.units * uint64(l.Nodes))
	tag := tagTop - l.unitBits
	if l.sequenceBits > takeoverShift {
		l.sequenceBits = takeoverShift
	}
	if l.sequenceBits < leastSequence || tag < leastTag {
		return fmt.Errorf("%d clients leave %d bits of a lock for sequences, and %d units %d bits of a pointer "+
			"for tags: %w", l.Clients, l.sequenceBits, l.units*uint64(l.Nodes), tag, ErrShape)
	}
	l.maxSequence = 1<<narrow(l.sequenceBits, l.SequenceBits) - 1
	l.maxTag = 1<<narrow(tag, l.TagBits) - 1
	return nil
}

// Tables returns the bytes from Base on that have to be backed by memory when a
// pool is made. Chunks are backed when they are handed out.
func (l *Layout) Tables() uint64 { return l.metas.First - l.Base }

// Buffers returns the bytes of a node that hold data, including the headers of
// buffers.
func (l *Layout) Buffers() uint64 { return l.data.Count * l.data.Bytes }

// Prepare backs the tables of a new pool. The pool's memory is all zero, and its
// nodes serve node.Serve. An index that keeps its Shape in the pool's header
// writes that itself.
func Prepare(f rdma.Fabric, l *Layout) error {
	for n := range l.Nodes {
		if err := node.Commit(f, n, l.Base, l.Tables()); err != nil {
			return fmt.Errorf("make a pool of objects on node %d: %w", n, err)
		}
	}
	return nil
}

// Root returns the i-th object that is there from the beginning, without data.
// Its metadata is never another object's, so an index can begin there. Root
// panics when there is no such root.
func (l *Layout) Root(i int) Ref {
	if i < 0 || i >= l.Roots {
		panic(fmt.Sprintf("rtx: no root %d of %d", i, l.Roots))
	}
	return Ref(i + 1)
}

// Meta returns the address of an object's metadata, MetaBytes long: the lock, and
// behind it the pointer to its data.
func (l *Layout) Meta(r Ref) rdma.Addr {
	n, nodes := r.number()-1, uint64(l.Nodes)
	if n < uint64(l.Roots) {
		return rdma.At(int(n%nodes), l.roots+n/nodes*MetaBytes)
	}
	n -= uint64(l.Roots)
	return rdma.At(int(n%nodes), l.metas.First+n/nodes*MetaBytes)
}

// MetaAt is Meta of a word that may be no name of an object; then it returns
// false.
func (l *Layout) MetaAt(r Ref) (rdma.Addr, bool) {
	if !l.valid(r) {
		return 0, false
	}
	return l.Meta(r), true
}

// valid reports whether r can name an object: its number is within the pool's.
// Whether there is such an object only its metadata says.
func (l *Layout) valid(r Ref) bool {
	n := r.number()
	return n > 0 && n <= uint64(l.Roots)+uint64(l.Nodes)*l.metas.Count*(metaChunk/MetaBytes)
}

// numberOf returns the number of the i-th metadata of a chunk of node n.
func (l *Layout) numberOf(n, chunk, i int) uint64 {
	index := uint64(chunk)*(metaChunk/MetaBytes) + uint64(i)
	return uint64(l.Roots) + index*uint64(l.Nodes) + uint64(n) + 1
}

// buffer returns the address of the buffer that a pointer names: that of its
// header.
func (l *Layout) buffer(p Pointer) rdma.Addr {
	unit := l.unit(p) - 1
	return rdma.At(int(unit/l.units), l.data.First+unit%l.units*unitBytes)
}

// chunkOf returns the node and the chunk that a pointer's buffer lies in, and the
// buffer's place in the chunk.
func (l *Layout) chunkOf(p Pointer) (n, chunk, i int) {
	unit := l.unit(p) - 1
	n, unit = int(unit/l.units), unit%l.units
	per := l.data.Bytes / unitBytes
	return n, int(unit / per), int(unit % per * unitBytes / uint64(l.bufferBytes(p.class())))
}

// unitOf returns the unit of the i-th buffer of a chunk that has buffers of a
// class. It is the inverse of chunkOf.
func (l *Layout) unitOf(n, chunk, class, i int) uint64 {
	in := uint64(chunk)*l.data.Bytes + uint64(i)*uint64(l.bufferBytes(class))
	return uint64(n)*l.units + in/unitBytes + 1
}

// bufferBytes returns the size of a buffer of a class, with its header, in whole
// units.
func (l *Layout) bufferBytes(class int) int {
	return (HeaderBytes + l.Sizes[class] + unitBytes - 1) / unitBytes * unitBytes
}

// buffers returns how many buffers of a class a chunk has.
func (l *Layout) buffers(class int) int { return l.Chunk / l.bufferBytes(class) }

// classOf returns the class of the smallest buffers that hold n bytes of data, or
// false where none does.
func (l *Layout) classOf(n int) (class int, ok bool) {
	class, _ = slices.BinarySearch(l.Sizes, n)
	return class, class < len(l.Sizes)
}

// log returns the address of a client's log. Logs are spread over the nodes by
// identity.
func (l *Layout) log(c rdma.ClientID) rdma.Addr {
	return rdma.At(int(c)%l.Nodes, l.logs+uint64(int(c)/l.Nodes)*l.logBytes)
}
