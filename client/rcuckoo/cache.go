package rcuckoo

import "math/bits"

// cache is a client's table cache (section 3.2.3): rows as it has last seen them, which only
// inserts look at. What is in it may be stale, and is never relied on: a path that is found here is
// looked for again in rows that are locked.
//
// Rows belong to a set of eight by their number. In a set one that was not looked at since the hand
// came by makes room.
type cache struct {
	bytes int      // of a row
	keys  []uint64 // shard and row, plus 1; 0: nothing
	used  []bool
	hands []uint8 // of each set
	rows  []byte

	hits, misses uint64 // of searches that looked for a row
}

const cacheWays = 8

// newCache returns a cache for as many rows as fit a budget in bytes; with one for less than a set
// it holds nothing.
func newCache(l *layout, budget int) *cache {
	sets := max(budget, 0) / (cacheWays * l.rowBytes)
	n := sets * cacheWays
	return &cache{bytes: l.rowBytes, keys: make([]uint64, n), used: make([]bool, n), hands: make([]uint8, sets), rows: make([]byte, n*l.rowBytes)}
}

// home returns a row's key, and the first slot of its set.
func (c *cache) home(shard int, n uint32) (key uint64, at int) {
	key = uint64(shard)<<32 | uint64(n)
	set, _ := bits.Mul64(spread(key), uint64(len(c.hands)))
	return key + 1, int(set) * cacheWays
}

func (c *cache) find(shard int, n uint32) int {
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

// row implements view.
func (c *cache) row(shard int, n uint32) row {
	i := c.find(shard, n)
	if i < 0 {
		c.misses++
		return nil
	}
	c.hits++
	c.used[i] = true
	return row(c.rows[i*c.bytes:][:c.bytes:c.bytes])
}

// put remembers a valid row.
func (c *cache) put(shard int, n uint32, r row) {
	if len(c.hands) == 0 {
		return
	}
	i := c.find(shard, n)
	if i < 0 {
		i = c.room(shard, n)
	}
	copy(c.rows[i*c.bytes:][:c.bytes], r)
}

// room makes a slot the row's. The hand goes round once at most until it comes to one that is not
// used.
func (c *cache) room(shard int, n uint32) int {
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
