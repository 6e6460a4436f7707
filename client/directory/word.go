package directory

import (
	"encoding/binary"
	"fmt"
	"slices"

	"github.com/cespare/xxhash/v2"
)

// A Word is what a replica of a bucket has promised and accepted, as it lies in memory. From the
// highest bit:
//
//	round     47 bits: what was promised or accepted last
//	accepted  1 bit
//	pointer   16 bits: the buffer of the value that was accepted last, on this node; 0: none was
//
// It is changed by CAS only, and rises with each change but for the pointer's bits: so it never
// takes the same value twice, and a CAS that lands late finds another one.
type Word uint64

const (
	pointerBits = 16
	roundShift  = pointerBits + 1
	accepted    = Word(1) << pointerBits
	maxRound    = 1<<(64-roundShift) - 1
)

func promise(round uint64, pointer uint16) Word { return Word(round<<roundShift) | Word(pointer) }
func accept(round uint64, pointer uint16) Word  { return promise(round, pointer) | accepted }

func (w Word) round() uint64   { return uint64(w >> roundShift) }
func (w Word) accepted() bool  { return w&accepted != 0 }
func (w Word) pointer() uint16 { return uint16(w) }

// since returns the round in which the replica's value was accepted, 0 when it has none; false: its
// buffer tells.
func (w Word) since() (round uint64, known bool) {
	switch {
	case w.accepted():
		return w.round(), true
	case w.pointer() == 0:
		return 0, true
	}
	return 0, false
}

func (w Word) String() string {
	return fmt.Sprintf("(round %d, accepted %v, buffer %d)", w.round(), w.accepted(), w.pointer())
}

// A value is a bucket's content, as a buffer has it, and what lies in place behind the first
// replica's word:
//
//	0    checksum of all that follows
//	8    round in which it was accepted: of one bucket and round there is one value
//	16   bucket, and in the lowest byte the number of entries
//	24   changes: how many the bucket has had
//	32   ids of the clients' last changes, the newest first
//	288  entries
//
// A buffer is written once, by its owner, in one chain with the CAS that makes a word point at it.
// Many write in place at the same time; what comes of it is whole, and of the word's round, or
// readers take the buffer.
type value struct {
	round   uint64
	changes uint64
	ids     [remembered]uint64
	n       int
	entries [Slots]Entry
}

const (
	// Slots is how many entries a bucket has room for.
	Slots = 16
	// remembered is of how many clients the last change is known. As long as no more are at a bucket,
	// each finds out what became of an attempt, however long it was away.
	remembered = 32

	entryBytes = 16
	headBytes  = 32 + 8*remembered
	// BufferBytes is the size of a buffer.
	BufferBytes = headBytes + Slots*entryBytes
)

// Entry is one of a bucket's.
type Entry struct {
	Hash     uint64 // which picks the bucket; several entries may have the same
	Location uint64 // the caller's
}

var le = binary.LittleEndian

// encode fills p, which has room for a buffer, and returns what is used of it.
func (v *value) encode(p []byte, bucket uint64) []byte {
	le.PutUint64(p[8:], v.round)
	le.PutUint64(p[16:], bucket<<8|uint64(v.n))
	le.PutUint64(p[24:], v.changes)
	for i, id := range v.ids {
		le.PutUint64(p[32+8*i:], id)
	}
	at := headBytes
	for _, e := range v.entries[:v.n] {
		le.PutUint64(p[at:], e.Hash)
		le.PutUint64(p[at+8:], e.Location)
		at += entryBytes
	}
	le.PutUint64(p, xxhash.Sum64(p[8:at]))
	return p[:at]
}

// whole returns what is used of the value in p, of any content; false: it is torn, or not this
// bucket's.
func whole(p []byte, bucket uint64) ([]byte, bool) {
	tag := le.Uint64(p[16:])
	n := int(tag & 0xff)
	if tag>>8 != bucket || n > Slots {
		return nil, false
	}
	p = p[:headBytes+n*entryBytes]
	return p, le.Uint64(p) == xxhash.Sum64(p[8:])
}

// roundOf returns the round of a value that is whole.
func roundOf(p []byte) uint64 { return le.Uint64(p[8:]) }

// decode fills v with a value that is whole.
func (v *value) decode(p []byte) {
	v.round, v.n, v.changes = roundOf(p), int(p[16]), le.Uint64(p[24:])
	for i := range v.ids {
		v.ids[i] = le.Uint64(p[32+8*i:])
	}
	for i := range v.n {
		v.entries[i] = entryAt(p[headBytes:], i)
	}
}

func entryAt(p []byte, i int) Entry {
	p = p[i*entryBytes:]
	return Entry{Hash: le.Uint64(p), Location: le.Uint64(p[8:])}
}

// who is the number of a change's client.
func who(id uint64) uint16 { return uint16(id) }

// has reports whether a change is among those that are remembered.
func (v *value) has(id uint64) bool {
	return id != 0 && slices.Contains(v.ids[:], id)
}

// tells reports whether v would have a change for certain, if it had been made with the number
// first or a later one: no change was forgotten, or none since, or what is remembered of its client
// is another one.
func (v *value) tells(id, first uint64) bool {
	known := func(other uint64) bool { return other == 0 || who(other) == who(id) }
	return slices.ContainsFunc(v.ids[:], known) || v.changes < first+remembered
}

// add notes one more change: in front of the others, in place of its client's one before, or of the
// one that is the last for longest.
func (v *value) add(id uint64) {
	v.changes++
	i := 0
	for i < remembered-1 && v.ids[i] != 0 && who(v.ids[i]) != who(id) {
		i++
	}
	copy(v.ids[1:i+1], v.ids[:i])
	v.ids[0] = id
}
