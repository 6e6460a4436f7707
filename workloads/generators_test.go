package workloads

import (
	"math"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"

	"pgregory.net/rapid"
)

func seeded(seed uint64) *rand.Rand { return rand.New(rand.NewPCG(seed, 1)) }

// chiSquare fails unless counts look drawn from the distribution p: the statistic of n cells lies
// within five standard deviations of its mean. With a fixed seed the outcome is fixed.
func chiSquare(t *testing.T, what string, counts []int, p []float64) {
	t.Helper()
	total, cells, x := 0, 0, 0.0
	for _, n := range counts {
		total += n
	}
	restN, restP := 0.0, 0.0
	for i, n := range counts {
		want := p[i] * float64(total)
		if p[i] == 0 && n > 0 {
			t.Fatalf("%s: drew %d, which is impossible, %d times", what, i, n)
		}
		if want < 10 { // the test wants cells of some size
			restN, restP = restN+float64(n), restP+want
			continue
		}
		x += (float64(n) - want) * (float64(n) - want) / want
		cells++
	}
	if restP >= 10 {
		x += (restN - restP) * (restN - restP) / restP
		cells++
	}
	freedom := float64(cells - 1)
	if math.Abs(x-freedom) > 5*math.Sqrt(2*freedom) {
		t.Errorf("%s: chi-square %.1f with %.0f degrees of freedom", what, x, freedom)
	}
}

func draw(n, times int, next func() int64) []int {
	counts := make([]int, n)
	for range times {
		counts[next()]++
	}
	return counts
}

// zipfExact is the distribution of YCSB's zipfian generator: exact for two items, and then what its
// formula n * (eta*u - eta + 1)^alpha, rounded down, makes of a uniform u.
func zipfExact(n int, theta float64) []float64 {
	zetan, zeta2 := 0.0, 1+math.Pow(0.5, theta)
	for i := 1; i <= n; i++ {
		zetan += 1 / math.Pow(float64(i), theta)
	}
	eta := (1 - math.Pow(2/float64(n), 1-theta)) / (1 - zeta2/zetan)
	from := func(k int) float64 { // the least u that gives k or more by the formula
		return min(max((math.Pow(float64(k)/float64(n), 1-theta)-1+eta)/eta, zeta2/zetan), 1)
	}
	p := make([]float64, n)
	for k := range p {
		p[k] = from(k+1) - from(k)
	}
	p[n-1] = 1 - from(n-1)
	p[0] += 1 / zetan
	p[1] += (zeta2 - 1) / zetan
	return p
}

func TestZipfianIsYCSBs(t *testing.T) {
	for _, n := range []int{3, 10, 100, 1000} {
		for _, theta := range []float64{0.5, 0.99} {
			z, r := NewZipfian(int64(n), theta), seeded(1)
			chiSquare(t, "zipfian", draw(n, 200_000, func() int64 { return z.Next(r) }), zipfExact(n, theta))
		}
	}
}

func TestZipfianStaysInRange(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := rapid.Int64Range(1, 1<<40).Draw(t, "items")
		z := NewZipfian(n, rapid.Float64Range(0.01, 0.999).Draw(t, "theta"))
		u := rapid.Float64Range(0, math.Nextafter(1, 0)).Draw(t, "u")
		if k := z.at(u); k < 0 || k >= n {
			t.Fatalf("%d of %d items", k, n)
		}
		if k := z.at(0); k != 0 {
			t.Fatalf("u=0 gives %d", k)
		}
		if k := z.at(math.Nextafter(1, 0)); k < 0 || k >= n {
			t.Fatalf("the largest u gives %d of %d items", k, n)
		}
	})
}

func TestZeta(t *testing.T) {
	for _, theta := range []float64{0.1, 0.5, 0.99} {
		direct := 0.0
		for i := 1; i <= 1_000_000; i++ {
			direct += math.Pow(float64(i), -theta)
			if i != 5_000 && i != 1_000_000 {
				continue
			}
			if got := zeta(int64(i), theta); math.Abs(got-direct) > 1e-11*direct {
				t.Errorf("zeta(%d, %v) = %.15g, want %.15g", i, theta, got, direct)
			}
		}
	}
	if got := zeta(scrambledItems, Theta); math.Abs(got-scrambledZeta) > 1e-6 {
		t.Errorf("zeta of ten billion is %.12f, YCSB has %.12f", got, scrambledZeta)
	}
}

