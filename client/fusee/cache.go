package fusee

import (
	"unsafe"

	"github.com/farkv/farkv/client/race"
)

// cache is the adaptive index cache (FUSEE 4.6): for a key, its slot and the word that the primary last held. It is
// bounded: sets of four entries, a cache line; a new key takes the place of the least used one of its set, and makes the
// others count for less, so that what is not used any more goes.
//
// An entry is a hint: whoever uses it reads the slot, and the key in the object, again. So a part of a key's hash will
// do to find it.
type cache struct {
	mask uint64 // sets-1
	sets []set
}

const ways = 4

type set [ways]entry

const setBytes = int(unsafe.Sizeof(set{}))

// entry is a cached key.
type entry struct {
	word race.Word
	// meta packs the slot, 32 bits, a tag of the hash, 16 bits, and the counters of accesses and of invalid ones, 8 bits
	// each.
	meta uint64
}

const (
	slotMask     = 1<<32 - 1
	tagShift     = 32
	accessShift  = 48
	invalidShift = 56
	counterMax   = 1<<8 - 1
	minAccesses  = 4 // before that the ratio means nothing
)

// newCache makes a cache of at most so many bytes; of too few for a set, it never holds anything.
func newCache(bytes int) *cache {
	c := &cache{}
	n := 1
	for 2*n*setBytes <= bytes {
		n *= 2
	}
	if bytes >= setBytes {
		c.sets, c.mask = make([]set, n), uint64(n-1)
	}
	return c
}

// hashTag returns the part of a hash that an entry keeps: bits that do not choose its set.
func hashTag(hash uint64) uint64 { return hash >> 40 & (1<<16 - 1) << tagShift }

const tagMask = uint64(1<<16-1) << tagShift

// find returns a key's entry, or nil.
func (c *cache) find(hash uint64) *entry {
	if c.sets == nil {
		return nil
	}
	set, tag := &c.sets[hash&c.mask], hashTag(hash)
	for i := range set {
		if e := &set[i]; e.meta&tagMask == tag && e.word != 0 {
			return e
		}
	}
	return nil
}

// put remembers where a key's pair is.
func (c *cache) put(hash uint64, slot race.Slot, word race.Word) {
	if c.sets == nil {
		return
	}
	if e := c.find(hash); e != nil {
		e.word = word
		e.meta = e.meta&^slotMask | uint64(slot)
		return
	}
	set := &c.sets[hash&c.mask]
	victim := &set[0]
	for i := range set {
		e := &set[i]
		if e.word == 0 {
			victim = e
			break
		}
		if e.accesses() < victim.accesses() {
			victim = e
		}
	}
	if victim.word != 0 {
		for i := range set {
			set[i].halve()
		}
	}
	*victim = entry{word: word, meta: uint64(slot) | hashTag(hash) | 1<<accessShift}
}

// drop forgets an entry.
func (c *cache) drop(e *entry) { *e = entry{} }

// bytes returns the memory of the cache.
func (c *cache) bytes() int { return len(c.sets) * setBytes }

func (e *entry) slot() race.Slot  { return race.Slot(e.meta & slotMask) }
func (e *entry) accesses() uint64 { return e.meta >> accessShift & counterMax }
func (e *entry) invalid() uint64  { return e.meta >> invalidShift }

func (e *entry) accessed() {
	if e.accesses() == counterMax {
		e.halve()
	}
	e.meta += 1 << accessShift
}

// invalidated counts an access that found the pair replaced. There are never more of them than accesses.
func (e *entry) invalidated() {
	if e.invalid() < e.accesses() {
		e.meta += 1 << invalidShift
	}
}

// halve keeps the ratio and makes room in the counters.
func (e *entry) halve() {
	e.meta = e.meta&(1<<accessShift-1) | e.accesses()/2<<accessShift | e.invalid()/2<<invalidShift
}

// bypass tells whether the key is written so often that its cached pair is not worth reading: I > threshold.
func (e *entry) bypass(threshold float64) bool {
	n := e.accesses()
	return n >= minAccesses && float64(e.invalid()) > threshold*float64(n)
}
