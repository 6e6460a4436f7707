// Package buffers hands out out-of-place buffers: memory of one size on each memory node. Clients
// fill buffers and make words point to them. Buffers are reused without a third party.
//
// A buffer belongs to a client until a CAS of the client makes a word point to it. A CAS that
// replaces a word's pointer takes the buffer that was replaced: it belongs to the client of which
// the CAS succeeded. The former owner's WRITE was ahead of its own CAS in a chain, so none of it
// can land any more. A reader that follows the old word finds another checksum in the buffer, and
// reads the word again.
//
// A crash leaves a bounded number of buffers that have no owner and that no word points to: what
// the client had in its lists (see mostKept), and one bundle for each list that it was giving back.
// They wait for a sweep: see sweep.go, and package kit for how the sweep knows that they have no
// owner.
package buffers

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/cespare/xxhash/v2"
	"github.com/farkv/farkv/node/rdma"
)

// MaxBuffers bounds the buffers of a segment: pointers have 16 bits, and 0 is the null pointer.
const MaxBuffers = 1<<16 - 1

// MinBytes is the size of the smallest buffer: a bundle of a few pointers fits.
const MinBytes = 32

// Space is where the buffers of a pool lie, at the same offsets on each memory node. It has
// segments; a segment is two words and an array of buffers. The segment is picked by a number that
// the users of a buffer share, such as an object's or a bucket's, so that 16 bits are enough to
// name the buffer.
//
//	segment's words     8 bytes  buffers that were ever handed out, from the array's front
//	                    8 bytes  tag (48 bits) | pointer to the stack's top bundle (16)
//	...                          of all segments
//	whether there is a client that finds no buffer on this node, 8 bytes
//	arrays of buffers
//
// The words are changed by atomics only, and buffers by WRITEs only. All is zero in a new pool.
// The count only rises, so a count that was read earlier is a lower bound. The fields come from the
// pool's header: all clients must compute the same addresses.
type Space struct {
	Base     uint64 // offset on each node, a multiple of 8
	Segments int    // of each node
	Buffers  int    // of each segment, at most MaxBuffers
	Bytes    int    // of a buffer, a multiple of 8, at least MinBytes
}

const segmentWords = 16 // bytes of a segment's words

// Size returns how many bytes the space takes on each node.
func (s *Space) Size() uint64 {
	return s.Tables() + uint64(s.Segments)*uint64(s.Buffers)*uint64(s.Bytes)
}

// Tables returns how many bytes at the front of the space must be backed by memory when the pool is
// made. Buffers are backed when they are handed out. The node backs a chunk before it hands the
// chunk out, so a full machine is rdma.ErrFull for the client that asked, and no fault at a later
// WRITE.
func (s *Space) Tables() uint64 { return uint64(s.Segments)*segmentWords + 8 }

// Segment returns the segment that a number picks.
func (s *Space) Segment(number uint64) int { return int(number % uint64(s.Segments)) }

// Resolve returns the address of a buffer in the segment that a number picks. For 0, and for a
// pointer beyond the segment, which only damage creates, it returns the address of some other
// buffer. No pointer leads out of the segment: a READ beyond registered memory would take the
// connection down.
func (s *Space) Resolve(node int, number uint64, pointer uint16) rdma.Addr {
	return s.at(node, s.Segment(number), pointer)
}

// at returns the address of a buffer, and array the offset of a segment's first buffer.
func (s *Space) at(node, segment int, pointer uint16) rdma.Addr {
	i := (int(pointer) + s.Buffers - 1) % s.Buffers
	return rdma.At(node, s.array(segment)+uint64(i)*uint64(s.Bytes))
}

func (s *Space) array(segment int) uint64 {
	return s.Base + s.Tables() + uint64(segment)*uint64(s.Buffers)*uint64(s.Bytes)
}

// counter returns the offset of a segment's count, asked the address of a node's request for a
// sweep, and top the address of a segment's stack.
func (s *Space) counter(segment int) uint64 { return s.Base + uint64(segment)*segmentWords }
func (s *Space) asked(node int) rdma.Addr {
	return rdma.At(node, s.Base+uint64(s.Segments)*segmentWords)
}
func (s *Space) top(node, segment int) rdma.Addr {
	return rdma.At(node, s.counter(segment)+8)
}

