package index

import "sync"

const (
	lineBytes = 64
	perBucket = 7
)

// bucket is a cache line of a chain. Of a chain's buckets all are full but the second, which has
// one item at least, or the first, if it is the only one: there items are added and removed.
type bucket struct {
	items [perBucket]uint64 // tag and address, the first ones; 0 behind them
	next  uint64            // in the stripe's chained, plus one; 0: the last
}

// size returns how many items a bucket has.
func (b *bucket) size() int {
	n := perBucket
	for n > 0 && b.items[n-1] == 0 {
		n--
	}
	return n
}

// stripe is what some chains share: a lock, and the buckets behind their first ones. These hold no
// pointers, so that Go's collector does not look at them. They are never given back, but used again
// by any of the chains: there are as many as were needed at a time, and what append adds.
type stripe struct {
	mu      sync.Mutex
	chained []bucket
	free    uint64 // the first of those in no chain, like bucket.next
	items   int
	_       [lineBytes - 48]byte // a lock's cache line is no other lock's
}

// behind returns the next bucket of a chain, nil at its end. Add may move it.
func (s *stripe) behind(b *bucket) *bucket {
	if b.next == 0 {
		return nil
	}
	return &s.chained[b.next-1]
}

// find returns an item's place in the chain that begins with b; nil: it is not in it.
func (s *stripe) find(b *bucket, item uint64) *uint64 {
	for ; b != nil; b = s.behind(b) {
		for i := range b.items {
			if b.items[i] == item {
				return &b.items[i]
			}
		}
	}
	return nil
}

// open returns the bucket of a chain that need not be full.
func (s *stripe) open(first *bucket) *bucket {
	if first.next == 0 {
		return first
	}
	return s.behind(first)
}

// add adds an item to a chain.
func (s *stripe) add(first *bucket, item uint64) {
	b := s.open(first)
	if b.size() == perBucket {
		n := s.take()
		b = &s.chained[n-1]
		b.next, first.next = first.next, n
	}
	b.items[b.size()] = item
	s.items++
}

// remove removes an item from its place in a chain. Another one comes to lie there.
func (s *stripe) remove(first *bucket, item *uint64) {
	b := s.open(first)
	last := b.size() - 1
	*item = b.items[last]
	b.items[last] = 0
	if last == 0 && b != first {
		n := first.next
		first.next = b.next
		b.next, s.free = s.free, n
	}
	s.items--
}

// take returns an empty bucket that is in no chain, like bucket.next.
func (s *stripe) take() uint64 {
	if s.free == 0 {
		s.chained = append(s.chained, bucket{})
		return uint64(len(s.chained))
	}
	n := s.free
	s.free = s.chained[n-1].next
	return n
}
