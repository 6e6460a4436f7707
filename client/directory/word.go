package directory

import (
	"encoding/binary"
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
// It is changed by CAS only. Without the pointer's bits, it rises with each change. So it never
// takes the same value twice, and a CAS that lands late fails.
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

// since returns the round in which the replica's value was accepted; 0: it has none. Behind a
// promise the word does not show the round, only the buffer does: then known is false.
func (w Word) since() (round uint64, known bool) {
	switch {
	case w.accepted():
		return w.round(), true
	case w.pointer() == 0:
		return 0, true
	}
	return 0, false
}

// A value is a bucket's content, as it lies in a buffer, and in place behind the first replica's
// word:
//
//	0    checksum of all that follows
//	8    round in which it was accepted: of one bucket and round there is one value
//	16   bucket, and in the lowest byte the number of entries
//	24   changes: how many the bucket has had
//	32   ids of the clients' last changes, the newest first
//	288  entries
//
// A buffer is written once, by its owner, in one chain with the CAS that makes a word point at it.
// Several clients may write in place at the same time. If the result is not whole, or not of the
// word's round, readers take the buffer.
type value struct {
	round   uint64
	changes uint64
	// ids has at most one id of each client. 0: none.
	ids [remembered]uint64
	// n is how many entries there are.
	n       int
	entries [Slots]Entry
}

const (
	// Slots is how many entries a bucket has room for.
	Slots = 16
	// remembered is how many clients' last changes a value contains. While no more clients change a
	// bucket, each finds out the outcome of its attempt, however long it was away.
	remembered = 32

	entryBytes = 16
	headBytes  = 32 + 8*remembered
	// BufferBytes is the size of a buffer.
	BufferBytes = headBytes + Slots*entryBytes
)

// Entry is an entry of a bucket.
type Entry struct {
	// Hash picks the bucket. Several entries may have the same.
	Hash uint64
	// Location means nothing to the directory.
	Location uint64
}

var le = binary.LittleEndian

// encode fills p, which has BufferBytes, and returns the part of p that it has used.
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

// whole returns the part of p that the value in it uses. p may hold anything. false: the value is
// torn, or not this bucket's.
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
		v.entries[i] = entryAt(p[headBytes+i*entryBytes:])
	}
}

// entryAt returns the entry in p.
func entryAt(p []byte) Entry { return Entry{Hash: le.Uint64(p), Location: le.Uint64(p[8:])} }

// clientOf returns the client's number in the id of a change.
func clientOf(id uint64) uint16 { return uint16(id) }

// has reports whether a change is among those that v remembers.
func (v *value) has(id uint64) bool {
	return id != 0 && slices.Contains(v.ids[:], id)
}

// tells reports whether v certainly shows if a change was made, with the number first or a later
// one. It does if no client was forgotten yet, if v remembers a change of the same client, or if
// fewer than remembered changes were made since first. If it does, and v has not the change, it
// was not made.
func (v *value) tells(id, first uint64) bool {
	known := func(other uint64) bool { return other == 0 || clientOf(other) == clientOf(id) }
	return slices.ContainsFunc(v.ids[:], known) || v.changes < first+remembered
}

// add remembers one more change, in front of the others. It replaces the last change of the same
// client, or, if there is no room, the oldest one.
func (v *value) add(id uint64) {
	v.changes++
	i := 0
	for i < remembered-1 && v.ids[i] != 0 && clientOf(v.ids[i]) != clientOf(id) {
		i++
	}
	copy(v.ids[1:i+1], v.ids[:i])
	v.ids[0] = id
}
