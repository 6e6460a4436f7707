package rcuckoo

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/workloads/check/storetest"
)

// growingPool is a table of few rows, which has to double often.
func growingPool(shards int) Params {
	p := inlinePool(shards)
	p.Rows, p.RowsPerLock, p.LockWords, p.Levels = 30/shards, 1, 1, 6
	return p
}

func judge(t testing.TB, f rdma.Fabric) client.Report {
	t.Helper()
	r, err := Check(f)
	must(t, err)
	if len(r.Damage)+len(r.Waiting) > 0 {
		t.Fatalf("damage %q, waiting %q", r.Damage, r.Waiting)
	}
	return r
}

func fact(t testing.TB, r client.Report, name string) uint64 {
	t.Helper()
	for _, f := range r.Facts {
		if f.Name == name {
			return f.Count
		}
	}
	t.Fatalf("no %q in %+v", name, r.Facts)
	return 0
}

// TestGrow fills a table until it has doubled as often as it may: all that was inserted is found on the way, by who inserts and by who
// only reads, and what was deleted makes room.
func TestGrow(t *testing.T) {
	for _, cache := range []int{0, -1} {
		p := growingPool(2)
		p.InlineBytes, p.ExtentBytes, p.KeyBytes, p.Levels = 8, 8, 8, 4
		f := memPool(t, 2, p)
		s, reader := storeOn(t, f, Options{CacheBytes: cache}), storeOn(t, f, Options{})
		key := func(i int) []byte { return fmt.Appendf(nil, "k%d", i) }
		n := 0
		for ; ; n++ {
			err := s.Insert(key(n), key(n))
			if errors.Is(err, client.ErrFull) {
				break
			}
			must(t, err)
			if n%7 == 0 {
				must(t, s.Update(key(n/2), key(n/2)))
			}
			if v, err := reader.Get(key(n * 2 / 3)); err != nil || string(v) != string(key(n*2/3)) {
				t.Fatalf("get key %d of %d: %q, %v", n*2/3, n, v, err)
			}
			if _, err := reader.Get(key(n + 1)); !errors.Is(err, client.ErrNotFound) {
				t.Fatalf("get key %d of %d: %v", n+1, n, err)
			}
			if n%100 == 0 {
				judge(t, f)
			}
		}
		all := p.Shards * p.Rows * p.Entries << p.Levels
		t.Logf("full at %.1f %% of %d entries; %+v", 100*float64(n)/float64(all), all, s.Stats())
		if n < all*70/100 { // segments of so few rows are not equally full
			t.Errorf("full at %d of %d entries", n, all)
		}
		for i := range n {
			if v, err := s.Get(key(i)); err != nil || string(v) != string(key(i)) {
				t.Fatalf("get key %d of %d: %q, %v", i, n, v, err)
			}
		}
		if r := judge(t, f); fact(t, r, "keys") != uint64(n) || fact(t, r, "entries") > uint64(all) {
			t.Errorf("%+v", r)
		}
		for i := range n / 2 {
			must(t, s.Delete(key(i)))
		}
		for i := range n / 3 {
			must(t, s.Insert(key(i), nil))
		}
		judge(t, f)
	}
}

// TestStoreGrowing runs the suites on tables that double again and again under their load.
func TestStoreGrowing(t *testing.T) {
	p := growingPool(2)
	p.InlineBytes, p.ExtentBytes, p.SlabExtents = 16, 1000, 16
	p.Slabs = 5000 / 16 / p.Shards
	h := harness(2, p, Options{Failure: 3 * time.Second})
	make := h.Format
	h.Format = func(f rdma.Fabric) error {
		if _, ok := f.(*sim.Sim); !ok {
			return make(f)
		}
		p := p
		p.Rows, p.Entries, p.Slabs, p.Levels = 1, 1, 40, 8 // keys are few there, and two of them part late
		return Make(f, p)
	}
	h.Alike = true // but for who divides rows, which is all under their locks
	storetest.Run(t, h)
}
