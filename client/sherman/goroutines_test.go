package sherman

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/farkv/farkv/workloads/check"
)

// TestGoroutines lets clients split, merge and scan on memory that goroutines share, where nothing
// is atomic but words.
func TestGoroutines(t *testing.T) { both(t, goroutines) }

func goroutines(t *testing.T, format string) {
	p := tiny(format, 2)
	p.Timeout = 20 * time.Second
	f := memPool(t, p)
	began := time.Now()
	now := func() time.Duration { return time.Since(began) }
	var keys []string
	for i := range 16 {
		keys = append(keys, fmt.Sprintf("key%02d", i))
	}
	var mutex sync.Mutex
	var all check.History
	var stats Stats
	var g errgroup.Group
	for w := range 6 {
		g.Go(func() error {
			ep, err := f.Open(fmt.Sprint("worker ", w))
			if err != nil {
				return err
			}
			s, err := Open(ep, Options{})
			if err != nil {
				return err
			}
			r := check.NewRecorder(w, s, now)
			rng := rand.New(rand.NewPCG(7, uint64(w)))
			for n := range 400 {
				key := []byte(keys[rng.IntN(len(keys))])
				kind := []check.Kind{check.Get, check.Insert, check.Insert, check.Update, check.Delete}[rng.IntN(5)]
				if err := kind.Do(r, key, check.MakeValue(nil, w, n+1, 8+rng.IntN(2)*30)); !unsure(err) {
					return err
				}
				if n%10 == w {
					if err := r.Scan(keys, keys[rng.IntN(len(keys))], rng.IntN(20)); err != nil {
						return err
					}
				}
			}
			mutex.Lock()
			defer mutex.Unlock()
			all = append(append(all, r.History()...), r.Found()...)
			stats.Splits, stats.Merges = stats.Splits+s.stats.Splits, stats.Merges+s.stats.Merges
			return errors.Join(s.Close(), ep.Close())
		})
	}
	must(t, g.Wait())
	must(t, check.Linearizable(all, check.Options{}))
	if stats.Splits < 100 || stats.Merges < 50 {
		t.Errorf("%+v", stats)
	}
	there := 0
	s := storeOn(t, f, Options{})
	for _, k := range keys {
		if _, err := s.Get([]byte(k)); err == nil {
			there++
		}
	}
	checkedLive(t, f, there)
}
