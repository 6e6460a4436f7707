package fusee

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"

	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// An object is a pair with its header and, behind it, its embedded log entry (FUSEE 4.5). The
// entry is the paper's without the pointers of its lists (see journal.go). It also has the
// incarnation of the object that the old value points at. Recovery compares it with what lies
// there, and so knows whether that object was freed:
//
//	0       mark: the incarnation that was freed; see reclaim.go
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
	markAt        = 0
	sumAt         = 8
	incarnationAt = 16 // 4 bytes; sums begin here
	keyLenAt      = 20
	valueLenAt    = 22
	writerAt      = 24
	keyAt         = 32

	headerBytes = keyAt
	opBytes     = 1 // the log entry begins with the opcode
	logBytes    = opBytes + commitBytes
)

// le is the byte order of all formats, and of the words that verbs read and write.
var le = binary.LittleEndian

// opcode says which operation wrote an object. Its value is part of the format.
type opcode uint8

const (
	opInsert opcode = 1
	opUpdate opcode = 2
	opDelete opcode = 3

	// usedBit is set in every object that a client writes. It shares a byte with the opcode.
	usedBit = 0x80
)

// String returns the operation's name, as errors show it.
func (o opcode) String() string { return [...]string{"", "insert", "update", "delete"}[o] }

// loggedUnused stands for the zero word in a log's old value. No slot holds this word: it would
// be a tombstone of client 0, and identities begin at 1.
const loggedUnused = uint64(0xff) << 56

// logAt returns where the log entry of a pair begins: 7 bytes behind a multiple of 8, so that the
// old value behind the opcode is aligned.
func logAt(key, value int) int { return headerBytes + (key+value+7)/8*8 + 8 - opBytes }

// objectBytes returns the bytes of an object with its log entry.
func objectBytes(key, value int) int { return logAt(key, value) + logBytes }

// unitsFor returns the units of 64 bytes that a pair takes, with its header and log entry.
func unitsFor(key, value int) int { return (objectBytes(key, value) + node.Unit - 1) / node.Unit }

// object is a place that this client may fill. No slot points at it, and no other client uses it.
type object struct {
	unit  uint64 // where it begins
	class int
	// incarnation is the use that begins now, one more than the last.
	incarnation uint32
	// journal is the index of the journal word that names the object.
	journal int
	// oldAt is the offset of the log's old value. It is known once the object is encoded.
	oldAt int
}

// fields of an object as they are encoded. All but the mark, the checksum and the end of the log
// entry.
type fields struct {
	incarnation uint32
	writer      rdma.ClientID
	// seq is the writer's number of the operation. The format has 48 bits of it.
	seq uint64
	op  opcode
	// The caller's when the fields are encoded. When they are decoded, parts of the buffer.
	key, value []byte
}

// encode fills p, of objectBytes bytes, which the caller owns. The mark becomes 0: in use. The
// old value becomes 0: not committed. So an object that is used again does not show its last
// use's commit.
func (f *fields) encode(p []byte) {
	le.PutUint64(p[markAt:], 0)
	le.PutUint32(p[incarnationAt:], f.incarnation)
	le.PutUint16(p[keyLenAt:], uint16(len(f.key)))
	le.PutUint16(p[valueLenAt:], uint16(len(f.value)))
	le.PutUint64(p[writerAt:], uint64(f.writer)<<48|f.seq&(1<<48-1))
	n := headerBytes + copy(p[headerBytes:], f.key)
	n += copy(p[n:], f.value)
	log := logAt(len(f.key), len(f.value))
	clear(p[n:])
	p[log] = byte(f.op) | usedBit
	le.PutUint64(p[sumAt:], checksum(p[incarnationAt:log+opBytes]))
}

// decode reads an object of any content, also a torn one. It is not ok unless the object is
// complete. Key and value lie in p, which the caller owns.
func decode(p []byte) (f fields, ok bool) {
	if len(p) < headerBytes+logBytes {
		return f, false
	}
	key, value := int(le.Uint16(p[keyLenAt:])), int(le.Uint16(p[valueLenAt:]))
	log := logAt(key, value)
	if log+logBytes > len(p) || le.Uint64(p[sumAt:]) != checksum(p[incarnationAt:log+opBytes]) {
		return f, false
	}
	f.incarnation = le.Uint32(p[incarnationAt:])
	owner := le.Uint64(p[writerAt:])
	f.writer, f.seq = rdma.ClientID(owner>>48), owner&(1<<48-1)
	f.key = p[headerBytes : headerBytes+key : headerBytes+key]
	f.value = p[headerBytes+key : headerBytes+key+value : headerBytes+key+value]
	op := p[log]
	f.op = opcode(op &^ usedBit)
	return f, op&usedBit != 0
}

// pairOf decodes what a slot's word points at. It is not ok when the object is not the word's any
// more: incomplete, of another incarnation or length, or of a DELETE. Then the object was used
// again since the slot was read, and the slot has changed before that.
func (l *layout) pairOf(w race.Word, p []byte) (f fields, ok bool) {
	f, ok = decode(p)
	ok = ok && l.tag(f.incarnation) == w.Tag() && f.op != opDelete &&
		l.holds(w.Units(), unitsFor(len(f.key), len(f.value)))
	return f, ok
}

// holds reports whether a slot's word may have so many units for a pair that takes others: the
// same, or those of a larger class, of which the pair borrows an object (see classFor).
func (l *layout) holds(units, pair int) bool {
	return units == pair || units > pair && units == l.classes.units[l.classes.of[units]]
}

// checksum returns the hash of an object's checked bytes. It is never 0, so that zeroed memory is
// no object.
func checksum(p []byte) uint64 { return xxhash.Sum64(p) | 1 }

// logged returns how a log's old value records a word.
func logged(w race.Word) uint64 {
	if w == 0 {
		return loggedUnused
	}
	return uint64(w)
}

// commitBytes is the size of what a commit adds to a log entry: the old value, its object's
// incarnation, their CRC.
const commitBytes = 13

// putLog fills the last bytes of a log entry, of commitBytes. The three parts may land in any
// order: the CRC covers the others.
func putLog(p []byte, old uint64, incarnation uint32) {
	le.PutUint64(p, old)
	le.PutUint32(p[8:], incarnation)
	p[12] = crc8(p[:12])
}

// getLog reads what putLog wrote. It is not ok when the log was not committed, or torn.
func getLog(p []byte) (old race.Word, incarnation uint32, ok bool) {
	w := le.Uint64(p)
	if w == 0 || p[12] != crc8(p[:12]) {
		return 0, 0, false
	}
	if w == loggedUnused {
		w = 0
	}
	return race.Word(w), le.Uint32(p[8:]), true
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
