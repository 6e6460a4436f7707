// Package locations is the cache that clients keep of where keys lie: one for all stores, with a
// budget in bytes and an approximation of LFU (least frequently used), as the papers' clients have
// (FUSEE 4.6; SWARM 5.3, 7.1).
//
// A key belongs to a set of eight entries, by its hash. A new key always gets an entry, that of the
// key of its set with the lowest count, and so a store always has where to put what it just learnt.
// Counts outlive their entries: a set remembers, in 64 counters that its absent keys share, how
// often these were used, and a key that comes back goes on from there. So a popular key stays after
// two or three misses, while those that come once take turns at one entry. What was popular is
// forgotten by halving all counts of a set after so many misses in it: while there are none,
// nothing has to go. There is no randomness and no clock: the same calls leave the same cache.
//
// With Zipf's distribution, 0.99, over a million keys, after 2 million accesses, 14.6 % of accesses
// miss 218,453 entries (5 MiB of 24 bytes) and 16.5 % miss 163,840 (32 bytes), where 11.7 and 13.6
// % are to all but the most popular keys. With YCSB's scrambled distribution, which is flatter,
// they are 41.4 and 45.1 %, and 37.8 and 41.4 %; SWARM's figure 6 has 42.5 and 45.6 %.
//
// The budget counts what a store says that an entry takes, as SWARM's evaluation does, which leaves
// out the policy. The memory is, for each entry, V, 8 bytes for its hash and count, and 5 bytes for
// what is remembered: see Bytes.
package locations

import (
	"math/bits"
	"unsafe"
)

// Cache maps keys, by 64-bit hashes, to a store's entries V. Keys whose hashes differ in their
// lowest four bits alone share an entry, so an entry is a hint, and its user has to verify the key.
// It is not safe for concurrent use, and allocates only when it is made.
type Cache[V any] struct {
	sets  []set[V]
	past  []past // of each set
	spare V      // what a cache without entries hands out
}

const (
	ways      = 8
	countBits = 4
	countMax  = 1<<countBits - 1 // SWARM's workloads miss no less often with 255
	nibbles   = ^uint64(0) / countMax
	agingTurn = 8 * ways // misses of a set between two halvings; with a quarter of it 0.5 % of accesses more miss
)

// set is what a hit touches.
type set[V any] [ways]entry[V]

// entry is a key with what the store knows of it, side by side, so that a search waits for memory
// once.
type entry[V any] struct {
	key   uint64 // a hash whose lowest bits are replaced by a count, from 1 on; 0 marks a free entry
	value V
}

// past is what only a miss touches.
type past struct {
	counts [4]uint64 // of keys that have no entry; countBits each
	misses uint64    // since counts were halved
}

// New makes a cache for budget bytes, of which an entry counts for entryBytes. With a budget for
// less than a set it holds nothing.
func New[V any](budget, entryBytes int) *Cache[V] {
	n := max(budget, 0) / (entryBytes * ways)
	return &Cache[V]{sets: make([]set[V], n), past: make([]past, n)}
}

// roomy is how many entries there are for a key, so that almost no set is full.
const roomy = 4

// Enough returns a budget for New, or less: what suffices for all keys that there can be. A worker
// of a small pool opens at once then: the default budgets take tens of MB each.
func Enough(budget, entryBytes int, keys uint64) int {
	return int(min(uint64(max(budget, 0)), roomy*keys*uint64(entryBytes)))
}

// Entries returns how many keys fit.
func (c *Cache[V]) Entries() int { return len(c.sets) * ways }

// Bytes returns the memory of the cache, all of it.
func (c *Cache[V]) Bytes() int {
	return len(c.sets) * int(unsafe.Sizeof(set[V]{})+unsafe.Sizeof(past{}))
}

// Find returns a key's entry, and counts that as a use of the key; nil if it has none. The entry is
// the caller's to change until the next Put or Drop.
func (c *Cache[V]) Find(hash uint64) *V {
	if len(c.sets) == 0 {
		return nil
	}
	s := &c.sets[c.home(hash)]
	i := s.find(hash)
	if i < 0 {
		return nil
	}
	if s[i].key&countMax < countMax {
		s[i].key++
	}
	return &s[i].value
}

// Put returns a key's entry, for the caller to fill: as it was if the key had one, else zero, and
// maybe in the place of another key's. It is never nil: what is put into a cache that holds nothing
// is lost by the next Put.
func (c *Cache[V]) Put(hash uint64) *V {
	var zero V
	if len(c.sets) == 0 {
		c.spare = zero
		return &c.spare
	}
	home := c.home(hash)
	s, p := &c.sets[home], &c.past[home]
	if i := s.find(hash); i >= 0 {
		return &s[i].value
	}
	if p.misses++; p.misses == agingTurn {
		s.halve()
		p.halve()
	}
	i := s.least(hash)
	p.remember(s[i].key)
	s[i].key = hash&^countMax | min(p.count(hash)+1, countMax)
	s[i].value = zero
	return &s[i].value
}

// Drop forgets a key's entry, but not how often it was used.
func (c *Cache[V]) Drop(hash uint64) {
	if len(c.sets) == 0 {
		return
	}
	home := c.home(hash)
	s := &c.sets[home]
	if i := s.find(hash); i >= 0 {
		c.past[home].remember(s[i].key)
		s[i].key = 0
	}
}

// home returns the number of a key's set: by the highest bits of the hash, since the lowest are not
// kept.
func (c *Cache[V]) home(hash uint64) uint64 {
	n, _ := bits.Mul64(hash, uint64(len(c.sets)))
	return n
}

func (s *set[V]) find(hash uint64) int {
	for n := range uint64(ways) {
		i := (hash>>countBits + n) % ways
		if k := s[i].key; (k^hash)>>countBits == 0 && k != 0 {
			return int(i)
		}
	}
	return -1
}

// least returns a free entry, or one that was used least: the first from where find begins.
func (s *set[V]) least(hash uint64) uint64 {
	least := hash >> countBits % ways
	for n := range uint64(ways) {
		i := (hash>>countBits + n) % ways
		if s[i].key&countMax < s[least].key&countMax {
			least = i
		}
	}
	return least
}

// halve leaves keys a count of 1: 0 would be a free entry.
func (s *set[V]) halve() {
	for i := range s {
		if n := s[i].key & countMax; n > 1 {
			s[i].key -= n - n/2
		}
	}
}

// remember keeps the count of a key that leaves its set.
func (p *past) remember(key uint64) {
	if n := p.count(key); key&countMax > n {
		word, shift := counter(key)
		p.counts[word] += (key&countMax - n) << shift
	}
}

// count returns how often an absent key was used, or another that shares its counter.
func (p *past) count(hash uint64) uint64 {
	word, shift := counter(hash)
	return p.counts[word] >> shift & countMax
}

func (p *past) halve() {
	for i, w := range p.counts {
		p.counts[i] = w >> 1 &^ (nibbles << (countBits - 1))
	}
	p.misses = 0
}

// counter picks a counter by bits of a hash that keys keep.
func counter(hash uint64) (word, shift uint64) {
	return hash >> countBits & 3, hash >> (countBits + 2) & 15 * countBits
}
