package workloads

import "math"

// objectSizes are lengths of keys and values in bytes.
type objectSizes struct{ keyMean, keyDeviation, valueMean, valueDeviation float64 }

// sizesOf has the objects of Facebook's stores: means and standard deviations of the pairs in Z.
// Cao, S. Dong, S. Vemuri and D. Du, "Characterizing, Modeling, and Benchmarking RocksDB Key-Value
// Workloads at Facebook" (FAST 2020), Table 2. Rowan-KV (section 6) has its objects from there:
// 90.8, 57.25 and 153.8 bytes on average.
//
// That paper models the sizes of values by generalized Pareto distributions. The rest is assumed
// here:
//   - Values of all three have one shape, paretoShape. Scale and place follow from the mean and the
//     deviation that the table gives. The longest of 1,024 values is left out (paretoCut), before
//     scale and place are chosen, as stores with slots have room for the longest in each. The
//     longest that remain have 317, 168 and 359 bytes in ZippyDB, UP2X and UDB, the shortest 23, 38
//     and 110.
//   - Lengths of keys are normal, cut at keySpread deviations and at keyDigits bytes.
//   - Lengths of keys and of values are independent.
var sizesOf = map[string]objectSizes{
	"zippydb": {47.9, 3.7, 42.9, 26.1},
	"up2x":    {10.45, 1.4, 46.8, 11.6},
	"udb":     {27.1, 2.6, 126.7, 22.1},
}

const (
	paretoShape = 0.2615 // value_k of RocksDB's db_bench, which has it from the paper
	paretoCut   = 1. / 1024
	keySpread   = 4
	shareUnit   = 1 << 40 // of the weights of a histogram, so that their sum is far from an overflow
)

// keys returns the lengths of keys.
func (o objectSizes) keys() lengths {
	least := max(int(math.Ceil(o.keyMean-float64(keySpread*o.keyDeviation))), keyDigits)
	most := int(o.keyMean + float64(keySpread*o.keyDeviation))
	return histogramOf(least, most, func(n int) float64 {
		z := (float64(n) - o.keyMean) / o.keyDeviation
		return exponential(float64(z*z) / -2)
	})
}

// values returns the lengths of values: a + b/u^k for u even between paretoCut and 1, with a and b
// such that mean and deviation come out.
func (o objectSizes) values() lengths {
	const k = paretoShape
	// the mean of 1/u^k
	moment := func(k float64) float64 { return (1 - power(paretoCut, 1-k)) / (1 - k) / (1 - paretoCut) }
	mean := moment(k)
	b := o.valueDeviation / math.Sqrt(moment(2*k)-float64(mean*mean))
	a := o.valueMean - float64(b*mean)
	above := func(x float64) float64 { // the share of lengths above x
		return min(power(max((x-a)/b, 1), -1/k), 1)
	}
	return histogramOf(int(a+b), int(a+float64(b*power(paretoCut, -k))), func(n int) float64 {
		return above(float64(n)-0.5) - above(float64(n)+0.5)
	})
}

// histogramOf is the distribution of lengths from least to most with such weights, up to 1.
func histogramOf(least, most int, weight func(n int) float64) lengths {
	l := lengths{kind: "histogram", min: 1, max: most, blocks: make([]int64, most)}
	for n := least; n <= most; n++ {
		l.blocks[n-1] = l.blocks[max(n-2, 0)] + int64(shareUnit*weight(n))
	}
	return l
}

// least is the shortest length of a histogram.
func (l *lengths) least() int { return l.at(0) }

// sized reports whether s has ObjectSizes.
func (s *Spec) sized() bool { return s.keys.blocks != nil }

// keyDigits are the digits, of keyBits together, at the start of each key that ObjectSizes makes.
// They are the record's number, which keeps the keys apart however short they are.
const (
	keyDigits = 7
	keyBits   = 6 * keyDigits
)

// digits are those of numbers to the base 64, in the order of their bytes.
const digits = "-0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ_abcdefghijklmnopqrstuvwxyz"

// appendSized appends the name of record n: its number, or where keys are not ordered its image
// under a permutation of all numbers of keyBits, and digits without a meaning up to the key's
// length, which follows from n.
func (s *Spec) appendSized(b []byte, n int64) []byte {
	random := uint64(n)
	length := s.keys.of(mix(&random))
	number := uint64(n)
	if !s.Ordered {
		number *= 0x9e3779b97f4a7c15 // odd, and so without two records of one image
	}
	for shift := keyBits - 6; shift >= 0; shift -= 6 {
		b = append(b, digits[number>>shift&63])
	}
	for rest := length - keyDigits; rest > 0; {
		for x := mix(&random); rest > 0 && x > 0; x >>= 6 {
			b = append(b, digits[x&63])
			rest--
		}
	}
	return b
}

// ValueBytes is the length of a value that reads can check: it follows from the key.
func (s *Spec) ValueBytes(key []byte) int {
	if !s.sized() {
		return s.FieldLength
	}
	h := uint64(fnvOffset)
	for _, c := range key {
		h = (h ^ uint64(c)) * fnvPrime
	}
	return s.lengths.of(mix(&h))
}
