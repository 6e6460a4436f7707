package search

import (
	"math/bits"

	"github.com/farkv/farkv/client/rcuckoo/table"
)

// Cache is a client's table cache (section 3.2.3): rows as the client last read or wrote them.
// Only INSERTs read it. Its rows may be out of date, and no INSERT relies on them: it searches
// again in rows that are locked.
//
// A row may be in one set of cacheWays slots, which its id chooses. In each set a hand goes
// round, as in the clock algorithm: a row that was not used since the hand passed it last is
// replaced.
type Cache struct {
	bytes int      // of a row
	keys  []uint64 // by slot: shard and row, plus 1; 0: the slot is empty
	used  []bool   // by slot: the row was used since the hand passed it
	hands []uint8  // by set: the slot where the hand is
	rows  []byte   // by slot

	Hits, Misses uint64 // of searches that looked for a row
}

// cacheWays is how many slots a set has.
const cacheWays = 8

// NewCache returns a cache for as many sets of rows as fit a budget in bytes. If not even one
// fits, the cache holds nothing.
func NewCache(l *table.Layout, budget int) *Cache {
	sets := max(budget, 0) / (cacheWays * l.RowBytes)
	n := sets * cacheWays
	return &Cache{bytes: l.RowBytes, keys: make([]uint64, n), used: make([]bool, n),
		hands: make([]uint8, sets), rows: make([]byte, n*l.RowBytes)}
}

// home returns a row's key, and the first slot of its set. Rows of one path lie near each other
// (section 3.3), and Spread puts them into different sets.
func (c *Cache) home(shard int, n uint32) (key uint64, at int) {
	key = uint64(shard)<<32 | uint64(n) // rows of all shards share the cache
	set, _ := bits.Mul64(table.Spread(key), uint64(len(c.hands)))
	return key + 1, int(set) * cacheWays
}

// find returns the slot of a row; -1: the cache does not have it.
func (c *Cache) find(shard int, n uint32) int {
	if len(c.hands) == 0 {
		return -1
	}
	key, at := c.home(shard, n)
	for i, k := range c.keys[at : at+cacheWays] {
		if k == key {
			return at + i
		}
	}
	return -1
}

// Row implements view. The row is in the cache's memory, until the next put.
func (c *Cache) Row(shard int, n uint32) table.Row {
	i := c.find(shard, n)
	if i < 0 {
		c.Misses++
		return nil
	}
	c.Hits++
	c.used[i] = true
	return table.Row(c.rows[i*c.bytes:][:c.bytes:c.bytes])
}

// Put copies a valid row into the cache. A new one does not count as used before a search
// reads it, so rows that were read in passing leave first.
func (c *Cache) Put(shard int, n uint32, r table.Row) {
	if len(c.hands) == 0 {
		return
	}
	i := c.find(shard, n)
	if i < 0 {
		i = c.room(shard, n)
	}
	copy(c.rows[i*c.bytes:][:c.bytes], r)
}

// room returns a slot for a row that the cache does not have. The hand moves to the next slot
// that is not used, and marks those that it passes as not used, so it goes round at most once.
func (c *Cache) room(shard int, n uint32) int {
	key, at := c.home(shard, n)
	hand := &c.hands[at/cacheWays]
	for c.used[at+int(*hand)] {
		c.used[at+int(*hand)] = false
		*hand = (*hand + 1) % cacheWays
	}
	i := at + int(*hand)
	*hand = (*hand + 1) % cacheWays
	c.keys[i], c.used[i] = key, false
	return i
}
