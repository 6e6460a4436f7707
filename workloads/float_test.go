package workloads

import (
	"hash/fnv"
	"math"
	"strconv"
	"testing"

	"pgregory.net/rapid"
)

// near reports whether got is want but for a few units in the last place.
func near(got, want, units float64) bool {
	return got == want || math.Abs(got-want) <= units*0x1p-52*math.Abs(want)
}

func TestFloatsAreThoseOfMath(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		x := rapid.Float64Range(1e-300, 1e300).Draw(t, "x")
		if got, want := logarithm(x), math.Log(x); !near(got, want, 4) {
			t.Errorf("ln %g = %g, want %g", x, got, want)
		}
		y := rapid.Float64Range(-700, 700).Draw(t, "y")
		if got, want := exponential(y), math.Exp(y); !near(got, want, 4) {
			t.Errorf("exp %g = %g, want %g", y, got, want)
		}
		z := rapid.Float64Range(-0.999999, 10).Draw(t, "z")
		if got, want := logarithm1p(z), math.Log1p(z); !near(got, want, 8) {
			t.Errorf("ln(1+%g) = %g, want %g", z, got, want)
		}
		base, to := rapid.Float64Range(1e-9, 1e10).Draw(t, "base"), rapid.Float64Range(-2, 2).Draw(t, "to")
		if got, want := power(base, to), math.Pow(base, to); !near(got, want, 100) {
			t.Errorf("%g to the %g = %g, want %g", base, to, got, want)
		}
	})
	for _, x := range []float64{0, 1, -1, 1e-17, 708.9, -707.9} {
		if got, want := exponential(x), math.Exp(x); !near(got, want, 4) {
			t.Errorf("exp %g = %g, want %g", x, got, want)
		}
	}
	if exponential(-800) != 0 || !math.IsInf(exponential(800), 1) {
		t.Error("what is too small is 0, what is too large infinite")
	}
}

// TestSameDrawsOnEveryMachine holds the choices of every distribution to those of the machine that
// this was written on.
func TestSameDrawsOnEveryMachine(t *testing.T) {
	for kind, want := range map[string]uint64{
		"uniform": 0x99dc77a3dad7c3a4, "zipfian": 0xa123f4e95e8b8497, "latest": 0x2b7d04c7ba2da636,
		"hotspot": 0x6ed360a581cc82e8, "exponential": 0xbbcb92f512cb2435, "sequential": 0x6b33a3a19bf36205,
	} {
		c := with(t, "requestdistribution="+kind, "insertproportion=0.05", "operationcount=100000")
		keys, r, h := c.chooser(0, 2), seeded(3), fnv.New64a()
		var b []byte
		for i := range int64(200_000) {
			if i%100 == 0 {
				if n, ok := c.added.Next(); ok {
					c.added.Acknowledge(n)
				}
			}
			b = strconv.AppendInt(append(b[:0], ' '), keys.next(r), 10)
			h.Write(b)
		}
		if got := h.Sum64(); got != want {
			t.Errorf("%s: the draws hash to %#x, want %#x", kind, got, want)
		}
	}
}
