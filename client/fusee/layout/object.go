package layout

import (
	"bytes"
	"cmp"
	"encoding/binary"
	"fmt"

	"github.com/cespare/xxhash/v2"

	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// An object is a pair with its header and, behind it, its embedded log entry (FUSEE 4.5). The
// entry is the paper's without the pointers of its lists (see where.go). It also has the
// incarnation of the object that the old value points at. Recovery compares it with what lies
// there, and so knows whether that object was freed:
//
//	0       mark: the incarnation that was freed; see package memory
//	8       checksum of bytes 16 to the opcode, included
//	16      incarnation: how often this place was used, never 0 once it was;
//	        a slot's tag is its lower bits
//	20      length of the key, 2 bytes
//	22      length of the value, 2 bytes
//	24      writer, 2 bytes, and its sequence number, 6 bytes: orders a client's operations
//	        across classes and blocks
//	32      key, value, padding
//	        opcode, 7 bits, and the used bit
//	        old value, 8 aligned bytes: what the primary slot held; 0 until the winner commits
//	        incarnation of the old value's object, 4 bytes
//	        CRC of both
//
// The paper relies on the used bit landing last. RoCE does not promise that, and a recycled
// object carries an old used bit. So the checksum proves that an object is complete. It covers
// the used bit: clearing that bit makes the whole object invalid. The old value is one aligned
// word, so it lands as a whole. A used slot may be empty, and 0 must mean "not committed": so an
// unused slot is logged as loggedUnused.
//
// The mark is a word of its own, outside of the checksum. A client that frees the object writes
// the mark and nothing else. Writing the object's next pair overwrites the mark with 0, which is
// no incarnation.
const (
	MarkAt        = 0
	SumAt         = 8
	IncarnationAt = 16 // 4 bytes; sums begin here
	KeyLenAt      = 20
	valueLenAt    = 22
	WriterAt      = 24
	KeyAt         = 32

	HeaderBytes = KeyAt
	OpBytes     = 1 // the log entry begins with the opcode
	logBytes    = OpBytes + CommitBytes
)

// LE is the byte order of all formats, and of the words that verbs read and write.
var LE = binary.LittleEndian

// Opcode says which operation wrote an object. Its value is part of the format.
type Opcode uint8

// What an object was written by. A DELETE's object has the key alone, and no slot points at it.
const (
	OpInsert Opcode = 1
	OpUpdate Opcode = 2
	OpDelete Opcode = 3

	// usedBit is set in every object that a client writes. It shares a byte with the opcode.
	usedBit = 0x80
)

// String returns the operation's name, as errors show it.
func (o Opcode) String() string { return [...]string{"", "insert", "update", "delete"}[o] }

// loggedUnused stands for the zero word in a log's old value. No slot holds this word: it would
// be a tombstone of client 0, and identities begin at 1.
const loggedUnused = uint64(0xff) << 56

// LogAt returns where the log entry of a pair begins: 7 bytes behind a multiple of 8, so that the
// old value behind the opcode is aligned.
func LogAt(key, value int) int { return HeaderBytes + (key+value+7)/8*8 + 8 - OpBytes }

// ObjectBytes returns the bytes of an object with its log entry.
func ObjectBytes(key, value int) int { return LogAt(key, value) + logBytes }

// UnitsFor returns the units of 64 bytes that a pair takes, with its header and log entry.
func UnitsFor(key, value int) int { return (ObjectBytes(key, value) + node.Unit - 1) / node.Unit }

// Object is a place that this client may fill. No slot points at it, and no other client uses it.
type Object struct {
	Unit  uint64 // where it begins
	Class int
	// Incarnation is the use that begins now, one more than the last.
	Incarnation uint32
	// Journal is the index of the journal word that names the object.
	Journal int
	// OldAt is the offset of the log's old value. It is known once the object is encoded.
	OldAt int
}

// Fields of an object as they are encoded. All but the mark, the checksum and the end of the log
// entry.
type Fields struct {
	Incarnation uint32
	Writer      rdma.ClientID
	// Seq is the writer's number of the operation. The format has 48 bits of it.
	Seq uint64
	Op  Opcode
	// The caller's when the fields are encoded. When they are decoded, parts of the buffer.
	Key, Value []byte
}

// Encode fills p, of ObjectBytes bytes, which the caller owns. The mark becomes 0: in use. The
// old value becomes 0: not committed. So an object that is used again does not show its last
// use's commit.
func (f *Fields) Encode(p []byte) {
	LE.PutUint64(p[MarkAt:], 0)
	LE.PutUint32(p[IncarnationAt:], f.Incarnation)
	LE.PutUint16(p[KeyLenAt:], uint16(len(f.Key)))
	LE.PutUint16(p[valueLenAt:], uint16(len(f.Value)))
	LE.PutUint64(p[WriterAt:], uint64(f.Writer)<<48|f.Seq&(1<<48-1))
	n := HeaderBytes + copy(p[HeaderBytes:], f.Key)
	n += copy(p[n:], f.Value)
	log := LogAt(len(f.Key), len(f.Value))
	clear(p[n:])
	p[log] = byte(f.Op) | usedBit
	LE.PutUint64(p[SumAt:], checksum(p[IncarnationAt:log+OpBytes]))
}

// Decode reads an object of any content, also a torn one. It is not ok unless the object is
// complete. Key and value lie in p, which the caller owns.
func Decode(p []byte) (f Fields, ok bool) {
	if len(p) < HeaderBytes+logBytes {
		return f, false
	}
	key, value := int(LE.Uint16(p[KeyLenAt:])), int(LE.Uint16(p[valueLenAt:]))
	log := LogAt(key, value)
	if log+logBytes > len(p) || LE.Uint64(p[SumAt:]) != checksum(p[IncarnationAt:log+OpBytes]) {
		return f, false
	}
	f.Incarnation = LE.Uint32(p[IncarnationAt:])
	owner := LE.Uint64(p[WriterAt:])
	f.Writer, f.Seq = rdma.ClientID(owner>>48), owner&(1<<48-1)
	f.Key = p[HeaderBytes : HeaderBytes+key : HeaderBytes+key]
	f.Value = p[HeaderBytes+key : HeaderBytes+key+value : HeaderBytes+key+value]
	op := p[log]
	f.Op = Opcode(op &^ usedBit)
	return f, op&usedBit != 0
}

// PairOf decodes what a slot's word points at. It is not ok when the object is not the word's any
// more: incomplete, of another incarnation or length, or of a DELETE. Then the object was used
// again since the slot was read, and the slot has changed before that.
func (l *Layout) PairOf(w race.Word, p []byte) (f Fields, ok bool) {
	f, ok = Decode(p)
	ok = ok && l.Tag(f.Incarnation) == w.Tag() && f.Op != OpDelete &&
		l.holds(w.Units(), UnitsFor(len(f.Key), len(f.Value)))
	return f, ok
}

// holds reports whether a slot's word may have so many units for a pair that takes others: the
// same, or those of a larger class, of which the pair borrows an object (see
// memory.Allocator.Take).
func (l *Layout) holds(units, pair int) bool {
	return units == pair || units > pair && units == l.Classes.Units[l.Classes.Of[units]]
}

// checksum returns the hash of an object's checked bytes. It is never 0, so that zeroed memory is
// no object.
func checksum(p []byte) uint64 { return xxhash.Sum64(p) | 1 }

// CommitBytes is the size of what a commit adds to a log entry: the old value, its object's
// incarnation, their CRC.
const CommitBytes = 13

// PutLog fills the last bytes of a log entry, of CommitBytes. The three parts may land in any
// order: the CRC covers the others.
func PutLog(p []byte, old race.Word, incarnation uint32) {
	LE.PutUint64(p, cmp.Or(uint64(old), loggedUnused))
	LE.PutUint32(p[8:], incarnation)
	p[12] = crc8(p[:12])
}

// GetLog reads what PutLog wrote. It is not ok when the log was not committed, or torn.
func GetLog(p []byte) (old race.Word, incarnation uint32, ok bool) {
	w := LE.Uint64(p)
	if w == 0 || p[12] != crc8(p[:12]) {
		return 0, 0, false
	}
	if w == loggedUnused {
		w = 0
	}
	return race.Word(w), LE.Uint32(p[8:]), true
}

// crc8 returns the CRC-8 of polynomial x^8+x^2+x+1. It begins with 0xff, so that the CRC of zeros
// is not 0, and zeroed memory is no commit.
func crc8(p []byte) byte {
	c := byte(0xff)
	for _, v := range p {
		c = crcTable[c^v]
	}
	return c
}

// crcTable has the CRC-8 of each byte, with a register of 0.
var crcTable = func() (t [256]byte) {
	for i := range t {
		c := byte(i)
		for range 8 {
			c = c<<1 ^ c>>7*0x07
		}
		t[i] = c
	}
	return t
}()

// MaxPair returns the largest sum of a key's and a value's length in bytes. It is a
// multiple of 8, to which pairs are padded.
func (l *Layout) MaxPair() int { return (l.Classes.Largest()*node.Unit - ObjectBytes(0, 0)) / 8 * 8 }

// maxSlot bounds a pool's slots: an entry has 32 bits for one.
const maxSlot = 1<<32 - 1

// Head is the front of an object. It says whether the object is free, and which client wrote it
// last.
type Head struct {
	Mark        uint64 // the incarnation that was freed
	Incarnation uint32 // of its last use; 0: it was never used
}

const (
	HeadBytes = KeyAt // bytes of a head
	// HeadsPerTrip is how many objects a batch reads or marks at most.
	HeadsPerTrip = 256
)

// HeadOf decodes a head. It has no checksum: fields that are more than one word may be torn.
func HeadOf(p []byte) Head {
	return Head{Mark: LE.Uint64(p[MarkAt:]), Incarnation: LE.Uint32(p[IncarnationAt:])}
}

// String returns what decides whether the object is free, for reports of damage.
func (h Head) String() string { return fmt.Sprintf("incarnation %d, mark %d", h.Incarnation, h.Mark) }

// Free reports whether the object is not in use.
func (h Head) Free() bool { return h.Mark == uint64(h.Incarnation) || h.Incarnation == 0 }

// HeadIs reports whether the head of an object is that of the key's pair of word w. Key and
// incarnation lie in the head. No checksum is needed: while the slot holds w the object is
// complete, and when the slot has changed since, the CAS fails.
func (l *Layout) HeadIs(w race.Word, p, key []byte) bool {
	return len(p) == HeaderBytes+len(key) && int(LE.Uint16(p[KeyLenAt:])) == len(key) &&
		l.Tag(LE.Uint32(p[IncarnationAt:])) == w.Tag() && bytes.Equal(p[KeyAt:], key)
}
