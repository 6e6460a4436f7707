package dtx

import (
	"cmp"
	"encoding/binary"
	"errors"
	"fmt"
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
	// 0: right behind the pool's header.
	Base uint64
	// Memory is the offset behind the last byte that belongs to objects, usually
	// Fabric.Size.
	Memory uint64
	// Clients bounds the identities: those of the pool's workers are 1 to
	// Clients.
	Clients int
	// Roots is the number of objects that are there from the beginning: see
	// Layout.Root.
	Roots int
	// RootBytes is how much data a root has room for; by default the largest of
	// Sizes.
	RootBytes int
	// Sizes are the bytes of data that an object has room for, ascending, 8 sizes
	// at most. An object takes the smallest room that fits when it is made, and
	// keeps it.
	Sizes []int
	// Writes bounds the objects that one transaction changes; 16 by default.
	Writes int
	// Log is the bytes of log that one transaction may take; by default Writes
	// times the largest object: see LogBytes.
	Log int
	// Chunk is the bytes of objects that a client takes at a time. The default is
	// 64 KiB, or less in a small pool.
	Chunk int
	// SequenceBits makes sequences narrower than they could be, so that tests see
	// them come to their end; 0: all bits.
	SequenceBits int
}

// Layout is where everything of a Shape lies, the same on each node:
//
//	logs     of the clients for which identity modulo Nodes is the node's number
//	roots    root i on node i modulo Nodes
//	table    a word a chunk: node.Entry
//	chunks   of objects of one size each
//
// Locks, the first two words of logs, and tables are changed by atomics only. All
// else is changed by WRITEs only. All is zero in a new pool. A Layout does not
// change after NewLayout, so workers share one.
type Layout struct {
	Shape
	// maxSequence is the largest sequence: behind it an identity is retired.
	maxSequence uint64

	// logBytes is the size of a client's log. The others are offsets of the first
	// log and the first root.
	logBytes, logs, roots uint64
	chunks                chunks.Arena
	// units is the number of units of 64 bytes that a node has in chunks.
	units uint64
}

// unitBytes is the size of a unit. Objects are whole units.
const unitBytes = 64

// ErrShape is wrapped by errors about shapes that no pool can have.
var ErrShape = errors.New("no such pool of objects")

// NewLayout returns the layout of a shape, with the defaults of fields that are
// zero. It returns an error wrapping ErrShape where the memory has no room for a
// chunk.
func NewLayout(s Shape) (*Layout, error) {
	s.Sizes = slices.Clone(s.Sizes)
	s.Base, s.Writes = cmp.Or(s.Base, node.HeaderBytes), cmp.Or(s.Writes, 16)
	l := &Layout{Shape: s}
	if err := l.check(); err != nil {
		return nil, err
	}
	largest := l.Sizes[len(l.Sizes)-1]
	l.RootBytes = cmp.Or(l.RootBytes, largest)
	l.Log = cmp.Or(l.Log, recordHead+l.Writes*entryBytes(max(l.RootBytes, largest)))
	if l.Chunk == 0 { // clients that have a few of them leave most of the pool to others
		l.Chunk = min(64<<10, max(4*roomBytes(largest), int(l.Memory)/l.Clients/16))
	}
	l.Chunk = up(max(l.Chunk, roomBytes(largest)), unitBytes) * unitBytes
	l.place()
	if l.chunks.Count == 0 {
		return nil, fmt.Errorf("%d bytes a node have no room for a chunk of %d: %w", l.Memory, l.Chunk, ErrShape)
	}
	if places := uint64(l.Roots) + uint64(l.Nodes)*l.units; places >= 1<<classShift-1 {
		return nil, fmt.Errorf("%d places: want less than 2^%d: %w", places, classShift, ErrShape)
	}
	l.maxSequence = mostSequences
	if s.SequenceBits > 0 {
		l.maxSequence = min(mostSequences, uint64(1)<<s.SequenceBits-1)
	}
	return l, nil
}

// check returns an error for a field that is out of its range.
func (l *Layout) check() error {
	ascending := slices.IsSorted(l.Sizes) && len(l.Sizes) > 0 && l.Sizes[0] > 0
	switch {
	case l.Nodes < 1 || l.Nodes >= rdma.MaxNodes || l.Memory > rdma.MaxOffset || l.Base%8 != 0:
		return fmt.Errorf("%d nodes, bytes %d to %d: %w", l.Nodes, l.Base, l.Memory, ErrShape)
	case l.Clients < 1 || l.Clients >= int(node.OfNode) || l.Roots < 0 || l.Writes < 1 || l.Writes > 1<<12:
		return fmt.Errorf("%d clients, %d roots, %d writes: %w", l.Clients, l.Roots, l.Writes, ErrShape)
	case !ascending || len(l.Sizes) > classes || l.Sizes[len(l.Sizes)-1] > 1<<30:
		return fmt.Errorf("sizes %v: want 1 to %d in order: %w", l.Sizes, classes, ErrShape)
	case l.Chunk < 0 || l.Log < 0 || l.RootBytes < 0 || l.RootBytes > 1<<30:
		return fmt.Errorf("chunks of %d bytes, logs of %d, roots of %d: %w", l.Chunk, l.Log, l.RootBytes, ErrShape)
	}
	return nil
}

// up divides, rounding up.
func up(n, by int) int { return (n + by - 1) / by }

