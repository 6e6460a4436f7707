package fusee

import (
	"encoding/binary"

	"github.com/cespare/xxhash/v2"

	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// An object is a pair with its header and, behind it, its embedded log entry (FUSEE 4.5): the
// paper's, without the pointers of its lists (see journal.go), and with the incarnation of what the
// old value points at, by which recovery knows whether it was freed:
//
//	0       mark: the incarnation that was freed; see reclaim.go
//	8       checksum of bytes 16 to the opcode, included
//	16      incarnation: how often this place was used, never 0 once it was; a slot's tag is its lower bits
//	20      length of the key, 2 bytes
//	22      length of the value, 2 bytes
//	24      writer, 2 bytes, and its sequence number, 6 bytes: orders a client's operations across classes and blocks
//	32      key, value, padding
//	        opcode, 7 bits, and the used bit
//	        old value, 8 aligned bytes: what the primary slot held; 0 until the winner commits
//	        incarnation of the old value's object, 4 bytes
//	        CRC of both
//
// The paper relies on the used bit landing last. RoCE does not promise that, and a recycled object
// carries an old used bit, so it is the checksum that tells a complete object. It covers the used
// bit: clearing that bit makes the whole object invalid. The old value is one aligned word, so it
// is there or not. A used slot may be empty, and 0 must mean "not committed": an unused slot is
// logged as loggedUnused.
//
// The mark is a word of its own, outside of the checksum: the client that frees the object writes
// the mark, and nothing else. Writing the object's next pair covers it with 0, which is no
// incarnation.
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

var le = binary.LittleEndian

type opcode uint8

const (
	opInsert opcode = 1
	opUpdate opcode = 2
	opDelete opcode = 3

	usedBit = 0x80
)

func (o opcode) String() string { return [...]string{"", "insert", "update", "delete"}[o] }

// loggedUnused stands for the zero word in a log's old value. It cannot be a word of its own: unit
// 0 is no object.
const loggedUnused = uint64(0xff) << 56

// logAt returns where the log entry begins: its old value must be aligned.
func logAt(key, value int) int { return headerBytes + (key+value+7)/8*8 + 8 - opBytes }

// objectBytes returns the bytes of an object with its log entry.
func objectBytes(key, value int) int { return logAt(key, value) + logBytes }

// unitsFor returns the units of an object.
func unitsFor(key, value int) int { return (objectBytes(key, value) + node.Unit - 1) / node.Unit }

// object is a place that this client may fill.
type object struct {
	unit        uint64
	class       int
	incarnation uint32
	journal     int // index of the journal word that names it
	oldAt       int // offset of the log's old value, once it is filled
}

// fields of an object as they are encoded.
type fields struct {
	incarnation uint32
	writer      rdma.ClientID
	seq         uint64
	op          opcode
	key, value  []byte
}

// encode fills p, of objectBytes bytes. The mark becomes 0: in use.
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

// decode reads an object of any content: ok is false unless it is complete. Key and value lie in p.
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
// more: incomplete, of another incarnation or length. Then it was reused, and the slot changed,
// since the slot was read.
func (l *layout) pairOf(w race.Word, p []byte) (f fields, ok bool) {
	f, ok = decode(p)
	ok = ok && l.tag(f.incarnation) == w.Tag() && f.op != opDelete && l.holds(w.Units(), unitsFor(len(f.key), len(f.value)))
	return f, ok
}

// holds reports whether a slot's word may have so many units for a pair that takes others: the
// same, or those of the larger class that the pair borrows an object of.
func (l *layout) holds(units, pair int) bool {
	return units == pair || units > pair && units == l.classes.units[l.classes.of[units]]
}

// checksum is never 0, so that zeroed memory is no object.
func checksum(p []byte) uint64 { return xxhash.Sum64(p) | 1 }

// logged returns how a log's old value records a word, and crc the byte behind it.
func logged(w race.Word) uint64 {
	if w == 0 {
		return loggedUnused
	}
	return uint64(w)
}

// commitBytes is the size of what a commit adds to a log entry: the old value, its object's
// incarnation, their CRC.
const commitBytes = 13

// putLog fills the last bytes of a log entry.
func putLog(p []byte, old uint64, incarnation uint32) {
	le.PutUint64(p, old)
	le.PutUint32(p[8:], incarnation)
	p[12] = crc8(p[:12])
}

// getLog reads them. It is not ok when the log was not committed.
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

// crc8 is the CRC-8 of polynomial x^8+x^2+x+1, from 0xff so that zeros have one that is not 0.
func crc8(p []byte) byte {
	c := byte(0xff)
	for _, v := range p {
		c = crcTable[c^v]
	}
	return c
}

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
