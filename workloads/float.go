package workloads

import "math"

// The functions of package math differ in the last bit between kinds of machines, and so does
// x*y+z, which compilers may round once instead of twice; a seed, though, has to draw the same
// records everywhere. These use nothing but operations that IEEE 754 rounds alike on all of them;
// where a sum follows a product, the conversion between them forbids to fuse them.

const (
	ln2High = 6.93147180369123816490e-01 // so short that small multiples of it are exact
	ln2Low  = 1.90821492927058770002e-10 // the rest of ln 2
	invLn2  = 1 / math.Ln2
)

// The Taylor series as far as they change the last bit of a result, the highest term first. That of
// artanh x is x times one and these with the powers of x².
var (
	artanhTerms = [...]float64{1. / 21, 1. / 19, 1. / 17, 1. / 15, 1. / 13, 1. / 11, 1. / 9, 1. / 7,
		1. / 5, 1. / 3}
	exponentialTerms = [...]float64{1. / 87_178_291_200, 1. / 6_227_020_800, 1. / 479_001_600, 1. / 39_916_800,
		1. / 3_628_800, 1. / 362_880, 1. / 40_320, 1. / 5_040, 1. / 720, 1. / 120, 1. / 24, 1. / 6, 1. / 2, 1, 1}
)

// logarithm returns ln x for x > 0: of the mantissa m, between the roots of 1/2 and 2, as 2
// artanh((m-1)/(m+1)).
func logarithm(x float64) float64 {
	m, k := math.Frexp(x)
	if m < math.Sqrt2/2 {
		m, k = 2*m, k-1
	}
	s := (m - 1) / (m + 1)
	square := float64(s * s)
	sum := 0.0
	for _, c := range &artanhTerms {
		sum = float64((sum + c) * square)
	}
	e := float64(k)
	return float64(e*ln2High) + (float64(2*s) + (float64(2*s*sum) + float64(e*ln2Low)))
}

// logarithm1p returns ln(1+x) for x > -1: what 1+x loses of x is made up for.
func logarithm1p(x float64) float64 {
	y := 1 + x
	if y == 1 {
		return x
	}
	return float64(logarithm(y)*x) / (y - 1)
}

// exponential returns e to the x, and 0 or infinity where that is no normal number.
func exponential(x float64) float64 {
	switch {
	case x > 709:
		return math.Inf(1)
	case x < -708:
		return 0
	}
	k := math.Floor(float64(x*invLn2) + 0.5)
	r := x - float64(k*ln2High) - float64(k*ln2Low)
	sum := 0.0
	for _, c := range &exponentialTerms {
		sum = float64(sum*r) + c
	}
	return math.Ldexp(sum, int(k))
}

// power returns x to the y for x > 0, with a relative error that grows with y ln x.
func power(x, y float64) float64 { return exponential(float64(y * logarithm(x))) }
