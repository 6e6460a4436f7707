package table

import (
	"fmt"
	"math"
	"math/big"
	"math/bits"
	"testing"

	"github.com/cespare/xxhash/v2"
	"pgregory.net/rapid"
)

// TestPlace: the formula, written down as the paper has it.
func TestPlace(t *testing.T) {
	rapid.Check(t, func(r *rapid.T) {
		p := small()
		p.Rows, p.F = rapid.IntRange(1, 1<<20).Draw(r, "rows"), rapid.Float64Range(1, 5).Draw(r, "f")
		l, err := New(p, 1)
		if err != nil {
			r.Fatal(err)
		}
		key := rapid.SliceOfN(rapid.Byte(), 0, maxKeyBytes).Draw(r, "key")
		with := func(salt uint64) uint64 { return xxhash.Sum64(append(le.AppendUint64(nil, salt), key...)) }
		h1, h2, h3 := with(salt1), with(salt2), with(salt3)
		if h1 == h2 || h2 == h3 {
			r.Fatal("the hashes depend on each other")
		}
		// If f^(f+Z) exceeds the number of rows, the second row may be any.
		span := math.Floor(math.Pow(p.F, p.F+float64(bits.TrailingZeros64(h3))))
		span = min(span, float64(p.Rows))
		want := new(big.Int).Mod(new(big.Int).SetUint64(h2), big.NewInt(int64(span)))
		want.Add(want, big.NewInt(int64(h1%uint64(p.Rows)))).Mod(want, big.NewInt(int64(p.Rows)))
		got := l.Place(key)
		if uint64(got.First) != h1%uint64(p.Rows) || uint64(got.Second) != want.Uint64() || got.Shard >= p.Shards {
			r.Fatalf("%x is at %+v, its second row should be %v", key, got, want)
		}
		if got.Other(got.First) != got.Second || got.Other(got.Second) != got.First && got.First != got.Second ||
			!got.Has(got.Second) {
			r.Fatalf("%+v: the other rows are %d and %d", got, got.Other(got.First), got.Other(got.Second))
		}
	})
}

// TestUniform: first rows and shards are drawn evenly.
func TestUniform(t *testing.T) {
	p := small()
	p.Shards, p.Rows = 7, 50
	l := lay(t, p, 2)
	const keys = 350_000
	var n [7][50]int
	for i := range keys {
		p := l.Place(fmt.Appendf(nil, "user%d", i))
		n[p.Shard][p.First]++
	}
	for s, rows := range n {
		for r, got := range rows {
			if want := keys / 350.0; math.Abs(float64(got)-want) > 5.5*math.Sqrt(want) {
				t.Errorf("%d keys are in row %d of shard %d, %v on average", got, r, s, want)
			}
		}
	}
}

func TestReach(t *testing.T) {
	for _, c := range []struct {
		f    float64
		rows int
		want []uint64
	}{{2.3, 1000, []uint64{6, 15, 35, 82, 190, 437, 1000, 1000}}, {1, 50, []uint64{1, 1, 1}},
		{1.2, 50, []uint64{1, 1, 1, 2}}, {maxF, 7, []uint64{7, 7}}, {2.3, 1, []uint64{1, 1}}} {
		r := newReach(c.f, c.rows)
		for z, want := range c.want {
			if r[z] != want {
				t.Errorf("f = %v, %d rows: z = %d reaches %d, want %d", c.f, c.rows, z, r[z], want)
			}
		}
		for z, n := range r {
			if n < 1 || n > uint64(c.rows) {
				t.Errorf("f = %v, %d rows: z = %d reaches %d", c.f, c.rows, z, n)
			}
		}
	}
}

// TestFigure4a: with f = 2.3, the rows of two in three keys are at most five apart. The paper
// says 68 %. Its formula gives 62.7 %: half of the keys have 6 rows to choose from (Z = 0), a
// quarter 15, an eighth 35, a sixteenth 82, and so on: 1/2 + 6/15/4 + 6/35/8 + 6/82/16 + ... The
// test expects the formula's value within half a point, and the paper's within six.
func TestFigure4a(t *testing.T) {
	const keys = 200_000
	near := func(factor float64, keys, d int) float64 {
		const rows = 100_000
		p := small()
		p.F, p.Rows = factor, rows
		l := lay(t, p, 1)
		n := 0
		for i := range keys {
			at := l.Place(le.AppendUint64(nil, Spread(uint64(i))))
			if (int(at.Second)-int(at.First)+rows)%rows <= d {
				n++
			}
		}
		return float64(n) / float64(keys)
	}
	want, far := 0.0, newReach(2.3, 100_000)
	for z, span := range far[:40] {
		want += math.Ldexp(min(1, 6/float64(span)), -z-1)
	}
	got := near(2.3, keys, 5)
	if math.Abs(got-want) > 0.005 || math.Abs(got-0.627) > 0.005 || math.Abs(got-0.68) > 0.06 {
		t.Errorf("%.1f %% of keys have rows five or fewer apart, want %.1f %%", 100*got, 100*want)
	}
	// With a greater f rows lie farther apart, and with independent hashing hardly any lie near.
	last := 1.0
	for _, f := range []float64{1.9, 2.1, 2.3, 2.5, 2.7, 3} {
		if got := near(f, keys/4, 10); got >= last {
			t.Errorf("f = %v: %.3f are ten or fewer apart, %.3f with a smaller one", f, got, last)
		} else {
			last = got
		}
	}
	if got := near(1000, keys/4, 5); got > 0.001 {
		t.Errorf("without locality %.3f are five or fewer apart", got)
	}
}
