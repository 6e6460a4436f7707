package swarm

import (
	"errors"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/trace"
	"github.com/farkv/farkv/workloads/check"
	"github.com/farkv/farkv/workloads/check/explore"
)

// rawShape is of RAW's objects.
func rawShape(writers, maxValue int) Shape {
	return Shape{Replicas: 1, Writers: writers, MaxValue: maxValue}
}

// TestRawTrips: RAW takes one trip of one verb for everything, and allocates nothing.
func TestRawTrips(t *testing.T) {
	f, a := pool(t, rawShape(2, 100), 1, 2, 1)
	x, y := worker(t, f, a, Options{}), worker(t, f, a, Options{Writer: 1})
	k := []byte("key-0")
	one := func(what string, s *registers, want error, op func() error) {
		t.Helper()
		var err error
		n := trace.Trips(s.ep, func() { err = op() })
		if !errors.Is(err, want) || n.Trips != 1 || n.Verbs() != 1 || n.Atomics != 0 {
			t.Errorf("%s: %v, and takes %+v", what, err, n)
		}
	}
	read := func(s *registers, want string) func() error {
		return func() error {
			v, err := s.Get(k)
			if string(v) != want {
				t.Errorf("got %q, want %q", v, want)
			}
			return err
		}
	}
	write := func(s *registers, v string) func() error { return func() error { return s.Update(k, []byte(v)) } }
	one("read of nothing", x, ErrEmpty, read(x, ""))
	one("write", x, nil, write(x, "of x, longer"))
	one("write of another", y, nil, write(y, "of y"))
	one("read", x, nil, read(x, "of y"))
	one("write of nothing", x, nil, write(x, ""))
	one("read of nothing", y, nil, read(y, ""))
	one("delete", x, nil, func() error { return x.Delete(k) })
	one("read of what is gone", y, ErrGone, read(y, ""))
	wantError(t, x.Write(&x.keys[1], make([]byte, 101)), client.ErrTooLarge)
	value := make([]byte, 100)
	if n := testing.AllocsPerRun(100, func() {
		must(t, x.Write(&x.keys[1], value))
		_, err := x.Read(&x.keys[1])
		must(t, err)
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

// drawRaw plans a run of RAW, in which nothing is amiss but the network.
func drawRaw(seed uint64) *run {
	r := draw(seed, 3)
	r.shape = rawShape(r.workers, r.shape.MaxValue)
	r.recycles, r.sweeps, r.options.Faults = false, false, nil
	return r
}

// rawSeeds are enough to find RAW out; about every third does.
const rawSeeds = 20

// TestRawIsNotLinearizable: the runs in which SWARM's answers are linearizable (TestContention),
// though nothing is amiss but the network, show that RAW's are not.
func TestRawIsNotLinearizable(t *testing.T) {
	found := 0
	for seed := range uint64(rawSeeds) {
		r := drawRaw(seed)
		var violation *check.Violation
		switch err := r.play(new(Stats)); {
		case errors.As(err, &violation):
			if found++; found == 1 {
				t.Logf("seed %d: %v", seed, err)
			}
		case err != nil:
			t.Errorf("seed %d: %v", seed, err)
		}
	}
	if found == 0 {
		t.Errorf("none of %d runs shows that RAW does not synchronize", rawSeeds)
	}
	t.Logf("%d of %d runs are not linearizable", found, rawSeeds)
}

// smallRaw is a pool of RAW's that is quickly made.
func smallRaw(nodes int) Params {
	p := small(nodes, 1, false)
	p.Words, p.Locks = 0, 0
	return p
}

// TestRawStoreTrips: GET and UPDATE take RAW one trip; what the index takes comes on top, as for
// the others.
func TestRawStoreTrips(t *testing.T) {
	f := storePool(t, 3, smallRaw(3))
	x, y := storeOn(t, f, StoreOptions{Raw: true}), storeOn(t, f, StoreOptions{Raw: true})
	key, value := []byte("key"), make([]byte, 1000)
	for _, s := range []*Store{x, y} { // they have buffers of the index, and objects
		s.stock(t)
	}
	trips := func(what string, s *Store, want uint64, wantErr error, op func() error) {
		t.Helper()
		var err error
		n := trace.Trips(s.ep, func() { err = op() })
		if !errors.Is(err, wantErr) || n.Trips != want {
			t.Errorf("%s: %v, and takes %d trips, want %d (%+v)", what, err, n.Trips, want, n)
		}
	}
	get := func(s *Store) func() error { return func() error { _, err := s.Get(key); return err } }
	update := func(s *Store) func() error { return func() error { return s.Update(key, value) } }
	trips("INSERT", x, 4, nil, func() error { return x.Insert(key, value) })
	trips("GET", x, 1, nil, get(x))
	trips("UPDATE", x, 1, nil, update(x))
	trips("GET of what is not cached", y, 2, nil, get(y))
	trips("UPDATE", y, 1, nil, update(y))
	trips("GET behind it", x, 1, nil, get(x))
	trips("DELETE", x, 4, nil, func() error { return x.Delete(key) })
	trips("GET of what is known to be there no more", y, 1+1+1, client.ErrNotFound, get(y))
	trips("UPDATE of what was deleted", y, 1+1, client.ErrNotFound, update(y))
	trips("INSERT of what was deleted", y, 4+2, nil, func() error { return y.Insert(key, value) })
	trips("UPDATE of what is not cached", x, 3, nil, update(x))
	read, write := get(x), update(x)
	if n := testing.AllocsPerRun(100, func() { must(t, write()); must(t, read()) }); n != 0 {
		t.Errorf("UPDATE and GET make %v allocations", n)
	}
	if r, err := Check(f); err != nil || len(r.Damage) > 0 {
		t.Errorf("%v, %v", r.Damage, err)
	}
}

// exploredRaw is a store of RAW's as the explorer sees it.
func exploredRaw() *explore.Subject {
	p := Params{Replicas: 1, Clients: 24, PairBytes: 400, Regions: 2, Objects: 400, Values: Buffers{1, 1},
		Index: Buffers{1, 500}, Buckets: 4, Timeout: 20 * time.Millisecond}
	return &explore.Subject{
		Name: FormatRaw, Handler: node.Serve, Clients: p.Clients, Timeout: p.Timeout, MaxValue: 300,
		Memory: func(s explore.Shape) (uint64, error) {
			l, err := newPlan(p, s.Nodes)
			if err != nil {
				return 0, err
			}
			return l.bytes, nil
		},
		Format: func(f rdma.Fabric, _ explore.Shape) error { return Make(f, p) },
		Open: func(ep rdma.Endpoint, cache bool) (client.Store, error) {
			o := StoreOptions{Raw: true}
			if !cache {
				o.CacheBytes = new(0)
			}
			return OpenStore(ep, o)
		},
		Check: Check,
	}
}

// TestRawStoreIsNotLinearizable: so says the explorer, too, and finds nothing else wrong first.
func TestRawStoreIsNotLinearizable(t *testing.T) {
	r := exploredRaw().Fuzz(t.Context(), explore.Search{First: 1, Runs: 50, Limits: explore.Limits{Faults: -1}})
	if r.Failure == nil || r.Failure.Guilt != explore.Disorder {
		t.Fatalf("%d runs with %d operations found %v in %v", r.Runs, r.Operations, r.Failure, r.Plan)
	}
	t.Logf("seed %d: %v", r.Seed, r.Failure)
}
