package index

import (
	"fmt"
	"math/bits"
	"slices"
)

const (
	// addrBits is how long an address is: an entry's offset in its node's memory, in bytes, as
	// rdma.Addr has it, so that a verb takes it as it is. In strides of 64 bytes it would be
	// shorter, to no use: no longer tag is needed.
	addrBits = 48
	maxAddr  = 1<<addrBits - 1
	// load is how many items a bucket has on average when there are as many as expected.
	load = 5
	// stripes are the locks of an index. A worker is in it for a small part of its time, so that of
	// dozens of workers few find a lock taken.
	stripes = 64
)

// Index is the items of a shard. It is safe for concurrent use. Locks are held over some memory
// accesses, and over no wait.
type Index struct {
	chains  []bucket // the first of each
	stripes [stripes]stripe
}

// New returns an index for as many items as expected. It takes any number, in longer chains.
func New(expected int) *Index {
	return &Index{chains: make([]bucket, max(1, (expected+load-1)/load))}
}

// Lookup appends to found the addresses of all entries with keys that may have the hash. Nearly
// always that is one entry if the key has an item, and none otherwise.
func (x *Index) Lookup(hash uint64, found []uint64) []uint64 {
	chain, tag := x.place(hash)
	s, b := x.lock(chain)
	defer s.mu.Unlock()
	for ; b != nil; b = s.behind(b) {
		for _, item := range &b.items {
			if item&^maxAddr == tag && item != 0 {
				found = append(found, item&maxAddr)
			}
		}
	}
	return found
}

// Insert adds an item for the entry at an address, and reports whether it did. It does not if the
// chain has an item that may be of a key with this hash, at an address that is not among seen. The
// addresses in seen are those of other keys.
func (x *Index) Insert(hash, at uint64, seen []uint64) bool {
	chain, tag := x.place(hash)
	check(at)
	s, first := x.lock(chain)
	defer s.mu.Unlock()
	for b := first; b != nil; b = s.behind(b) {
		for _, item := range &b.items {
			if item&^maxAddr == tag && item != 0 && !slices.Contains(seen, item&maxAddr) {
				return false
			}
		}
	}
	s.add(first, tag|at)
	return true
}

// Replace has the item of the entry at old name the one at an address instead, and reports whether
// it did: not if there is none, since the key has a newer entry, its entry was moved, or its
// tombstone was removed. It is for newer entries of the key, and for copies of the same one.
func (x *Index) Replace(hash, old, at uint64) bool {
	chain, tag := x.place(hash)
	check(old)
	check(at)
	s, first := x.lock(chain)
	defer s.mu.Unlock()
	item := s.find(first, tag|old)
	if item != nil {
		*item = tag | at
	}
	return item != nil
}

// Remove removes the item of the entry at old, a tombstone, and reports whether it did: see
// Replace.
func (x *Index) Remove(hash, old uint64) bool {
	chain, tag := x.place(hash)
	check(old)
	s, first := x.lock(chain)
	defer s.mu.Unlock()
	item := s.find(first, tag|old)
	if item != nil {
		s.remove(first, item)
	}
	return item != nil
}

// Drop removes the item of the entry at an address from a chain, below Chains, whatever its key is,
// and reports whether it did.
func (x *Index) Drop(chain int, at uint64) bool {
	s, first := x.lock(chain)
	defer s.mu.Unlock()
	for b := first; b != nil; b = s.behind(b) {
		for i, item := range &b.items {
			if item != 0 && item&maxAddr == at {
				s.remove(first, &b.items[i])
				return true
			}
		}
	}
	return false
}

// Chains returns how many chains there are.
func (x *Index) Chains() int { return len(x.chains) }

// Chain appends to all the addresses of the entries that a chain names at one instant, below
// Chains.
func (x *Index) Chain(chain int, all []uint64) []uint64 {
	s, b := x.lock(chain)
	defer s.mu.Unlock()
	for ; b != nil; b = s.behind(b) {
		for _, item := range &b.items {
			if item != 0 {
				all = append(all, item&maxAddr)
			}
		}
	}
	return all
}

// Len returns how many items there are.
func (x *Index) Len() (items int) {
	for i := range x.stripes {
		s := &x.stripes[i]
		s.mu.Lock()
		items += s.items
		s.mu.Unlock()
	}
	return items
}

// Bytes returns how much memory the index has.
func (x *Index) Bytes() int {
	lines := len(x.chains) + stripes
	for i := range x.stripes {
		s := &x.stripes[i]
		s.mu.Lock()
		lines += cap(s.chained)
		s.mu.Unlock()
	}
	return lines * lineBytes
}

// place returns the chain of a hash, and its tag, where items have it. Hashes of a shard, and of a
// worker, have bits in common, by which they were chosen; so the bits are mixed.
func (x *Index) place(hash uint64) (chain int, tag uint64) {
	high, low := bits.Mul64(hash^0x9e3779b97f4a7c15, 0xd6e8feb86659fd93)
	mixed := high ^ low
	n, _ := bits.Mul64(mixed, uint64(len(x.chains))) // by the upper bits
	return int(n), mixed << addrBits
}

// lock locks the stripe of a chain, and returns it and the first bucket.
func (x *Index) lock(chain int) (*stripe, *bucket) {
	s := &x.stripes[uint(chain)%stripes]
	s.mu.Lock()
	return s, &x.chains[chain]
}

func check(at uint64) {
	if at == 0 || at > maxAddr {
		panic(fmt.Sprintf("index: no entry can be at %#x: an address is above 0 and has %d bits", at, addrBits))
	}
}
