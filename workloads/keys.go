package workloads

import (
	"encoding/binary"
	"math/rand/v2"
	"strconv"
)

// chooser picks the numbers of the records that one worker reads and updates. It belongs to that
// worker.
type chooser interface {
	next(r *rand.Rand) int64
}

// chooser returns what worker i of n picks records with. Each one picks only records that are
// there: loaded, or inserted by this run and acknowledged.
func (c *Core) chooser(i, n int) chooser {
	first, items := c.InsertStart, c.InsertCount
	switch c.RequestDistribution {
	case "zipfian":
		return &scrambledKeys{Scrambled: c.scrambled, added: c.added}
	case "latest":
		return &latestKeys{zipf: c.latest, first: first, added: c.added}
	case "sequential":
		return &sequentialKeys{first: first, items: items, at: int64(i), step: int64(n)}
	case "hotspot":
		hot := int64(float64(items) * c.HotspotData)
		return &hotspotKeys{first: first, items: items, hot: hot, share: c.HotspotOps}
	case "exponential":
		gamma := -logarithm(1-c.ExponentialPercentile/100) / (float64(c.RecordCount) * c.ExponentialFrac)
		return &exponentialKeys{gamma: gamma, first: first, added: c.added}
	default:
		return &uniformKeys{first: first, items: items}
	}
}

type uniformKeys struct{ first, items int64 }

func (k *uniformKeys) next(r *rand.Rand) int64 { return k.first + r.Int64N(k.items) }

// sequentialKeys walks round the records; the workers take turns, so that together they visit them
// in order.
type sequentialKeys struct{ first, items, at, step int64 }

func (k *sequentialKeys) next(*rand.Rand) int64 {
	n := k.first + k.at%k.items
	k.at += k.step
	return n
}

type hotspotKeys struct {
	first, items, hot int64
	share             float64 // of the operations, on the hot records
}

func (k *hotspotKeys) next(r *rand.Rand) int64 {
	hot := r.Float64() < k.share
	if k.hot == 0 || k.hot == k.items {
		return k.first + r.Int64N(k.items)
	}
	if hot {
		return k.first + r.Int64N(k.hot)
	}
	return k.first + k.hot + r.Int64N(k.items-k.hot)
}

// exponentialKeys favours what was inserted last. It draws from the distribution that YCSB's
// redrawing leaves, the one cut off at the first record, without redrawing.
type exponentialKeys struct {
	gamma float64
	first int64
	added *Acknowledged
}

func (k *exponentialKeys) next(r *rand.Rand) int64 {
	last := k.added.Last()
	there := 1 - exponential(float64(-k.gamma*float64(last-k.first+1)))
	back := -logarithm1p(float64(-r.Float64()*there)) / k.gamma
	return max(last-int64(back), k.first)
}

// latestKeys is zipfian by age: the record inserted last is the most popular. Its zipfian grows
// with the records.
type latestKeys struct {
	zipf  Zipfian
	first int64
	added *Acknowledged
}

func (k *latestKeys) next(r *rand.Rand) int64 {
	last := k.added.Last()
	k.zipf.Grow(last - k.first + 1)
	return last - k.zipf.Next(r)
}

// redraws bounds how often scrambledKeys draws a record that is not there yet.
const redraws = 128

// scrambledKeys spreads over the loaded records and those that the run is expected to insert, as
// YCSB does, so that the popular ones stay the same while it inserts; what is not there yet is
// drawn again.
type scrambledKeys struct {
	Scrambled
	added *Acknowledged
}

func (k *scrambledKeys) next(r *rand.Rand) int64 {
	last := k.added.Last()
	n := k.zipf.Next(r)
	for range redraws {
		if key := k.fold(n, k.Items); key <= last {
			return key
		}
		n = k.zipf.Next(r)
	}
	return k.fold(n, last-k.First+1)
}

// The lengths of Spec.ShortKeys, in bytes.
const (
	NumberBytes = 4
	HashBytes   = 8
)

// appendKey appends the name of record n, as go-ycsb builds it.
func (s *Spec) appendKey(b []byte, n int64) []byte {
	switch s.ShortKeys {
	case NumberBytes:
		return binary.LittleEndian.AppendUint32(b, uint32(n))
	case HashBytes:
		return binary.LittleEndian.AppendUint64(b, hashKey(n)) // its last bytes first: they differ most
	}
	if s.sized() {
		return s.appendSized(b, n)
	}
	h := uint64(n)
	if !s.Ordered {
		h = hashKey(n)
	}
	b = append(b, s.KeyPrefix...)
	var digits [20]byte
	d := strconv.AppendUint(digits[:0], h, 10)
	for range s.ZeroPadding - len(d) {
		b = append(b, '0')
	}
	return append(b, d...)
}

// Key returns the name of record n.
func (s *Spec) Key(n int64) []byte { return s.appendKey(nil, n) }
