package fusee

import (
	"unsafe"

	"github.com/farkv/farkv/client/race"
)

// cache is the adaptive index cache (FUSEE 4.6): for a key, its slot and the word that the primary last held. It is
// bounded: sets of five entries, two cache lines; a new key takes the place of the least used one of its set, and makes the others
// count for less, so that what is not used any more goes.
//
// An entry is a hint: whoever uses it reads the slot and the key in the object again. So a key's hash will do to find it.
type cache struct {
	mask uint64 // sets-1
	sets []set
}

const ways = 5

// set is two cache lines.
type set struct {
	entries [ways]entry
	_       uint64
}

// entry is a cached key.
type entry struct {
	hash uint64
	word race.Word
	// meta packs the slot, 40 bits, and the counters of accesses and of invalid ones, 12 bits each.
	meta uint64
}

const setBytes = int(unsafe.Sizeof(set{}))

const (
	counterMax   = 1<<12 - 1
	accessShift  = 40
	invalidShift = 52
	slotMask     = 1<<40 - 1
	minAccesses  = 4 // before that the ratio means nothing
)

// newCache makes a cache of at most so many bytes; of none, all its methods do nothing.
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

// find returns a key's entry, or nil.
func (c *cache) find(hash uint64) *entry {
	if c.sets == nil {
		return nil
	}
	set := &c.sets[hash&c.mask].entries
	for i := range set {
		if e := &set[i]; e.hash == hash && e.word != 0 {
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
	set := &c.sets[hash&c.mask].entries
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
	*victim = entry{hash: hash, word: word, meta: uint64(slot) | 1<<accessShift}
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
	e.meta = e.meta&slotMask | e.accesses()/2<<accessShift | e.invalid()/2<<invalidShift
}

// bypass tells whether the key is written so often that its cached pair is not worth reading: I > threshold.
func (e *entry) bypass(threshold float64) bool {
	n := e.accesses()
	return n >= minAccesses && float64(e.invalid()) > threshold*float64(n)
}
