package ops

import (
	"encoding/binary"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/farkv/farkv/node/rdma"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The floor issues what its comment says, in as many trips, and its CASes succeed on every replica.
func TestFloor(t *testing.T) {
	for _, replicas := range []int{1, 2, 3} {
		f, err := newFloor("mem:", 3, replicas, 100, 1088)
		if err != nil {
			t.Fatal(err)
		}
		before := *f.ep.Counters()
		if err := f.get(42); err != nil {
			t.Error(err)
		}
		r := uint64(replicas)
		got := f.ep.Counters().Sub(before)
		if got.Trips != 1 || got.Reads != 2 || got.Verbs() != 2 || got.BytesRead != 8+1088 {
			t.Errorf("%d replicas: get took %+v", replicas, got)
		}
		before = *f.ep.Counters()
		const times = 3
		for range times {
			if err := f.update(42, []byte("value")); err != nil {
				t.Error(err)
			}
		}
		trips := uint64(4)
		if replicas == 1 {
			trips = 3 // there is no backup to CAS
		}
		got = f.ep.Counters().Sub(before)
		if got.Trips != times*trips || got.Reads != times*2 || got.Writes != times*2*r || got.Atomics != times*r {
			t.Errorf("%d replicas: updates took %+v", replicas, got)
		}
		for i := range replicas {
			if w := word(t, f.ep, f.slotAt(42, i)); w != 1+times {
				t.Errorf("%d replicas: after %d updates replica %d holds %d", replicas, times, i, w)
			}
		}
		f.close()
	}
}

func word(t *testing.T, ep rdma.Endpoint, a rdma.Addr) uint64 {
	b := ep.Batch()
	defer b.Release()
	op := b.Read(a, 8)
	if err := rdma.Do(ep, b, time.Second); err != nil {
		t.Fatal(err)
	}
	return binary.LittleEndian.Uint64(op.Buf)
}

func BenchmarkFloor(b *testing.B) {
	const records = 100_000
	f, err := newFloor("mem:", 3, 2, records, 1088)
	if err != nil {
		b.Fatal(err)
	}
	defer f.close()
	value := make([]byte, 1024)
	for name, do := range map[string]func(uint64) error{
		"Get":    f.get,
		"Update": func(n uint64) error { return f.update(n, value) },
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := do(f.ep.Rand().Uint64N(records)); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
