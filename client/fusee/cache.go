package fusee

import (
	"github.com/farkv/farkv/client/locations"
	"github.com/farkv/farkv/client/race"
)

// indexCache is the adaptive index cache (FUSEE 4.6), for as many keys as there can be and within
// the budget.
type indexCache struct {
	*locations.Cache[entry]
	budget int // bytes
	// threshold is Options.CacheThreshold.
	threshold float64
}

// reset empties the cache, for an index of so many slots. What it knew is lost, which costs each
// key one miss.
func (c *indexCache) reset(slots uint64) {
	c.Cache = locations.New[entry](locations.Enough(c.budget, entryBytes, slots), entryBytes)
}

// entry is what the adaptive index cache (FUSEE 4.6) knows of a key: its slot, and the word that
// the primary last held. It is a hint: its user reads the slot, and the key in the object, again.
type entry struct {
	word race.Word
	at   uint32 // the slot
	// accesses counts accesses since the entry was made, and invalid those that found the pair
	// replaced. Both are halved before accesses overflows.
	accesses uint8
	invalid  uint8
}

// entryBytes is what an entry counts for in the cache's budget, as in SWARM's evaluation (7.1):
// the entry and a hash.
const entryBytes = 24

const (
	counterMax = 1<<8 - 1
	// minAccesses is how many accesses there must be before the ratio of the counters means
	// something.
	minAccesses = 4
)

// remember caches where a key's pair is. The counters of an entry that exists go on.
func (c *indexCache) remember(hash uint64, slot race.Slot, word race.Word) {
	e := c.Put(hash)
	e.word, e.at = word, uint32(slot)
	e.accesses = max(e.accesses, 1)
}

func (e *entry) slot() race.Slot { return race.Slot(e.at) }

func (e *entry) accessed() {
	if e.accesses == counterMax {
		e.halve()
	}
	e.accesses++
}

// invalidated counts an access that found the pair replaced. There are never more of them than
// accesses.
func (e *entry) invalidated() {
	if e.invalid < e.accesses {
		e.invalid++
	}
}

// halve keeps the ratio of the counters and makes room in them. Recent accesses weigh more so.
func (e *entry) halve() { e.accesses, e.invalid = e.accesses/2, e.invalid/2 }

// bypass reports whether the key is written so often that its cached pair is not worth reading:
// its share of invalid accesses is above the threshold.
//
// Without that rule a SEARCH of such a key reads a pair for nothing, and then the pair by the
// slot's word.
func (e *entry) bypass(threshold float64) bool {
	return e.accesses >= minAccesses && float64(e.invalid) > threshold*float64(e.accesses)
}
