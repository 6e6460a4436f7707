package locations

import (
	"flag"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/farkv/farkv/workloads"
)

var million = flag.Bool("million", false, "measure miss rates over a million keys, as SWARM's figure 6")

// hash spreads numbers over 64 bits.
func hash(n int64) uint64 {
	h := uint64(n+1) * 0x9e3779b97f4a7c15
	h = (h ^ h>>32) * 0xd6e8feb86659fd93
	return h ^ h>>32
}

// share replays accesses: what is not found is put. It returns the share of misses among the later
// ones.
func share(c *Cache[int64], warm, keys []int64) float64 {
	misses := 0
	for i, k := range append(warm[:len(warm):len(warm)], keys...) {
		if c.Find(hash(k)) == nil {
			*c.Put(hash(k)) = k
			if i >= len(warm) {
				misses++
			}
		}
	}
	return float64(misses) / float64(len(keys))
}

// ideal is the share of accesses to all but the n keys that weight tells are most popular.
func ideal(weight []int, n int, keys []int64) float64 {
	byWeight := make([]int64, len(weight))
	for i := range byWeight {
		byWeight[i] = int64(i)
	}
	slices.SortFunc(byWeight, func(a, b int64) int { return weight[b] - weight[a] })
	top := make([]bool, len(weight))
	for _, k := range byWeight[:n] {
		top[k] = true
	}
	misses := 0
	for _, k := range keys {
		if !top[k] {
			misses++
		}
	}
	return float64(misses) / float64(len(keys))
}

func draw(n int, next func(*rand.Rand) int64, rng *rand.Rand) []int64 {
	keys := make([]int64, n)
	for i := range keys {
		keys[i] = next(rng)
	}
	return keys
}

// rates compares caches of 5 MiB for a million keys, or as much smaller as there are fewer, with
// the ideal.
func rates(t *testing.T, items int64, warm, run, popularity int) {
	zipf, scrambled := workloads.NewZipfian(items, workloads.Theta), workloads.NewScrambled(0, items, workloads.Theta)
	for _, w := range []struct {
		name string
		next func(*rand.Rand) int64
		most float64 // by which hits may fall short of the ideal's
	}{{"zipf", zipf.Next, 0.035}, {"scrambled", scrambled.Next, 0.095}} {
		rng := rand.New(rand.NewPCG(1, 2))
		before, keys := draw(warm, w.next, rng), draw(run, w.next, rng)
		weight := make([]int, items)
		for range popularity {
			weight[w.next(rng)]++
		}
		for _, entryBytes := range []int{24, 32} {
			c := New[int64](int(5<<20*items/1_000_000), entryBytes)
			got, best := share(c, before, keys), ideal(weight, c.Entries(), keys)
			t.Logf("%s, %d keys, entries of %d bytes: %.2f %% miss, ideally %.2f %%", w.name, items, entryBytes,
				100*got, 100*best)
			if 1-got < (1-best)*(1-w.most) {
				t.Errorf("%s: %.2f %% of accesses miss, ideally %.2f %%", w.name, 100*got, 100*best)
			}
		}
	}
}

// TestMissRates: hits are within a few percent of those of the most popular keys.
func TestMissRates(t *testing.T) { rates(t, 20_000, 160_000, 100_000, 1_000_000) }

// TestMillion is SWARM's figure 6: each of four clients has a quarter of the 8 million operations
// that warm up.
func TestMillion(t *testing.T) {
	if !*million {
		t.Skip("takes 10 s: -million")
	}
	rates(t, 1_000_000, 2_000_000, 1_000_000, 20_000_000)
}

// TestShift: when other keys become popular, they are cached soon, though the old ones were used
// far more often.
func TestShift(t *testing.T) {
	const items = 20_000
	rng := rand.New(rand.NewPCG(3, 4))
	zipf := workloads.NewZipfian(items, workloads.Theta)
	other := func(r *rand.Rand) int64 { return items - 1 - zipf.Next(r) }
	c := New[int64](100<<10, 24)
	before := share(c, draw(1_000_000, zipf.Next, rng), draw(100_000, zipf.Next, rng))
	after := share(c, draw(200_000, other, rng), draw(100_000, other, rng))
	if after > 1.1*before {
		t.Errorf("%.2f %% of accesses missed before keys changed, and %.2f %% after", 100*before, 100*after)
	}
}

