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

// Shape is what all clients of a pool have to agree on. An index stores it in its pool's header.
type Shape struct {
	Nodes   int    // memory nodes; objects are spread over them, and none is replicated
	Base    uint64 // offset of the first byte that belongs to objects; 0: behind the pool's header
	Memory  uint64 // offset behind the last one: Fabric.Size
	Clients int    // identities: those of the pool's workers are 1 to Clients
	Roots   int    // objects that are known from the beginning: see Layout.Root
	Objects int    // other objects a node, at most; a client that makes some takes room for 64 at a time
	// bytes of data that an object may have, ascending: each takes the smallest buffer that fits; 8 at most
	Sizes  []int
	Shared uint8 // bit i: indexes change data of Sizes[i] by verbs of their own, so that no checksum covers it
	Writes int   // objects that one transaction may change, at most; 16 by default
	// bytes of data that a client takes at a time; by default 64 KiB, or less in a small pool of many clients
	Chunk int
	// Spare is how many chunks of data of a node no new object takes, so that in a full pool objects
	// can still be replaced.
	Spare int
	// SequenceBits and TagBits make words narrower than they could be, so that tests see them come to
	// their ends; 0: as wide as there is room for.
	SequenceBits, TagBits int
}

// Layout is where everything of a Shape lies, the same on each node:
//
//	logs        of the clients whose identity modulo Nodes is the node's number
//	roots       metadata of 16 bytes, root i on node i modulo Nodes
//	tables      a word a chunk of metadata, then a word a chunk of data: node.Entry
//	metadata    chunks of 64 objects
//	data        chunks of buffers of one size
//
// States, locks, pointers and tables are changed by atomics only; ceilings, log records and buffers
// by WRITEs only. All is zero in a new pool.
type Layout struct {
	Shape
	sequenceBits, unitBits int
	maxSequence, maxTag    uint64

	logBytes, logs, roots uint64
	metas, data           chunks.Arena
	units                 uint64 // of each node
}

// ChunkObjects is how many objects a client takes room for at a time.
const ChunkObjects = 64

const (
	metaChunk = ChunkObjects * MetaBytes
	unitBytes = 64 // buffers are whole units

	// least widths: below them a word would come back within hours. Shapes of tests may ask for less.
	leastSequence, leastTag = 40, 20
)

// ErrShape is wrapped by errors about shapes that cannot be.
var ErrShape = errors.New("no such pool of objects")

// NewLayout returns the layout of a shape, or an error wrapping ErrShape.
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

// place divides a node's memory.
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

// widths divides words.
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
		return fmt.Errorf("%d clients leave %d bits of a lock for sequences, and %d units %d bits of a pointer for tags: %w",
			l.Clients, l.sequenceBits, l.units*uint64(l.Nodes), tag, ErrShape)
	}
	l.maxSequence = 1<<narrow(l.sequenceBits, l.SequenceBits) - 1
	l.maxTag = 1<<narrow(tag, l.TagBits) - 1
	return nil
}

// Tables returns the bytes from Base on that have to be backed by memory when a pool is made.
// Chunks are when they are handed out.
func (l *Layout) Tables() uint64 { return l.metas.First - l.Base }

// Buffers returns the bytes of a node that are there for data, with the headers of buffers.
func (l *Layout) Buffers() uint64 { return l.data.Count * l.data.Bytes }

// Prepare backs the tables of a new pool, whose memory is all zero, and whose nodes serve
// node.Serve. An index that keeps its Shape in a pool's header writes that, too.
func Prepare(f rdma.Fabric, l *Layout) error {
	for n := range l.Nodes {
		if err := node.Commit(f, n, l.Base, l.Tables()); err != nil {
			return fmt.Errorf("make a pool of objects on node %d: %w", n, err)
		}
	}
	return nil
}

// Root returns the i-th object that is there from the beginning, without data, and whose metadata
// is never another object's: an index begins there.
func (l *Layout) Root(i int) Ref {
	if i < 0 || i >= l.Roots {
		panic(fmt.Sprintf("rtx: no root %d of %d", i, l.Roots))
	}
	return Ref(i + 1)
}

// Meta returns the address of an object's metadata, MetaBytes long: the lock, and the pointer to
// its data.
func (l *Layout) Meta(r Ref) rdma.Addr {
	n, nodes := r.number()-1, uint64(l.Nodes)
	if n < uint64(l.Roots) {
		return rdma.At(int(n%nodes), l.roots+n/nodes*MetaBytes)
	}
	n -= uint64(l.Roots)
	return rdma.At(int(n%nodes), l.metas.First+n/nodes*MetaBytes)
}

// MetaAt is Meta of what may be no name of an object: false.
func (l *Layout) MetaAt(r Ref) (rdma.Addr, bool) {
	if !l.valid(r) {
		return 0, false
	}
	return l.Meta(r), true
}

// valid reports whether r can name an object.
func (l *Layout) valid(r Ref) bool {
	n := r.number()
	return n > 0 && n <= uint64(l.Roots)+uint64(l.Nodes)*l.metas.Count*(metaChunk/MetaBytes)
}

// numberOf returns the number of the i-th metadata of a chunk.
func (l *Layout) numberOf(n, chunk, i int) uint64 {
	index := uint64(chunk)*(metaChunk/MetaBytes) + uint64(i)
	return uint64(l.Roots) + index*uint64(l.Nodes) + uint64(n) + 1
}

// Data returns the address of the data that a pointer names, and the bytes of its buffer that data
// may take; false: it names none. What lies there is the object's for as long as its metadata stays
// as it is.
func (l *Layout) Data(p Pointer) (at rdma.Addr, room int, ok bool) {
	if l.Absent(p) || p.class() >= len(l.Sizes) {
		return 0, 0, false
	}
	return l.buffer(p).Add(HeaderBytes), l.Sizes[p.class()], true
}

// buffer returns the address of a buffer, where its header is.
func (l *Layout) buffer(p Pointer) rdma.Addr {
	unit := l.unit(p) - 1
	return rdma.At(int(unit/l.units), l.data.First+unit%l.units*unitBytes)
}

// chunkOf returns the chunk that a buffer lies in, and its place there.
func (l *Layout) chunkOf(p Pointer) (n, chunk, i int) {
	unit := l.unit(p) - 1
	n, unit = int(unit/l.units), unit%l.units
	per := l.data.Bytes / unitBytes
	return n, int(unit / per), int(unit % per * unitBytes / uint64(l.bufferBytes(p.class())))
}

// unitOf returns the unit of the i-th buffer of a chunk.
func (l *Layout) unitOf(n, chunk, class, i int) uint64 {
	in := uint64(chunk)*l.data.Bytes + uint64(i)*uint64(l.bufferBytes(class))
	return uint64(n)*l.units + in/unitBytes + 1
}

// bufferBytes returns the bytes of a buffer of a class.
func (l *Layout) bufferBytes(class int) int {
	return (HeaderBytes + l.Sizes[class] + unitBytes - 1) / unitBytes * unitBytes
}

// buffers returns how many buffers of a class a chunk has.
func (l *Layout) buffers(class int) int { return l.Chunk / l.bufferBytes(class) }

// classOf returns the class of the smallest buffers that so many bytes fit in; false: there is
// none.
func (l *Layout) classOf(n int) (class int, ok bool) {
	class, _ = slices.BinarySearch(l.Sizes, n)
	return class, class < len(l.Sizes)
}

// log returns the address of a client's log.
func (l *Layout) log(c rdma.ClientID) rdma.Addr {
	return rdma.At(int(c)%l.Nodes, l.logs+uint64(int(c)/l.Nodes)*l.logBytes)
}