// place divides a node's memory: see Layout for the order. Logs, roots and chunks
// begin at multiples of 64 bytes.
func (l *Layout) place() {
	l.logBytes = uint64(up(recordAt+l.Log, unitBytes)) * unitBytes
	l.logs = (l.Base + unitBytes - 1) &^ (unitBytes - 1)
	l.roots = l.logs + uint64(up(l.Clients+1, l.Nodes))*l.logBytes
	at := l.roots + uint64(up(l.Roots, l.Nodes)*roomBytes(l.RootBytes))
	l.chunks = chunks.Arena{Table: at, Bytes: uint64(l.Chunk)}
	if at+unitBytes < l.Memory {
		l.chunks.Count = (l.Memory - at - unitBytes) / (l.chunks.Bytes + 8)
	}
	l.chunks.First = (at + 8*l.chunks.Count + unitBytes - 1) &^ (unitBytes - 1)
	l.units = l.Places() / unitBytes
}

// roomBytes returns the bytes of an object that has room for so many bytes of
// data.
func roomBytes(data int) int { return up(headBytes+data, unitBytes) * unitBytes }

// Tables returns the bytes from Base on that have to be backed by memory when a
// pool is made. Chunks are backed when they are handed out.
func (l *Layout) Tables() uint64 { return l.chunks.First - l.Base }

// Places returns the bytes of a node that hold objects, including their headers.
func (l *Layout) Places() uint64 { return l.chunks.Count * l.chunks.Bytes }

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
// Its place is never another object's, so an index can begin there. Root panics
// when there is no such root.
func (l *Layout) Root(i int) Ref {
	if i < 0 || i >= l.Roots {
		panic(fmt.Sprintf("dtx: no root %d of %d", i, l.Roots))
	}
	return Ref(i + 1)
}

// isRoot reports whether an object is a root.
func (l *Layout) isRoot(r Ref) bool { return r.number() <= uint64(l.Roots) }

// Object returns the address of an object, which begins with its lock, and the
// bytes that it takes with room for all of its data: see Decode.
func (l *Layout) Object(r Ref) (at rdma.Addr, bytes int) {
	n, nodes := r.number()-1, uint64(l.Nodes)
	if l.isRoot(r) {
		room := roomBytes(l.RootBytes)
		return rdma.At(int(n%nodes), l.roots+n/nodes*uint64(room)), room
	}
	unit := n - uint64(l.Roots)
	return rdma.At(int(unit/l.units), l.chunks.First+unit%l.units*unitBytes), l.roomOf(r.class())
}

// ObjectAt is Object of a Ref that may name none; then it returns false.
func (l *Layout) ObjectAt(r Ref) (at rdma.Addr, bytes int, ok bool) {
	if !l.valid(r) {
		return 0, 0, false
	}
	at, bytes = l.Object(r)
	return at, bytes, true
}

// Room returns how many bytes of data an object has room for.
func (l *Layout) Room(r Ref) int {
	if l.isRoot(r) {
		return l.RootBytes
	}
	return l.Sizes[r.class()]
}

// valid reports whether r can name an object: its number is that of a root, or of
// a place that a chunk with objects of its class has. Whether there is such an
// object only its head says.
func (l *Layout) valid(r Ref) bool {
	n := r.number()
	if n == 0 || l.isRoot(r) {
		return n != 0 && r.place() == Ref(n) && r.life() == 0
	}
	unit := n - 1 - uint64(l.Roots)
	if unit >= uint64(l.Nodes)*l.units || r.class() >= len(l.Sizes) {
		return false
	}
	in := unit % l.units * unitBytes % l.chunks.Bytes
	room := uint64(l.roomOf(r.class()))
	return in%room == 0 && in/room < uint64(l.perChunk(r.class()))
}

// placeOf returns the i-th object of a chunk of a class, without its life. It is
// the inverse of chunkOf.
func (l *Layout) placeOf(n, chunk, class, i int) Ref {
	in := uint64(chunk)*l.chunks.Bytes + uint64(i*l.roomOf(class))
	number := uint64(l.Roots) + uint64(n)*l.units + in/unitBytes + 1
	return Ref(uint64(class)<<classShift | number)
}

// chunkOf returns the node and the chunk that an object lies in, and its place
// there. The object must not be a root.
func (l *Layout) chunkOf(r Ref) (n, chunk, i int) {
	at, room := l.Object(r)
	in := int(at.Offset() - l.chunks.First)
	return at.Node(), in / l.Chunk, in % l.Chunk / room
}

// roomOf returns the bytes of an object of a class.
func (l *Layout) roomOf(class int) int { return roomBytes(l.Sizes[class]) }

// perChunk returns how many objects of a class a chunk has.
func (l *Layout) perChunk(class int) int { return l.Chunk / l.roomOf(class) }

// classOf returns the class of the smallest objects that have room for n bytes of
// data, or false where none has.
func (l *Layout) classOf(n int) (class int, ok bool) {
	class, _ = slices.BinarySearch(l.Sizes, n)
	return class, class < len(l.Sizes)
}

// log returns the address of a client's log. Logs are spread over the nodes by
// identity.
func (l *Layout) log(c rdma.ClientID) rdma.Addr {
	return rdma.At(int(c)%l.Nodes, l.logs+uint64(int(c)/l.Nodes)*l.logBytes)
}