// TestAgainstModel: a cache never tells of a key anything but what was put last, and keeps what
// there is room for.
func TestAgainstModel(t *testing.T) {
	for seed := range uint64(50) {
		rng := rand.New(rand.NewPCG(seed, 5))
		budget := rng.IntN(3000)
		c := New[int](budget, 24)
		if c.Entries()*24 > budget || c.Entries() < budget/24-ways {
			t.Fatalf("%d entries of 24 bytes in %d", c.Entries(), budget)
		}
		put := map[uint64]int{} // what was put and not dropped
		homes := map[uint64]int{}
		hashes := []uint64{0, 1 << 4, ^uint64(0)}
		for range 1 + rng.IntN(150) {
			hashes = append(hashes, rng.Uint64()&^countMax)
		}
		for _, h := range hashes {
			homes[c.home(h)]++
		}
		for i := range 5000 {
			switch h := hashes[rng.IntN(len(hashes))]; rng.IntN(4) {
			case 0:
				e := c.Put(h)
				if old, ok := put[h]; *e != 0 && (!ok || *e != old) {
					t.Fatalf("seed %d: a new entry holds %d", seed, *e)
				}
				*e, put[h] = i+1, i+1
			case 1:
				c.Drop(h)
				delete(put, h)
			default:
				e, last := c.Find(h), put[h]
				switch {
				case e != nil && (*e != last || last == 0):
					t.Fatalf("seed %d: key %#x is %d, not %d", seed, h, *e, last)
				case e == nil && last != 0 && c.Entries() > 0 && homes[c.home(h)] <= ways:
					t.Fatalf("seed %d: key %#x went from a set that has room", seed, h)
				}
			}
		}
	}
}

// TestBudget: the budget holds what it says, the memory is what the package says, and nothing more
// is allocated.
func TestBudget(t *testing.T) {
	type entry [2]uint64
	for _, budget := range []int{-1, 0, 24*ways - 1, 24 * ways, 1 << 16, 1 << 20} {
		c := New[entry](budget, 24)
		if n := c.Entries() * 24; n > max(budget, 0) || budget-n >= 24*ways {
			t.Errorf("a budget of %d bytes makes %d entries of 24", budget, c.Entries())
		}
		if c.Bytes() != c.Entries()*(16+8+5) {
			t.Errorf("%d entries take %d bytes", c.Entries(), c.Bytes())
		}
		for i := range int64(6 * c.Entries()) {
			c.Put(hash(i))[0] = 1
		}
		n := 0
		for i := range int64(6 * c.Entries()) {
			if c.Find(hash(i)) != nil {
				n++
			}
		}
		if n != c.Entries() {
			t.Errorf("of %d entries %d are in use", c.Entries(), n)
		}
	}
	c, i := New[entry](1<<16, 24), int64(0)
	if n := testing.AllocsPerRun(10_000, func() {
		c.Put(hash(i))
		c.Find(hash(i / 2))
		c.Drop(hash(i / 3))
		i++
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// TestNothing: a cache that holds nothing has where to put what a store learnt, and forgets it.
func TestNothing(t *testing.T) {
	c := New[int](-1, 24)
	*c.Put(1) = 5
	c.Drop(1)
	if c.Find(1) != nil || *c.Put(1) != 0 || c.Bytes() != 0 {
		t.Error("it holds something")
	}
}

// TestDropRemembers: a popular key of which the entry was dropped, because it was wrong, is as
// popular when it returns.
func TestDropRemembers(t *testing.T) {
	c := New[int](24*ways, 24)
	key := hash(0)
	c.Put(key)
	for range countMax {
		c.Find(key)
	}
	c.Drop(key)
	c.Put(key)
	for i := range int64(agingTurn) {
		c.Put(hash(i + 1))
	}
	if c.Find(key) == nil {
		t.Error("it went for keys that came once")
	}
}

// TestZeroHash: a key that was not used for long keeps its entry, which is not taken for a free
// one.
func TestZeroHash(t *testing.T) {
	c := New[int](24*ways, 24)
	c.Put(0)
	for range 3 * agingTurn {
		c.Put(hash(1))
		c.Drop(hash(1))
	}
	if c.Find(0) == nil {
		t.Error("it went from a set that has room")
	}
}

// BenchmarkFind is of hits: in a cache that fits the processor's, and in one of 8 MiB.
func BenchmarkFind(b *testing.B) {
	for _, x := range []struct {
		name string
		keys int64
	}{{"1000 keys", 1000}, {"100000 keys", 100_000}} {
		b.Run(x.name, func(b *testing.B) {
			c := New[[2]uint64](8<<20, 24)
			var keys []uint64
			for i := range x.keys {
				c.Put(hash(i))
			}
			for i := range x.keys { // sets fill unevenly
				if h := hash(i); c.Find(h) != nil {
					keys = append(keys, h)
				}
			}
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				if c.Find(keys[i%len(keys)]) == nil {
					b.Fatal("lost")
				}
			}
		})
	}
}

// BenchmarkZipf is of finding and putting, with misses as they come.
func BenchmarkZipf(b *testing.B) {
	zipf := workloads.NewZipfian(1_000_000, workloads.Theta)
	keys := draw(1<<20, zipf.Next, rand.New(rand.NewPCG(1, 2)))
	c := New[[2]uint64](5<<20, 24)
	b.ReportAllocs()
	for i := 0; b.Loop(); i++ {
		if h := hash(keys[i%len(keys)]); c.Find(h) == nil {
			c.Put(h)
		}
	}
}
