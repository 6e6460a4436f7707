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
	Nodes    int    // memory nodes of the pool
	Replicas int    // 2f+1 of them have each bucket, and f may die: 1, 3, 5 or 7
	Buckets  uint64 // see Size
	Base     uint64 // where it begins on each node, in bytes; a multiple of 8
}

// ErrShape ends an attempt to lay out a directory of a shape that cannot be.
var ErrShape = errors.New("no such shape of a directory")

// Layout tells where buckets lie. Buckets that have their replicas on the same nodes are a section.
// A bucket is, at its first replica, its word and behind that what lies in place; at the others it
// is its word. All is zero when a pool is made.
type Layout struct {
	Shape
	per   uint64        // buckets of a section
	at    [][]rdma.Addr // of each section's replicas
	bytes uint64
}

const (
	wordBytes        = 8
	slotBytes        = wordBytes + BufferBytes // at the first replica
	sectionsPerNode  = 32                      // enough that nodes differ by a few percent
	maxBuckets       = 1 << 36
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

func stride(replica int) uint64 {
	if replica == 0 {
		return slotBytes
	}
	return wordBytes
}

// Bytes returns how much memory the directory takes on each node, from its base on. Buffers are not
// in it: each replica of a bucket has one, and clients have some.
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

// Size returns how many buckets it takes that, of so many records with hashes at random, the number
// of buckets which have more than their Slots is expected to be below one in a thousand.
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

// overflow is the tail of Poisson's distribution: how likely a bucket has more than Slots entries.
func overflow(mean float64) (p float64) {
	if mean > Slots {
		return 1
	}
	term := math.Exp(-mean)
	for k := 1; k <= Slots+64; k++ { // terms fall by a factor of mean/k: those behind are nothing
		term *= mean / float64(k)
		if k > Slots {
			p += term
		}
	}
	return p
}

// Sections returns where the replicas of each section begin: of buckets that have their replicas on
// the same nodes.
func (l *Layout) Sections() [][]rdma.Addr { return l.at }

// Describe tells what lies at an address of the directory; "": nothing.
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