// Describe names what lies at an address of the space; kind is the name of what its buffers hold.
func (s *Space) Describe(kind string, a rdma.Addr) string {
	off := a.Offset() - s.Base
	words := uint64(s.Segments) * segmentWords
	switch {
	case off < words && off%segmentWords == 0:
		return fmt.Sprintf("count of %ss, segment %d", kind, off/segmentWords)
	case off < words:
		return fmt.Sprintf("stack of free %ss, segment %d", kind, off/segmentWords)
	case off < s.Tables():
		return "request for a sweep"
	}
	i := (off - s.Tables()) / uint64(s.Bytes)
	return fmt.Sprintf("%s %d, segment %d", kind, i%uint64(s.Buffers)+1, i/uint64(s.Buffers))
}

// chunk returns how many new buffers a client takes at a time: few enough that a segment serves
// many clients.
func (s *Space) chunk() int { return min(max(s.Buffers/64, 1), 16) }

// ErrParams is wrapped by errors about spaces that cannot be.
var ErrParams = errors.New("no such space of buffers")

// Validate returns an error that wraps ErrParams if there cannot be such a space.
func (s *Space) Validate() error {
	switch {
	case s.Segments < 1 || s.Buffers < 1 || s.Buffers > MaxBuffers:
		return fmt.Errorf("%d segments of %d buffers (1 to %d): %w", s.Segments, s.Buffers, MaxBuffers, ErrParams)
	case s.Bytes < MinBytes || s.Bytes%8 != 0 || s.Base%8 != 0:
		return fmt.Errorf("buffers of %d bytes from %d on (multiples of 8, %d at least): %w", s.Bytes, s.Base, MinBytes,
			ErrParams)
	case s.Base+s.Size() > rdma.MaxOffset:
		return fmt.Errorf("%d segments of %d buffers of %d bytes: beyond the address space: %w", s.Segments, s.Buffers,
			s.Bytes, ErrParams)
	}
	return nil
}

var le = binary.LittleEndian

// A bundle is a free buffer that lists others, so that a client gives back or takes many of them by
// one CAS of their segment's stack (a Treiber stack). Its content does not change while it is in
// the stack:
//
//	0   checksum of all that follows
//	8   pointer to the next bundle, 2 bytes
//	10  number of pointers, 2 bytes
//	16  pointers, 2 bytes each
//
// The bundle's own pointer is not in its list: it is in the stack's word, or in the bundle above. A
// client does not know a bundle's length before it reads it, so it reads the space's longest.
//
// The tag of the stack's word rises with each change. So a CAS succeeds only if the bundle that the
// client has read is on top and was there all the time (no ABA). 48 bits of tag last for years.
const (
	bundleHeader = 16
	mostListed   = 64 // bound of a bundle's pointers
)

// listed returns how many pointers a bundle of this space has at most.
func (s *Space) listed() int { return min((s.Bytes-bundleHeader)/2, mostListed) }

// bundleBytes returns the length of a bundle with so many pointers. It is a whole number of words:
// the checksum covers the padding, which is zero.
func bundleBytes(pointers int) int { return bundleHeader + (2*pointers+7)&^7 }

// encodeBundle writes a bundle to p. p is memory of the caller's batch, of undefined content.
func encodeBundle(p []byte, next uint16, pointers []uint16) {
	clear(p)
	le.PutUint16(p[8:], next)
	le.PutUint16(p[10:], uint16(len(pointers)))
	for i, q := range pointers {
		le.PutUint16(p[bundleHeader+2*i:], q)
	}
	le.PutUint64(p, xxhash.Sum64(p[8:bundleBytes(len(pointers))]))
}

// decodeBundle appends the pointers of a bundle to a list. It reports false if the checksum is
// wrong: then p is no bundle. p may also be torn, or a buffer that a client fills again: then
// nothing in it can be trusted, its number of pointers included.
func decodeBundle(p []byte, list []uint16) (next uint16, pointers []uint16, ok bool) {
	n := int(le.Uint16(p[10:]))
	if bundleBytes(n) > len(p) || le.Uint64(p) != xxhash.Sum64(p[8:bundleBytes(n)]) {
		return 0, list, false
	}
	for i := range n {
		list = append(list, le.Uint16(p[bundleHeader+2*i:]))
	}
	return le.Uint16(p[8:]), list, true
}

// stack is the word of a segment's stack; then returns the word after a change.
type stack uint64

func (s stack) pointer() uint16           { return uint16(s) }
func (s stack) then(pointer uint16) stack { return (s>>16+1)<<16 | stack(pointer) }
