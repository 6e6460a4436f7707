package simulate

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/workloads"
)

// trees is a small run of a tree on rTX's testbed, with keys and values as in its paper.
func trees(t *testing.T, store, workload string, clients int, ops int64) Config {
	t.Helper()
	c := config(t, workload, clients, ops)
	c.Store, c.Profile, c.Spec.ShortKeys = store, "rtx-testbed", workloads.HashBytes
	c.Pool = stores.Params{Nodes: 1, Records: c.Pool.Records, Own: stores.Values{"key-bytes": 8, "value-bytes": 8}}
	return c
}

// TestProcesses: clients of one compute node hand locks over when they are one process, and those
// of others do not.
func TestProcesses(t *testing.T) {
	trips := func(clients int, processes bool) float64 {
		c := trees(t, "sherman", "rtx-a", clients, 4000)
		c.Processes = processes
		r := simulated(t, c)
		if r.Failed > 0 {
			t.Fatalf("%d failed: %s", r.Failed, r.Error)
		}
		return r.Call("UPDATE").Trips
	}
	// 40 clients are eight on each of five compute nodes. A lock that is handed over is taken in
	// the trip that reads.
	if apart, together := trips(40, false), trips(40, true); together > 0.95*apart {
		t.Errorf("an UPDATE takes %.2f trips of clients that are processes, %.2f of clients of five", apart, together)
	}
	if apart, together := trips(5, false), trips(5, true); together != apart {
		t.Errorf("an UPDATE takes %.2f trips of five clients, and %.2f where each is alone in its process", apart,
			together)
	}
}

// TestInserts: each INSERT has its own verbs.
func TestInserts(t *testing.T) {
	c := trees(t, "sherman", "rtx-c", 1, 0)
	c.Pool.Records += 100
	all, err := Inserts(context.Background(), c, 100)
	if err != nil || len(all) != 100 {
		t.Fatalf("%d INSERTs, %v", len(all), err)
	}
	plain := 0
	for _, verbs := range all {
		if slices.ContainsFunc(verbs, func(v Posted) bool { return v.Verb == rdma.Write && v.Bytes == 24 }) {
			plain++
		}
		if len(verbs) < 4 || verbs[len(verbs)-1].Verb != rdma.CompareSwap {
			t.Fatalf("an INSERT took %v", verbs)
		}
	}
	if plain < 80 {
		t.Errorf("%d of 100 INSERTs write an entry of 24 B", plain)
	}
}

// TestHashedKeys: they have eight bytes, are distinct, and neighbors are apart.
func TestHashedKeys(t *testing.T) {
	spec := &workloads.Spec{ShortKeys: workloads.HashBytes}
	seen, first := map[string]bool{}, [256]int{}
	for n := range int64(4096) {
		key := spec.Key(n)
		seen[string(key)] = true
		first[key[0]]++
		if len(key) != 8 || bytes.HasPrefix(spec.Key(n+1), key[:1]) && bytes.HasPrefix(spec.Key(n+2), key[:1]) {
			t.Fatalf("keys %d to %d are %x, %x, %x", n, n+2, key, spec.Key(n+1), spec.Key(n+2))
		}
	}
	if len(seen) != 4096 || slices.Max(first[:]) > 40 {
		t.Errorf("%d keys of 4096, up to %d of which begin alike", len(seen), slices.Max(first[:]))
	}
}

// TestProgram: what verbs alone take is what they take in a trip each, until the link is busy.
func TestProgram(t *testing.T) {
	read := BareVerb{rdma.Read, OfData, 1024}
	swap := BareVerb{Verb: rdma.CompareSwap, Place: OfLock}
	run := func(clients int, trips ...[]BareVerb) *Ran {
		t.Helper()
		r, err := Program{Profile: "rtx-testbed", Trips: trips, Objects: 100, Clients: clients,
			Duration: 200 * time.Microsecond, Seed: 1}.Run(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	one, two, both := run(1, []BareVerb{read}), run(1, []BareVerb{read}, []BareVerb{swap}),
		run(1, []BareVerb{read, swap})
	if two.Latency.Mean < 1.9*one.Latency.Mean || both.Latency.Mean > 1.3*one.Latency.Mean {
		t.Errorf("a READ takes %.2f µs, with a CAS behind it %.2f, beside it %.2f", one.Latency.Mean, two.Latency.Mean,
			both.Latency.Mean)
	}
	if many := run(240, []BareVerb{read}); many.LinkOut < 0.95 || many.Throughput > 200e9/8/1024 {
		t.Errorf("240 clients READ %.1f million nodes a second, with the link busy for %.2f", many.Throughput/1e6,
			many.LinkOut)
	}
	var use *workloads.UsageError
	if _, err := (Program{Profile: "rtx-testbed"}).Run(context.Background()); !errors.As(err, &use) {
		t.Errorf("no clients: %v", err)
	}
}
