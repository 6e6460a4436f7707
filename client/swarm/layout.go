package swarm

import (
	"errors"
	"fmt"
	"math/bits"
	"time"

	"github.com/farkv/farkv/client/quorum"
	"github.com/farkv/farkv/node/rdma"
)

// MaxReplicas bounds the replicas of an object, so that lists of them need no allocation.
const MaxReplicas = quorum.MaxReplicas

// Shape is what all objects of a pool have in common.
type Shape struct {
	// Replicas are 2f+1 memory nodes, of which f may die: 1, 3, 5 or 7.
	Replicas int
	// Words are the metadata words of a replica (section 4.4). Writer tid uses word tid % Words. 0:
	// the objects are RAW's, see raw.go.
	Words int
	// Locks: writers with a number below it guess timestamps, and have a timestamp lock each. The
	// others use ABD.
	Locks int
	// Writers bounds the writers' numbers, which begin with 0.
	Writers int
	// MaxValue bounds a value, in bytes.
	MaxValue int
	// Apart: no value is in place (DM-ABD).
	Apart bool
}

// ErrShape is wrapped by errors about a shape of objects that is not possible.
var ErrShape = errors.New("no such shape of objects")

// Layout says where the parts of an object lie, and what the bits of its words mean. An object is,
// on each of its nodes:
//
//	locks     8 bytes for each writer that guesses; see lock.go
//	words     8 bytes each; see Word
//	in place  at one of the replicas: hash, length, value; see buffer.go
//
// Locks and words are changed by atomics only, the rest by WRITEs only. All is zero when the object
// is made.
type Layout struct {
	Shape
	// groupBits is how many bits of a word tell apart the writers that share it.
	groupBits int
}

// NewLayout returns the layout of objects of a shape, or an error wrapping ErrShape.
func NewLayout(s Shape) (Layout, error) {
	switch {
	case s.Replicas < 1 || s.Replicas > MaxReplicas || s.Replicas%2 == 0:
		return Layout{}, fmt.Errorf("%d replicas (1, 3, 5 or 7): %w", s.Replicas, ErrShape)
	case s.Words == 0 && (s.Replicas != 1 || s.Locks != 0):
		return Layout{}, fmt.Errorf("no words, %d replicas and %d locks (without words one replica, and no lock): %w",
			s.Replicas, s.Locks, ErrShape)
	case s.Writers < 1 || s.Words < 0 || s.Words > s.Writers || s.Words > 1<<placeBits:
		return Layout{}, fmt.Errorf("%d words for %d writers (0 to %d, and no more than writers): %w",
			s.Words, s.Writers, 1<<placeBits, ErrShape)
	case s.Locks < 0 || s.Locks > s.Writers:
		return Layout{}, fmt.Errorf("%d locks for %d writers: %w", s.Locks, s.Writers, ErrShape)
	case s.MaxValue < 0 || s.MaxValue > maxValue:
		return Layout{}, fmt.Errorf("values of %d bytes (at most %d): %w", s.MaxValue, maxValue, ErrShape)
	}
	if s.Words == 0 {
		return Layout{Shape: s}, nil
	}
	l := Layout{Shape: s, groupBits: bits.Len(uint((s.Writers - 1) / s.Words))}
	if l.groupBits > maxGroupBits {
		return Layout{}, fmt.Errorf("%d writers share %d words (at most %d a word): %w",
			s.Writers, s.Words, 1<<maxGroupBits, ErrShape)
	}
	return l, nil
}

// Majority returns how many replicas a majority is.
func (l *Layout) Majority() int { return quorum.Majority(l.Replicas) }

// all returns the set of all replicas.
func (l *Layout) all() quorum.Mask { return quorum.All(l.Replicas) }

// Bytes returns the size of an object at a replica, with or without data in place.
func (l *Layout) Bytes(inPlace bool) int {
	if l.raw() {
		return rawHeader + pad(l.MaxValue)
	}
	if inPlace && !l.Apart {
		return l.dataAt() + inPlaceHeader + pad(l.MaxValue)
	}
	return l.dataAt()
}

// BufferBytes returns the size of an out-of-place buffer.
func (l *Layout) BufferBytes() int { return bufferHeader + pad(l.MaxValue) }

// wordsAt and dataAt return the offsets in an object at which the words, and what lies in place,
// begin.
func (l *Layout) wordsAt() int { return 8 * l.Locks }
func (l *Layout) dataAt() int  { return 8 * (l.Locks + l.Words) }

