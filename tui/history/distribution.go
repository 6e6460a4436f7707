package history

import (
	"math"
	"math/bits"
	"slices"
	"sort"
	"time"

	"github.com/farkv/farkv/node/telemetry"
)

// A Distribution is a histogram of durations as a sorted list of the buckets that counted anything:
// 64 for each doubling, so that a duration is known within 1 %. It takes 8 bytes a bucket where
// telemetry.Histogram takes 34 KiB, and does not change once it is made. nil is an empty one.
type Distribution []bin

type bin struct {
	key uint16 // the exponent, then 6 bits
	n   uint32
}

const subBits = 6

func keyOf(d time.Duration) uint16 {
	v := uint64(max(d, 0))
	if v < 1<<subBits {
		return uint16(v)
	}
	e := bits.Len64(v) - 1 - subBits
	return uint16((e+1)<<subBits + int(v>>e) - 1<<subBits)
}

// value returns the middle of a bucket.
func (b bin) value() time.Duration {
	e, sub := int(b.key>>subBits)-1, int64(b.key&(1<<subBits-1))
	if e < 0 {
		return time.Duration(sub)
	}
	from := (sub + 1<<subBits) << e
	return time.Duration(from + (1<<e-1)/2)
}

// distributionSince returns what h counted since before, which may be nil. It uses the room of d.
func distributionSince(h, before *telemetry.Histogram, d Distribution) Distribution {
	h.Since(before, func(from, to time.Duration, n uint64) bool {
		key := keyOf(from + (to-from)/2)
		if last := len(d) - 1; last >= 0 && d[last].key == key {
			d[last].n = add32(d[last].n, n)
		} else {
			d = append(d, bin{key, add32(0, n)})
		}
		return true
	})
	return d
}

// add32 adds, and stops at what 32 bits hold.
func add32(a uint32, b uint64) uint32 {
	return uint32(min(uint64(a)+min(b, math.MaxUint32), math.MaxUint32))
}

// Merge returns the sum of distributions.
func Merge(all ...Distribution) Distribution {
	var some []Distribution
	for _, d := range all {
		if len(d) > 0 {
			some = append(some, d)
		}
	}
	switch len(some) {
	case 0:
		return nil
	case 1:
		return some[0]
	case 2:
		return merge(some[0], some[1])
	}
	var sums [64 << subBits]uint64
	n := 0
	for _, d := range some {
		for _, b := range d {
			if sums[b.key] == 0 {
				n++
			}
			sums[b.key] += uint64(b.n)
		}
	}
	sum := make(Distribution, 0, n)
	for key, n := range sums {
		if n > 0 {
			sum = append(sum, bin{uint16(key), add32(0, n)})
		}
	}
	return sum
}

func merge(a, b Distribution) Distribution {
	sum := make(Distribution, 0, len(a)+len(b))
	for len(a) > 0 && len(b) > 0 {
		switch {
		case a[0].key < b[0].key:
			sum, a = append(sum, a[0]), a[1:]
		case a[0].key > b[0].key:
			sum, b = append(sum, b[0]), b[1:]
		default:
			sum = append(sum, bin{a[0].key, add32(a[0].n, uint64(b[0].n))})
			a, b = a[1:], b[1:]
		}
	}
	return slices.Clone(append(append(sum, a...), b...))
}

// Count returns how many durations there are.
func (d Distribution) Count() (n uint64) {
	for _, b := range d {
		n += uint64(b.n)
	}
	return n
}

// Max returns the longest duration, within 1 %; 0 of none.
func (d Distribution) Max() time.Duration {
	if len(d) == 0 {
		return 0
	}
	return d[len(d)-1].value()
}

// Percentile returns a duration that p percent of those counted do not exceed, within 1 %; 0 of
// none.
func (d Distribution) Percentile(p float64) time.Duration {
	rank, seen := max(uint64(p/100*float64(d.Count())+0.5), 1), uint64(0)
	for _, b := range d {
		if seen += uint64(b.n); seen >= rank {
			return b.value()
		}
	}
	return 0
}

// Below returns the fraction of durations that are at most t; 0 of none.
func (d Distribution) Below(t time.Duration) float64 {
	n := d.Count()
	if n == 0 {
		return 0
	}
	key := keyOf(t)
	return float64(d[:sort.Search(len(d), func(i int) bool { return d[i].key > key })].Count()) / float64(n)
}

// CDF yields the durations and the fraction of all that are at most as long, in ascending order.
func (d Distribution) CDF(yield func(t time.Duration, fraction float64) bool) {
	n, seen := float64(d.Count()), uint64(0)
	for _, b := range d {
		seen += uint64(b.n)
		if !yield(b.value(), float64(seen)/n) {
			return
		}
	}
}