func TestZipfianGrows(t *testing.T) {
	z := NewZipfian(10, Theta)
	for _, n := range []int64{11, 11, 5, 100, 10_000, 10_001, 1_000_000} {
		z.Grow(n)
		want := NewZipfian(max(n, z.Items()), Theta)
		if math.Abs(z.zetan-want.zetan) > 1e-10 || math.Abs(z.eta-want.eta) > 1e-10 || z.items != want.items {
			t.Fatalf("grown to %d: %+v, want %+v", n, z, want)
		}
	}
}

// TestHashIsYCSBs compares with FNV-1a as its authors define it, over the little-endian octets.
func TestHashIsYCSBs(t *testing.T) {
	for _, n := range []int64{0, 1, 255, 256, 123456789, math.MaxInt64} {
		h := uint64(fnvOffset)
		for v, i := uint64(n), 0; i < 8; i, v = i+1, v/256 {
			h ^= v % 256
			h *= fnvPrime
		}
		want := int64(h)
		if want < 0 {
			want = -want
		}
		if got := hashScramble(n); got != uint64(want) {
			t.Errorf("hash of %d is %d, want %d", n, got, want)
		}
	}
}

// TestScrambledIsYCSBs compares the most popular items, of which the places are known, with their
// exact shares.
func TestScrambledIsYCSBs(t *testing.T) {
	const items, draws = 1000, 400_000
	s, r := NewScrambled(0, items, Theta), seeded(2)
	counts := draw(items, draws, func() int64 { return s.Next(r) })
	hits := 0
	for _, n := range counts {
		if n > 0 {
			hits++
		}
	}
	if hits != items {
		t.Errorf("only %d of %d records were ever drawn", hits, items)
	}
	// Of ten billion items the first has 1/zeta, and beyond the first ten thousand or so the
	// folding is even.
	var p [items]float64
	const head = 100_000
	mass := 0.0
	eta := s.zipf.eta
	n := s.zipf.items
	from := func(k float64) float64 {
		return max((math.Pow(k/n, 1-Theta)-1+eta)/eta, s.zipf.secondBound/s.zipf.zetan)
	}
	for k := range head {
		share := from(float64(k+1)) - from(float64(k))
		switch k {
		case 0:
			share = 1 / s.zipf.zetan
		case 1:
			share = (s.zipf.secondBound - 1) / s.zipf.zetan
		}
		p[hashScramble(int64(k))%items] += share
		mass += share
	}
	for i := range p {
		p[i] += (1 - mass) / items
	}
	chiSquare(t, "scrambled zipfian", counts, p[:])
}

type given map[string]string

func (p given) Get(name string) (string, bool) { v, ok := p[name]; return v, ok }

// with returns a core with the properties "name=value" and a thousand records, numbered from 500
// on.
func with(t testing.TB, props ...string) *Core {
	t.Helper()
	p := given{"recordcount": "1500", "insertstart": "500"}
	for _, s := range props {
		name, value, _ := strings.Cut(s, "=")
		p[name] = value
	}
	s, err := Parse(p)
	if err != nil {
		t.Fatal(err)
	}
	return NewCore(s)
}

