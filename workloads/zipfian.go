package workloads

import "math/rand/v2"

// Theta is YCSB's zipfian constant.
const Theta = 0.99

// Zipfian draws 0 to Items-1, 0 most often, as YCSB does: by the approximation of Gray et al.,
// "Quickly generating billion-record synthetic databases", SIGMOD 1994, which is exact for the
// first two items. It is immutable but for Grow.
type Zipfian struct {
	items, theta            float64
	zetan, zeta2            float64
	alpha, eta, secondBound float64
}

// NewZipfian returns a generator of items numbers with 0 < theta < 1.
func NewZipfian(items int64, theta float64) Zipfian {
	return newZipfian(items, theta, zeta(items, theta))
}

func newZipfian(items int64, theta, zetan float64) Zipfian {
	z := Zipfian{theta: theta, zeta2: zeta(2, theta), alpha: 1 / (1 - theta)}
	z.secondBound = 1 + power(0.5, theta)
	z.set(items, zetan)
	return z
}

func (z *Zipfian) set(items int64, zetan float64) {
	z.items, z.zetan = float64(items), zetan
	z.eta = (1 - power(2/z.items, 1-z.theta)) / (1 - z.zeta2/z.zetan)
}

// Items returns how many numbers z draws from.
func (z *Zipfian) Items() int64 { return int64(z.items) }

// Grow makes z draw from items numbers; fewer than before are ignored.
func (z *Zipfian) Grow(items int64) {
	have := z.Items()
	if items <= have {
		return
	}
	if items-have > zetaDirect {
		z.set(items, zeta(items, z.theta))
		return
	}
	sum := z.zetan
	for i := have + 1; i <= items; i++ {
		sum += power(float64(i), -z.theta)
	}
	z.set(items, sum)
}

// Next draws a number.
func (z *Zipfian) Next(r *rand.Rand) int64 { return z.at(r.Float64()) }

// at is the number that the uniform u in [0, 1) stands for.
func (z *Zipfian) at(u float64) int64 {
	uz := float64(u * z.zetan)
	if uz < 1 {
		return 0
	}
	if uz < z.secondBound || z.items <= 2 { // of two items the product may round up to the bound
		return 1
	}
	// (eta*u - eta + 1) to the alpha; for the largest u it rounds to 1, which would be one item too
	// many.
	share := exponential(float64(z.alpha * logarithm1p(float64(z.eta*(u-1)))))
	return min(int64(z.items*share), int64(z.items)-1)
}

const zetaDirect = 4096 // terms summed one by one

// zeta is the sum of i^-theta for i from 1 to n: directly for the first terms, by Euler and
// Maclaurin's formula for the rest. Its error is below the rounding error of adding them up.
func zeta(n int64, theta float64) float64 {
	direct := min(n, zetaDirect)
	sum := 0.0
	for i := direct; i >= 1; i-- {
		sum += power(float64(i), -theta)
	}
	if n == direct {
		return sum
	}
	f := func(x float64) float64 { return power(x, -theta) }
	slope := func(x float64) float64 { return float64(-theta * power(x, -theta-1)) }
	a, b := float64(direct), float64(n)
	area := (power(b, 1-theta) - power(a, 1-theta)) / (1 - theta)
	return sum + area + (f(b)-f(a))/2 + (slope(b)-slope(a))/12
}

// YCSB's scrambled zipfian draws from ten billion items, for which it has zeta as a constant, and
// folds them onto the records.
const (
	scrambledItems = 10_000_000_000
	scrambledZeta  = 26.46902820178302
)

// Scrambled draws First to First+Items-1 with a zipfian popularity. The popular items are scattered
// over the range, as YCSB's ScrambledZipfianGenerator does. It is immutable.
type Scrambled struct {
	First, Items int64
	zipf         Zipfian
}

// NewScrambled returns a generator of items numbers from first on.
func NewScrambled(first, items int64, theta float64) Scrambled {
	s := Scrambled{First: first, Items: items}
	if theta == Theta {
		s.zipf = newZipfian(scrambledItems+1, theta, scrambledZeta)
	} else {
		s.zipf = NewZipfian(scrambledItems, theta)
	}
	return s
}

// Next draws a number.
func (s *Scrambled) Next(r *rand.Rand) int64 { return s.fold(s.zipf.Next(r), s.Items) }

func (s *Scrambled) fold(n, items int64) int64 {
	return s.First + int64(hashScramble(n)%uint64(items))
}
