package measure

import (
	"bytes"
	"testing"

	"go.uber.org/goleak"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/rdma"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// loaded makes a store's pool of few records, and a meter of one worker on it.
func loaded(t testing.TB, name string) (*Bench, *stores.Pool, *meter) {
	t.Helper()
	b := small()
	b.Stores, b.Replicas, b.Records, b.Say = []string{name}, 0, 2000, func(string, ...any) {}
	p, c := b.loadPool(t, name)
	ep, err := p.Fabric.Open("meter")
	if err != nil {
		t.Fatal(err)
	}
	m := &meter{ctx: t.Context(), ops: costOps, spec: c.Spec, ep: &recorder{Endpoint: ep}, rnd: ep.Rand()}
	if m.store, err = p.Kind.Open(m.ep, stores.Options{Fabric: p.Fabric}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.store.Close(); err != nil {
			t.Error(err)
		}
		if err := ep.Close(); err != nil {
			t.Error(err)
		}
	})
	if _, err := m.warm(0); err != nil {
		t.Fatal(err)
	}
	if m.floor, err = b.newFloor(p); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := m.floor.close(); err != nil {
			t.Error(err)
		}
	})
	return &b, p, m
}

// TestFloor: the floor of each store is the verbs that this store has posted, no others, and as
// many doorbells. Where servers take part there is none.
func TestFloor(t *testing.T) {
	for _, name := range stores.Names() {
		if k, err := stores.Lookup(name); err != nil || k.Serve != nil {
			continue
		}
		_, _, m := loaded(t, name)
		var all rdma.Counters
		for _, c := range []struct {
			what string
			into *batches
			do   func() error
		}{{"Get", &m.gets, m.get}, {"Update", &m.updates, m.update}} {
			before := *m.ep.Counters()
			if err := m.record(c.into, c.do); err != nil {
				t.Fatalf("%s: %s: %v", name, c.what, err)
			}
			store := m.ep.Counters().Sub(before)
			before = *m.floor.ep.Counters()
			if err := m.floor.replay(c.into); err != nil {
				t.Fatalf("%s: the floor of %s: %v", name, c.what, err)
			}
			floor := m.floor.ep.Counters().Sub(before)
			store.Trips, store.Calls, floor.Trips = 0, 0, 0 // the floor waits for each batch, and calls no server
			if store != floor {
				t.Errorf("%s: %s posts\n%+v, and its floor\n%+v", name, c.what, store, floor)
			}
			all = all.Add(floor)
		}
		if all.BytesRead < costOps*1000 || all.BytesWrote < costOps*1000 {
			t.Errorf("%s: %+v is less than the values", name, all)
		}
		if n := len(m.gets.ends); m.get() != nil || len(m.gets.ends) != n {
			t.Errorf("%s: batches are noted without being asked for", name)
		}
	}
}

// TestFloorIsACopy: the floor's memory has what the pool has, at the same places.
func TestFloorIsACopy(t *testing.T) {
	_, p, m := loaded(t, "fusee")
	ep, err := p.Fabric.Open("compare")
	if err != nil {
		t.Fatal(err)
	}
	defer ep.Close()
	some := 0
	for n := range p.Fabric.Nodes() {
		for off := uint64(0); off < p.Fabric.Size(); off += copyBytes {
			size := int(min(copyBytes, p.Fabric.Size()-off))
			here, there := ep.Batch(), m.floor.ep.Batch()
			a, b := here.Read(rdma.At(n, off), size), there.Read(rdma.At(n, off), size)
			if err := rdma.Do(ep, here, floorTimeout); err != nil {
				t.Fatal(err)
			}
			if err := rdma.Do(m.floor.ep, there, floorTimeout); err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(a.Buf, b.Buf) {
				t.Errorf("node %d differs within %d bytes at %#x", n, size, off)
			}
			some += size - bytes.Count(a.Buf, []byte{0})
			here.Release()
			there.Release()
		}
	}
	if some < int(m.spec.InsertCount)*m.spec.FieldCount*m.spec.FieldLength {
		t.Errorf("only %d bytes are not zero", some)
	}
}

// BenchmarkFloor is what the harness takes to post the batches of an operation.
func BenchmarkFloor(b *testing.B) {
	for _, name := range []string{"fusee", "rcuckoo", "raw"} {
		_, _, m := loaded(b, name)
		for what, of := range map[string]struct {
			into *batches
			do   func() error
		}{"Get": {&m.gets, m.get}, "Update": {&m.updates, m.update}} {
			if err := m.record(of.into, of.do); err != nil {
				b.Fatal(err)
			}
			b.Run(name+"/"+what, func(b *testing.B) {
				b.ReportAllocs()
				for b.Loop() {
					if err := m.floor.replay(of.into); err != nil {
						b.Fatal(err)
					}
				}
				b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*costOps), "ns/operation")
			})
		}
	}
}
