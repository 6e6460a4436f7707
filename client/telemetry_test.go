package client_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/rdma/wall"
)

// telling returns a DB with 1,000 keys, which counts and tells unless it is silent.
func telling(t testing.TB, silent bool) (db *client.DB, keys [][]byte) {
	t.Helper()
	pool, err := stores.Create("mem:", "fusee", stores.Params{Records: 10_000})
	if err != nil {
		t.Fatal(err)
	}
	db, err = pool.DB(stores.DBOptions{Workers: 1, Silent: silent, NoKeeper: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	for i := range 1000 {
		keys = append(keys, fmt.Appendf(nil, "key%d", i))
		if err := db.Put(background, keys[i], make([]byte, 512)); err != nil {
			t.Fatal(err)
		}
	}
	return db, keys
}

// BenchmarkTelemetry shows which share of a process's time it takes to count and to tell: of GETs of one worker on a pool in
// memory, which are the fastest operations there are, the nanoseconds that counting adds to each, and the processor time of the
// publisher. A comparison of a DB that tells with one that does not would show the machine's noise.
func BenchmarkTelemetry(b *testing.B) {
	pool, err := stores.Create("mem:", "fusee", stores.Params{Records: 1000})
	if err != nil {
		b.Fatal(err)
	}
	defer pool.Close()
	s, ep, err := pool.Worker("counted", stores.Options{})
	if err != nil {
		b.Fatal(err)
	}
	defer ep.Close()
	defer s.Close()
	count := client.Counting(s, ep)
	each := func(n int, f func(i int)) (cpu float64) { // processor time of an f in nanoseconds
		before := wall.CPU()
		for i := range n {
			f(i)
		}
		return float64(wall.CPU()-before) / float64(n)
	}
	silent, keys := telling(b, true)
	get := func(i int) {
		if _, err := silent.Get(background, keys[i%len(keys)]); err != nil {
			b.Fatal(err)
		}
	}
	each(100_000, get)
	idle := func() float64 { // processor time of a second in nanoseconds
		before := wall.CPU()
		time.Sleep(3 * time.Second)
		return float64(wall.CPU()-before) / 3
	}
	without := idle()
	db, _ := telling(b, false)
	for i := range 100 {
		if _, err := db.Get(background, keys[i]); err != nil {
			b.Fatal(err)
		}
	}
	publisher := max(idle()-without, 0)
	var adds, takes float64
	for b.Loop() {
		adds, takes = each(1_000_000, func(int) { count() }), each(200_000, get)
		b.ReportMetric(adds, "ns-added/op")
		b.ReportMetric(takes, "ns-GET/op")
		b.ReportMetric(publisher/1e3, "µs-publisher/s")
		b.ReportMetric(100*(adds/takes+publisher/1e9), "%-share")
	}
	b.ReportMetric(0, "ns/op")
}

// Counting allocates nothing, however an operation is timed.
func TestCountingAllocatesNothing(t *testing.T) {
	for _, silent := range []bool{true, false} {
		db, keys := telling(t, silent)
		value := make([]byte, 512)
		for name, want := range map[string]float64{"get": 1, "update": 0} { // a GET's is the value's copy
			i := 0
			n := testing.AllocsPerRun(2000, func() {
				var err error
				if i++; name == "get" {
					_, err = db.Get(background, keys[i%len(keys)])
				} else {
					err = db.Update(background, keys[i%len(keys)], value)
				}
				if err != nil {
					t.Fatal(err)
				}
			})
			if n > want {
				t.Errorf("silent %v: %s allocates %v times, want %v", silent, name, n, want)
			}
		}
	}
}