// lockAt returns the address of a writer's lock at the replica r.
func (l *Layout) lockAt(k *Register, r, tid int) rdma.Addr { return k.At[r].Add(uint64(8 * tid)) }

// wordAt returns the address of the word of a place at the replica r.
func (l *Layout) wordAt(k *Register, r, place int) rdma.Addr {
	return k.At[r].Add(uint64(l.wordsAt() + 8*place))
}

// pad rounds a number of bytes up to whole words.
func pad(n int) int { return (n + 7) &^ 7 }

// A Word is a metadata word, as it lies in memory (In-n-Out, section 4.3): a tuple's timestamp and
// flag, and where its value is. From the highest bit:
//
//	i         47 bits minus those of the group: ticks since the pool's epoch
//	group     groupBits: the writer's number divided by the number of words
//	VERIFIED  1 bit: the timestamp is known to be fresh, or the tuple is settled
//	pointer   16 bits: an out-of-place buffer on this node; see buffers.Allocator
//
// The rest of the writer's number is the word's place among the words. A tick is 2^11 ns, and
// twice as long for each bit of the group, so that in any shape i lasts for 2^58 ns: nine years.
// A writer that is faster than ticks, or has a slow clock, counts on from the highest i that it
// knows: so only a key that is written more than once a tick on the average of years uses up i
// before. The highest i is reserved for the tombstone. When the one below it is reached, writes
// fail with ErrExhausted.
//
// Words of one place compare as numbers, except for their pointers. 0: nothing was written here. A
// word only rises while its object lives, so it never takes a value twice.
type Word uint64

// A stamp is a tuple without its value and pointers, so that it compares with the stamps of each
// replica and place: i, group, place, VERIFIED, from the highest bit. Two writers never have the
// same i, group and place.
type stamp uint64

const (
	pointerBits = 16
	// placeBits of a stamp are where a word has its pointer.
	placeBits = 16
	// stampBits are those of i and group together.
	stampBits = 47
	// tickBits: a tick lasts 2^tickBits ns, where no writers share a word.
	tickBits     = 11
	maxGroupBits = 16

	// verified is a stamp's flag, in its lowest bit. A word's flag is the bit above the pointer.
	verified = 1

	maxValue = 1 << 24

	// tombstone is the word of a deleted object.
	tombstone = ^Word(0)
)

// tick returns how long i stays the same.
func (l *Layout) tick() time.Duration { return 1 << (tickBits + l.groupBits) }

// maxI is the tombstone's i.
func (l *Layout) maxI() uint64 { return 1<<(stampBits-l.groupBits) - 1 }

// stamp returns the guessed stamp of i and the writer tid.
func (l *Layout) stamp(i uint64, tid int) stamp {
	group, place := uint64(tid/l.Words), uint64(tid%l.Words)
	return stamp((i<<l.groupBits|group)<<(placeBits+1) | place<<1)
}

// stampOf returns the stamp of a word that lies at a place.
func stampOf(w Word, place int) stamp {
	return stamp(w>>(pointerBits+1)<<(placeBits+1) | Word(place)<<1 | w>>pointerBits&1)
}

// word returns a stamp's word with a pointer. A tombstone has none.
func (s stamp) word(pointer uint16) Word {
	if s.top() {
		return tombstone
	}
	return Word(s>>(placeBits+1)<<(pointerBits+1)|s&1<<pointerBits) | Word(pointer)
}

// place returns the index of the stamp's word among the words of a replica.
func (s stamp) place() int     { return int(s >> 1 & (1<<placeBits - 1)) }
func (s stamp) verified() bool { return s&verified != 0 }

// time returns a stamp without its flag. Two stamps with the same time are those of one tuple.
func (s stamp) time() stamp { return s >> 1 }

// top reports whether s is a tombstone's: all bits are set, except those of the place. No writer
// uses its i for anything else.
func (s stamp) top() bool { return s|(1<<placeBits-1)<<1 == ^stamp(0) }

// iOf returns a stamp's i.
func (l *Layout) iOf(s stamp) uint64 { return uint64(s) >> (placeBits + 1 + l.groupBits) }

// tidOf returns the number of a stamp's writer. A tombstone has no writer.
func (l *Layout) tidOf(s stamp) int {
	return int(s>>(placeBits+1)&(1<<l.groupBits-1))*l.Words + s.place()
}

// pointerOf returns a word's pointer; a tombstone's means nothing: see bufferOf.
func pointerOf(w Word) uint16 { return uint16(w) }
