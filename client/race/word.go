// Package race is the index of RACE hashing as FUSEE replicates it (FUSEE 4.2): groups of three
// buckets, two combined buckets a key, 8-byte slots. It knows where a key's slots lie and what
// their words mean; how slots are changed is its users' business.
package race

import (
	"fmt"

	"github.com/farkv/farkv/node/rdma"
)

// Word is the content of a slot: what a key's pair is and where it lies.
//
//	bits 56-63  fingerprint: part of the key's hash
//	bits 48-55  length of the pair's object in units of 64 bytes; 0 marks a tombstone
//	bit  47     pending: proposed by an INSERT, not yet part of the index
//	bits 34-46  tag: the lower bits of the object's incarnation
//	bits 0-33   unit: where the object lies in the pool's replicated space
//
// The zero Word is a slot that was never used. A tombstone is a slot that a DELETE emptied, or an
// INSERT that gave way: below the length it has the client, bits 32-47, and the client's count of
// tombstones, bits 0-31, which make it unlike every other word for as long as it may stay. The word
// of a pair comes back only after its object was used 2^TagBits times.
type Word uint64

const (
	// MaxTagBits is the width of the tag; a pool may use fewer.
	MaxTagBits = 13
	// MaxUnits is the length of the largest object in units.
	MaxUnits = 255
	// MaxSpace is the number of units that a word can tell apart: a terabyte.
	MaxSpace = 1 << unitBits
)

const (
	unitBits     = 34
	tagShift     = 34
	pendingBit   = Word(1) << 47
	lengthShift  = 48
	printShift   = 56
	unitMask     = 1<<unitBits - 1
	bytesPerWord = 8
)

// Pack returns the word of a live pair.
func Pack(print uint8, units int, unit, tag uint64) Word {
	if units <= 0 || units > MaxUnits || unit > unitMask || tag >= 1<<MaxTagBits {
		panic(fmt.Sprintf("race: no word for %d units at %d, tag %d", units, unit, tag))
	}
	return Word(print)<<printShift | Word(units)<<lengthShift | Word(tag)<<tagShift | Word(unit)
}

// Tombstone returns the n-th word by which a client marks that a key of that fingerprint is not in
// the slot.
func Tombstone(print uint8, client rdma.ClientID, n uint32) Word {
	return Word(print)<<printShift | Word(client)<<32 | Word(n)
}

// Pending returns w as a proposal that readers do not see, and Final what it becomes.
func (w Word) Pending() Word { return w | pendingBit }

// Final returns w without its pending mark.
func (w Word) Final() Word { return w &^ pendingBit }

// IsPending reports whether w is a proposal that readers do not see.
func (w Word) IsPending() bool { return w&pendingBit != 0 && !w.Empty() }

// Empty reports whether the slot may take a new pair: it was never used, or its pair was deleted.
func (w Word) Empty() bool { return w.Units() == 0 }

// Live reports whether the slot holds a pair that readers see.
func (w Word) Live() bool { return w.Units() != 0 && !w.IsPending() }

// Print returns the fingerprint.
func (w Word) Print() uint8 { return uint8(w >> printShift) }

// Client returns the client that left the tombstone w.
func (w Word) Client() rdma.ClientID { return rdma.ClientID(w >> 32) }

// Units returns the length of the object in units of 64 bytes; 0 for an empty slot.
func (w Word) Units() int { return int(w>>lengthShift) & 0xff }

// Unit returns where the object lies.
func (w Word) Unit() uint64 { return uint64(w) & unitMask }

// Tag returns the tag.
func (w Word) Tag() uint64 { return uint64(w>>tagShift) & (1<<MaxTagBits - 1) }

func (w Word) String() string {
	switch {
	case w == 0:
		return "unused"
	case w.Empty():
		return fmt.Sprintf("tombstone(print %02x, client %d's %d)", w.Print(), w>>32&0xffff, uint32(w))
	case w.IsPending():
		return fmt.Sprintf("pending(print %02x, %d units at %d, tag %d)", w.Print(), w.Units(), w.Unit(), w.Tag())
	}
	return fmt.Sprintf("pair(print %02x, %d units at %d, tag %d)", w.Print(), w.Units(), w.Unit(), w.Tag())
}