func TestChoosersHitTheirDistributions(t *testing.T) {
	const n, first, draws = 1000, 500, 200_000
	even := make([]float64, n)
	hot := make([]float64, n)
	exponential := make([]float64, n)
	gamma := -math.Log(1-0.95) / (1500 * 0.5)
	for i := range n {
		even[i] = 1.0 / n
		hot[i] = 0.7 / 300
		if i >= 300 {
			hot[i] = 0.3 / 700
		}
		// Backwards from the last; cut off at the first, as YCSB's redrawing does.
		exponential[n-1-i] = (math.Exp(-gamma*float64(i)) - math.Exp(-gamma*float64(i+1))) / (1 - math.Exp(-gamma*n))
	}
	latest := zipfExact(n, Theta)
	for i := range n / 2 {
		latest[i], latest[n-1-i] = latest[n-1-i], latest[i]
	}
	for _, c := range []struct {
		props []string
		p     []float64
	}{
		{[]string{"requestdistribution=uniform"}, even},
		{[]string{"requestdistribution=sequential"}, even},
		{[]string{"requestdistribution=latest"}, latest},
		{[]string{"requestdistribution=hotspot", "hotspotdatafraction=0.3", "hotspotopnfraction=0.7"}, hot},
		{[]string{"requestdistribution=hotspot", "hotspotdatafraction=0", "hotspotopnfraction=0.7"}, even},
		{[]string{"requestdistribution=hotspot", "hotspotdatafraction=1", "hotspotopnfraction=0.7"}, even},
		{[]string{"requestdistribution=exponential", "exponential.frac=0.5"}, exponential},
	} {
		k, r := with(t, c.props...).chooser(0, 1), seeded(3)
		counts := draw(n, draws, func() int64 { return k.next(r) - first })
		if c.props[0] == "requestdistribution=sequential" {
			for i, got := range counts {
				if got != draws/n {
					t.Fatalf("sequential drew record %d %d times, want %d", i, got, draws/n)
				}
			}
			continue
		}
		chiSquare(t, strings.Join(c.props, " "), counts, c.p)
	}
}

// TestZipfianMeetsAllLoadedAndNothingElse falls into upstream's hole: the range that it draws from
// reaches one record, and with inserts many, beyond what is there.
func TestZipfianMeetsAllLoadedAndNothingElse(t *testing.T) {
	for _, props := range [][]string{
		{"insertproportion=0", "operationcount=1000000"},
		{"insertproportion=0.05", "operationcount=1000"},
		{"insertproportion=0.05", "operationcount=1000000"}, // a hundred times what is loaded: redrawn, then folded
	} {
		c := with(t, append(props, "requestdistribution=zipfian")...)
		k, r := c.chooser(0, 1), seeded(4)
		seen := make([]int, 1000)
		for range 100_000 {
			seen[k.next(r)-500]++ // panics outside
		}
		for i, n := range seen {
			if n == 0 {
				t.Errorf("%v: record %d was never drawn", props, i)
			}
		}
	}
}

// TestPopularRecordsStayPopular: inserts must not move the popular records of a zipfian run.
func TestPopularRecordsStayPopular(t *testing.T) {
	c := with(t, "insertproportion=0.05", "operationcount=10000", "requestdistribution=zipfian")
	top := func() (best int64) {
		k, r, counts := c.chooser(0, 1), seeded(5), map[int64]int{}
		for range 20_000 {
			n := k.next(r)
			if counts[n]++; counts[n] > counts[best] {
				best = n
			}
		}
		return best
	}
	before := top()
	for range 400 {
		n, _ := c.added.Next()
		c.added.Acknowledge(n)
	}
	if after := top(); after != before {
		t.Errorf("the most popular record was %d and is %d", before, after)
	}
}

func TestSequentialWorkersTakeTurns(t *testing.T) {
	c := with(t, "requestdistribution=sequential")
	var got []int64
	ks := []chooser{c.chooser(0, 3), c.chooser(1, 3), c.chooser(2, 3)}
	for i := range 3000 {
		got = append(got, ks[i%3].next(nil))
	}
	for i, n := range got {
		if n != 500+int64(i)%1000 {
			t.Fatalf("draw %d is record %d", i, n)
		}
	}
}

func TestAcknowledgedHoldsBackGaps(t *testing.T) {
	a := NewAcknowledged(100)
	for want := range int64(5) {
		if n, ok := a.Next(); !ok || n != 100+want {
			t.Fatal(n, ok)
		}
	}
	for _, step := range []struct{ ack, last int64 }{{101, 99}, {104, 99}, {100, 101}, {103, 101}, {102, 104}} {
		if a.Acknowledge(step.ack); a.Last() != step.last {
			t.Fatalf("after %d the last is %d, want %d", step.ack, a.Last(), step.last)
		}
	}
}

func TestAcknowledgedIsBounded(t *testing.T) {
	a := NewAcknowledged(0)
	n := int64(0)
	for {
		if _, ok := a.Next(); !ok {
			break
		}
		if n++; n > 2*window {
			t.Fatal("hands out numbers without end")
		}
	}
	for i := range n { // the newest first: the ring must hold them all
		a.Acknowledge(n - 1 - i)
	}
	if a.Last() != n-1 {
		t.Fatalf("last is %d of %d", a.Last(), n)
	}
	if m, ok := a.Next(); !ok || m != n {
		t.Fatal(m, ok)
	}
}

