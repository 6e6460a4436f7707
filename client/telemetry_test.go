package client_test

import (
	"fmt"
	"testing"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/telemetry"
)

// telling returns a DB with 1,000 keys, which counts and tells unless it is silent.
func telling(t testing.TB, silent bool) (db *client.DB, keys [][]byte) {
	t.Helper()
	pool := create(t, "mem:")
	db, err := pool.DB(stores.DBOptions{Workers: 1, Silent: silent, NoKeeper: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	return db, fill(t, db)
}

func create(t testing.TB, addr string) *stores.Pool {
	t.Helper()
	pool, err := stores.Create(addr, "fusee", stores.Params{Records: 10_000})
	if err != nil {
		t.Fatal(err)
	}
	return pool
}

// fill puts 1,000 keys into a DB.
func fill(t testing.TB, db *client.DB) (keys [][]byte) {
	t.Helper()
	for i := range 1000 {
		keys = append(keys, fmt.Appendf(nil, "key%d", i))
		if err := db.Put(background, keys[i], make([]byte, 512)); err != nil {
			t.Fatal(err)
		}
	}
	return keys
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

// An operation that is timed stands for those before it that were not, whenever they were handed
// over.
func TestLatenciesStandForAll(t *testing.T) {
	pool := create(t, "mem:")
	defer pool.Close()
	s, ep, err := pool.Worker("counted", stores.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer ep.Close()
	defer s.Close()
	count, tell := client.Counting(s, ep)
	var p telemetry.Process
	const rounds, each, mostSkipped = 200, 50, 320
	for range rounds {
		for range each {
			count()
		}
		tell(&p)
	}
	o := &p.Ops[telemetry.Get]
	if n := o.Latency.Count(); o.OK != rounds*each || n > o.OK || n+mostSkipped < o.OK {
		t.Errorf("%d operations with %d latencies, want %d and at most %d fewer", o.OK, n, rounds*each, mostSkipped)
	}
}
