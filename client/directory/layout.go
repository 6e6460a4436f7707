package directory

import (
	"errors"
	"fmt"
	"math"
	"math/bits"

	"github.com/farkv/farkv/client/quorum"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// Shape is what a directory is made for.
type Shape struct {
	// Nodes are the memory nodes of the pool.
	Nodes int
	// Replicas: 2f+1 nodes have each bucket, and f of them may die: 1, 3, 5 or 7.
	Replicas int
	// Buckets: see Size.
	Buckets uint64
	// Base is the offset at which the directory begins on each node: a multiple of 8.
	Base uint64
}

// ErrShape is wrapped by errors about a shape of a directory that is not possible.
var ErrShape = errors.New("no such shape of a directory")

// Layout says where buckets lie. Buckets with their replicas on the same nodes are a section. At
// its first replica a bucket is its word, and behind that the value in place; at the others it is
// its word. All is zero when a pool is made: that is an empty bucket.
type Layout struct {
	Shape
	// per is how many buckets a section has.
	per uint64
	// at has the addresses at which each section's replicas begin.
	at [][]rdma.Addr
	// bytes is the size on the fullest node.
	bytes uint64
}

const (
	wordBytes = 8
	// slotBytes is the size of a bucket at its first replica.
	slotBytes = wordBytes + BufferBytes
	// sectionsPerNode is so high that nodes differ by a few percent in what they hold.
	sectionsPerNode = 32
	maxBuckets      = 1 << 36
	// expectedOverflow bounds the expected number of buckets that are too full: see Size.
	expectedOverflow = 1e-3
)

// NewLayout returns the layout of a directory, which is the same for all clients, or an error
// wrapping ErrShape.
func NewLayout(s Shape) (*Layout, error) {
	switch {
	case s.Replicas < 1 || s.Replicas > quorum.MaxReplicas || s.Replicas%2 == 0:
		return nil, fmt.Errorf("%d replicas (1, 3, 5 or 7): %w", s.Replicas, ErrShape)
	case s.Nodes < s.Replicas || s.Nodes > rdma.MaxNodes:
		return nil, fmt.Errorf("%d replicas on %d nodes (at most one on each): %w", s.Replicas, s.Nodes, ErrShape)
	case s.Buckets < 1 || s.Buckets > maxBuckets:
		return nil, fmt.Errorf("%d buckets (1 to %d): %w", s.Buckets, uint64(maxBuckets), ErrShape)
	case s.Base%wordBytes != 0 || s.Base > rdma.MaxOffset/2:
		return nil, fmt.Errorf("begins at byte %d (a multiple of %d): %w", s.Base, wordBytes, ErrShape)
	}
	l := &Layout{Shape: s}
	sections := min(s.Buckets, sectionsPerNode*uint64(s.Nodes))
	l.per = (s.Buckets + sections - 1) / sections
	sections = (s.Buckets + l.per - 1) / l.per
	ends := make([]uint64, s.Nodes)
	for n := range ends {
		ends[n] = s.Base
	}
	for _, places := range node.Place(int(sections), s.Replicas, s.Nodes, int(sections)) {
		at := make([]rdma.Addr, s.Replicas)
		for r, p := range places {
			at[r] = rdma.At(p.Node, ends[p.Node])
			ends[p.Node] += l.per * stride(r)
			l.bytes = max(l.bytes, ends[p.Node]-s.Base)
		}
		l.at = append(l.at, at)
	}
	return l, nil
}

// stride returns the size of a bucket at a replica.
func stride(replica int) uint64 {
	if replica == 0 {
		return slotBytes
	}
	return wordBytes
}

// Bytes returns how much memory the directory takes on each node, from its base on. It does not
// include buffers: each replica of a bucket needs one, and clients own some.
func (l *Layout) Bytes() uint64 { return l.bytes }

// BucketOf returns the bucket in which entries of a hash lie.
func (l *Layout) BucketOf(hash uint64) uint64 {
	bucket, _ := bits.Mul64(hash, l.Buckets)
	return bucket
}

// place fills in where the replicas of a bucket lie.
func (l *Layout) place(bucket uint64, at []rdma.Addr) {
	n := bucket % l.per
	for r, a := range l.at[bucket/l.per] {
		at[r] = a.Add(n * stride(r))
	}
}

// Size returns how many buckets are needed for so many records with random hashes, such that the
// expected number of buckets with more than Slots entries is below expectedOverflow.
func Size(records uint64) (buckets uint64) {
	enough := func(n uint64) bool {
		return float64(n)*overflow(float64(records)/float64(n)) < expectedOverflow
	}
	high := uint64(1)
	for !enough(high) {
		high *= 2
	}
	low := high / 2 // not enough, or 0
	for high-low > 1 {
		if middle := low + (high-low)/2; enough(middle) {
			high = middle
		} else {
			low = middle
		}
	}
	return high
}

// overflow returns the probability that a bucket has more than Slots entries, by Poisson's
// distribution. The sum is over 64 terms beyond Slots: they fall by a factor of mean/k, so those
// behind are negligible.
func overflow(mean float64) (p float64) {
	if mean > Slots {
		return 1
	}
	term := math.Exp(-mean)
	for k := 1; k <= Slots+64; k++ {
		term *= mean / float64(k)
		if k > Slots {
			p += term
		}
	}
	return p
}

// Sections returns the addresses at which the replicas of each section begin. The caller must not
// change them.
func (l *Layout) Sections() [][]rdma.Addr { return l.at }

// Describe says what lies at an address of the directory; "": nothing.
func (l *Layout) Describe(a rdma.Addr) string {
	for section, replicas := range l.at {
		for r, at := range replicas {
			if at.Node() != a.Node() || a.Offset() < at.Offset() || a.Offset() >= at.Offset()+l.per*stride(r) {
				continue
			}
			in := a.Offset() - at.Offset()
			bucket := fmt.Sprintf("bucket %d, replica %d", uint64(section)*l.per+in/stride(r), r)
			if in%stride(r) < wordBytes {
				return bucket
			}
			return "value in place of " + bucket
		}
	}
	return ""
}