// TestAcknowledgedConcurrently: no number twice, none lost, and never one above a gap. Several laps
// round the ring.
func TestAcknowledgedConcurrently(t *testing.T) {
	const workers, each = 8, 3 * window / 8
	a := NewAcknowledged(0)
	inserted := make([]int32, workers*each)
	var mu sync.Mutex
	var all sync.WaitGroup
	for w := range workers {
		all.Go(func() {
			r := seeded(uint64(w))
			for range each {
				n, ok := a.Next()
				for !ok {
					n, ok = a.Next()
				}
				mu.Lock()
				inserted[n]++
				mu.Unlock()
				a.Acknowledge(n)
				if last := a.Last(); last >= 0 {
					mu.Lock()
					if k := r.Int64N(last + 1); inserted[k] != 1 {
						t.Errorf("record %d counts as there and was inserted %d times", k, inserted[k])
					}
					mu.Unlock()
				}
			}
		})
	}
	all.Wait()
	if a.Last() != workers*each-1 {
		t.Errorf("last is %d, want %d", a.Last(), workers*each-1)
	}
}

func TestLengths(t *testing.T) {
	r := seeded(6)
	uniform := newLengths("uniform", 3, 12, Theta)
	p := make([]float64, 13)
	for i := 3; i <= 12; i++ {
		p[i] = 0.1
	}
	chiSquare(t, "uniform length", draw(13, 100_000, func() int64 { return int64(uniform.next(r)) }), p)

	zipf := newLengths("zipfian", 3, 12, Theta)
	chiSquare(t, "zipfian length", draw(13, 100_000, func() int64 { return int64(zipf.next(r)) }),
		append(make([]float64, 3), zipfExact(10, Theta)...))

	h, err := parseLengths("BlockSize\t10\n0\t1\n3\t2\n1\t1\n")
	if err != nil {
		t.Fatal(err)
	}
	p = make([]float64, 41)
	p[10], p[20], p[40] = 0.25, 0.25, 0.5
	chiSquare(t, "histogram length", draw(41, 100_000, func() int64 { return int64(h.next(r)) }), p)
	for _, bad := range []string{"", "BlockSize 10", "BlockSize\t0\n0\t1", "BlockSize\t1\n", "BlockSize\t1\n0\t-1",
		"BlockSize\t1\nx\t1", "BlockSize\t1\n0\t9223372036854775807\n1\t1", "BlockSize\t1\n1048576\t1"} {
		if _, err := parseLengths(bad); err == nil {
			t.Errorf("no error for %q", bad)
		}
	}
}

func TestMix(t *testing.T) {
	c := with(t, "readproportion=0.4", "updateproportion=0.3", "insertproportion=0.2", "scanproportion=0.05",
		"readmodifywriteproportion=0.05")
	r := seeded(7)
	chiSquare(t, "mix", draw(int(Ops), 100_000, func() int64 { return int64(c.choose(r)) }),
		[]float64{.4, .3, .2, .05, .05})
	c = with(t, "readproportion=0", "updateproportion=0", "insertproportion=0.5")
	for range 1000 {
		if op := c.choose(r); op != OpInsert {
			t.Fatalf("%s is not in the mix", op)
		}
	}
}

// TestBlind: a number that its client does not acknowledge holds up no other client in a run that
// only inserts, and others in a run that reads what was inserted.
func TestBlind(t *testing.T) {
	for _, test := range []struct {
		spec Spec
		most int64 // numbers, of which none is acknowledged
	}{
		{Spec{RecordCount: 10, InsertCount: 10, Insert: 1}, 2 * window},
		{Spec{RecordCount: 10, InsertCount: 10, Insert: 0.5, Read: 0.5}, window},
	} {
		c, handed := NewCore(&test.spec), int64(0)
		for ; handed < 2*window; handed++ {
			if _, ok := c.number(); !ok {
				break
			}
		}
		if handed != test.most {
			t.Errorf("%g inserts: %d numbers were handed out, want %d", test.spec.Insert, handed, test.most)
		}
	}
}
