package telemetry

import (
	"encoding/json"
	"fmt"
	"math/bits"
	"time"
)

// A Histogram counts durations from 1 ns to 18 minutes with a relative error below 1 %: exactly
// below 256 ns, then in 128 buckets for each doubling. Recording is a few instructions and
// allocates nothing. It is not safe for concurrent use; each worker has its own and they are
// merged. The zero value is empty.
type Histogram struct {
	counts   [buckets]uint64
	n        uint64
	sum      float64
	min, max time.Duration
}

const (
	subBits = 7            // 128 buckets for each doubling
	subs    = 1 << subBits // and for what is below 2^8 ns, one a nanosecond
	topBits = 40           // durations of 2^40 ns and more share the last bucket
	buckets = (topBits - subBits + 1) * subs
)

// bucket returns the bucket of d: its exponent above subBits, then its next subBits bits.
func bucket(d time.Duration) int {
	v := uint64(max(d, 0))
	if v < subs {
		return int(v)
	}
	e := bits.Len64(v) - 1 - subBits
	if e >= topBits-subBits {
		return buckets - 1
	}
	return (e+1)*subs + int(v>>e) - subs
}

// bounds returns the least duration of bucket i and that of the next one.
func bounds(i int) (from, to time.Duration) {
	e := i/subs - 1
	if e < 0 {
		return time.Duration(i), time.Duration(i + 1)
	}
	v := int64(i%subs + subs)
	return time.Duration(v << e), time.Duration((v + 1) << e)
}

// span returns the buckets that may have counted anything: those from the first one to the one
// before end.
func (h *Histogram) span() (first, end int) {
	if h.n == 0 {
		return 0, 0
	}
	return bucket(h.min), bucket(h.max) + 1
}

// Record counts d.
func (h *Histogram) Record(d time.Duration) { h.RecordN(d, 1) }

// RecordN counts d n times: it stands for durations that were not measured.
func (h *Histogram) RecordN(d time.Duration, n uint64) {
	h.counts[bucket(d)] += n
	if h.n == 0 || d < h.min {
		h.min = d
	}
	h.max = max(h.max, d)
	h.n += n
	h.sum += float64(d) * float64(n)
}

// Reset forgets all durations.
func (h *Histogram) Reset() {
	first, end := h.span()
	clear(h.counts[first:end])
	h.n, h.sum, h.min, h.max = 0, 0, 0, 0
}

// Merge adds what o counted.
func (h *Histogram) Merge(o *Histogram) {
	if o.n == 0 {
		return
	}
	if h.n == 0 || o.min < h.min {
		h.min = o.min
	}
	h.max = max(h.max, o.max)
	h.n += o.n
	h.sum += o.sum
	first, end := o.span()
	for i := first; i < end; i++ {
		h.counts[i] += o.counts[i]
	}
}

// Count returns how many durations were recorded.
func (h *Histogram) Count() uint64 { return h.n }

// Min and Max are exact.
func (h *Histogram) Min() time.Duration { return h.min }

// Max returns the longest duration recorded.
func (h *Histogram) Max() time.Duration { return h.max }

// Mean returns the mean of what was recorded, in nanoseconds, and 0 of nothing.
func (h *Histogram) Mean() float64 {
	if h.n == 0 {
		return 0
	}
	return h.sum / float64(h.n)
}

// Percentile returns a duration that p percent of those recorded do not exceed, within 1 %.
func (h *Histogram) Percentile(p float64) time.Duration {
	if h.n == 0 {
		return 0
	}
	rank := max(uint64(float64(p/100*float64(h.n))+0.5), 1)
	seen := uint64(0)
	first, end := h.span()
	for i := first; i < end; i++ {
		seen += h.counts[i]
		if seen >= rank {
			from, to := bounds(i)
			return min(max((from+to-1)/2, h.min), h.max)
		}
	}
	return h.max
}

// Buckets yields the buckets that counted anything, in ascending order: durations of at least from
// and less than to.
func (h *Histogram) Buckets(yield func(from, to time.Duration, n uint64) bool) { h.Since(nil, yield) }

// Since is Buckets of what h counted since before, an earlier state of the same histogram; nil: an
// empty one.
func (h *Histogram) Since(before *Histogram, yield func(from, to time.Duration, n uint64) bool) {
	first, end := h.span()
	for i := first; i < end; i++ {
		n := h.counts[i]
		if before != nil {
			n -= min(before.counts[i], n)
		}
		if n > 0 {
			if from, to := bounds(i); !yield(from, to, n) {
				return
			}
		}
	}
}

// Sub returns what h counted since before, an earlier state of the same histogram. Min and Max are
// those of the buckets, within 1 %.
func (h *Histogram) Sub(before *Histogram) *Histogram {
	d := new(Histogram)
	h.Since(before, func(from, _ time.Duration, n uint64) bool {
		d.add(bucket(from), n)
		return true
	})
	d.sum = max(h.sum-before.sum, 0)
	return d
}

// add counts n durations of bucket i, as if they lay in its middle.
func (h *Histogram) add(i int, n uint64) {
	from, to := bounds(i)
	if h.n == 0 || from < h.min {
		h.min = from
	}
	h.max = max(h.max, to-1)
	h.n += n
	h.sum += float64(n) * float64(from+to-1) / 2
	h.counts[i] += n
}

// sparse is a Histogram as JSON: pairs of a bucket's number and its count.
type sparse struct {
	Sum     float64     `json:"sum"`
	Buckets [][2]uint64 `json:"buckets"`
}

// MarshalJSON writes the buckets that counted anything.
func (h *Histogram) MarshalJSON() ([]byte, error) {
	s := sparse{Sum: h.sum, Buckets: [][2]uint64{}}
	h.merged(0, func(i int, n uint64) { s.Buckets = append(s.Buckets, [2]uint64{uint64(i), n}) })
	return json.Marshal(s)
}

// UnmarshalJSON reads what MarshalJSON wrote. Min and Max become those of the buckets.
func (h *Histogram) UnmarshalJSON(p []byte) error {
	var s sparse
	if err := json.Unmarshal(p, &s); err != nil {
		return err
	}
	*h = Histogram{}
	for _, b := range s.Buckets {
		if b[0] >= buckets {
			return fmt.Errorf("read histogram: bucket %d of %d", b[0], buckets)
		}
		h.add(int(b[0]), b[1])
	}
	h.sum = s.Sum
	return nil
}
