package extendible

import (
	"fmt"

	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node/rdma"
)

// word is the content of a slot. It is changed by CAS only. From the top:
//
//	8  fingerprint: part of the key's hash
//	8  length of the pair in units of 64 bytes; 0: the slot is empty, and all
//	   of the word is 0
//	2  kind
//	   tag: which use of the block this is
//	   block where the pair lies, from 1 on, as many bits as the pool needs
//
// As long as tags do not wrap, no word comes back, in whatever slot, except as a
// copy of itself in the subtable that a rehash has made: see README, "Widths".
type word uint64

// kind says what a word means to readers and to INSERTs.
type kind uint8

const (
	// live: readers see the pair.
	live kind = iota
	// proposed: an INSERT has put it there, and has not decided yet. Readers do
	// not see the pair.
	proposed
	// void: there is no pair. It is a proposal that another INSERT has ended, or
	// what a DELETE has put in a pair's place. Only the client of which it names
	// a block takes it away. So that client finds it, if it ever was part of the
	// index.
	void
)

const (
	printShift = 56
	unitsShift = 48
	kindShift  = 46
	unitBytes  = 64
)

// empty reports whether the slot has no word.
func (w word) empty() bool { return w.units() == 0 }

// units returns the length of the pair's block in units of 64 bytes.
func (w word) units() int { return int(w>>unitsShift) & 0xff }

// print returns the fingerprint.
func (w word) print() uint8 { return uint8(w >> printShift) }

// kind returns what the word means.
func (w word) kind() kind { return kind(w>>kindShift) & 3 }

// as returns the word with another kind.
func (w word) as(k kind) word { return w&^(3<<kindShift) | word(k)<<kindShift }

// is reports whether a word is of a kind, and may be that of a key with that
// hash.
func (w word) is(k kind, hash uint64) bool {
	return w.print() == race.Print(hash) && w.kind() == k && !w.empty()
}

// block returns the block that a word names.
func (l *layout) block(w word) uint64 { return uint64(w) & (1<<l.blockBits - 1) }

// tag returns which use of the block a word names.
func (l *layout) tag(w word) uint64 { return uint64(w) & (1<<kindShift - 1) >> l.blockBits }

// word returns the live word of a use of a block. A tag that is too large wraps.
// It panics for a block or a length that no word can have.
func (l *layout) word(hash uint64, units int, tag, block uint64) word {
	if units <= 0 || units > race.MaxUnits || block == 0 || block > l.recordOf(rdma.ClientID(l.Clients)) {
		panic(fmt.Sprintf("extendible: no word for %d units at block %d", units, block))
	}
	return word(race.Print(hash))<<printShift | word(units)<<unitsShift | word(tag&l.maxTag)<<l.blockBits | word(block)
}

func (w word) String() string {
	if w.empty() {
		return "empty"
	}
	name := []string{"pair", "proposal", "void", "?"}[w.kind()]
	return fmt.Sprintf("%s(%#x)", name, uint64(w))
}
