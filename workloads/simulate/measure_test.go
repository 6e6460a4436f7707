package simulate

import (
	"math"
	"testing"
	"time"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/workloads/check/teeth"
)

// TestInFlight: a client with more operations in flight does more, with longer latencies, on the
// same core.
func TestInFlight(t *testing.T) {
	var rates, means []float64
	for _, n := range []int{1, 2, 8} {
		c := config(t, "ycsb-c", 4, 8000)
		c.InFlight = n
		r := simulated(t, c)
		mean := r.Call("TOTAL").Latency.Mean
		// Closed loops: every operation in flight is always in a call.
		if busy := r.Throughput * mean / 1e6; math.Abs(busy/float64(4*n)-1) > 0.02 || r.Operations != 8000 ||
			r.InFlight != n {
			t.Errorf("%d in flight: %v calls at a time, %d operations", n, busy, r.Operations)
		}
		for _, m := range r.Machines {
			if m.Compute && m.CPU > 1.001 {
				t.Errorf("%d in flight: a client's core is busy for %v of the time", n, m.CPU)
			}
		}
		rates, means = append(rates, r.Throughput), append(means, mean)
	}
	if rates[1] < 1.5*rates[0] || rates[2] > 6*rates[0] || means[2] < 1.3*means[0] {
		t.Errorf("with 1, 2 and 8 in flight %v operations a second of %v µs", rates, means)
	}
}

// TestKnown: a client that has read all records knows their locations.
func TestKnown(t *testing.T) {
	c := config(t, "ycsb-c", 4, 4000)
	c.WarmUp, c.Options.Own = 0, stores.Values{stores.CacheBytes: 1 << 20}
	cold := simulated(t, c).Call("READ")
	c.Known = true
	known := simulated(t, c).Call("READ")
	if known.TripsAt(1) != 1 || cold.TripsAt(1) != 2 || cold.TripsAt(0.01) != 1 {
		t.Errorf("trips by their shares: %v, and %v with records that clients know", cold.ByTrips, known.ByTrips)
	}
	if cold.ByTrips[1] > 0.9 || math.Abs(cold.ByTrips[1]+2*cold.ByTrips[2]-cold.Trips) > 1e-9 {
		t.Errorf("%v trips a call, by shares %v", cold.Trips, cold.ByTrips)
	}
}

// TestFresh: caches that are too small are as useful for what is measured as for what went before.
func TestFresh(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	c := config(t, "ycsb-c", 2, 4000, "requestdistribution=uniform")
	c.Options.Own = stores.Values{stores.CacheBytes: 24 * 500} // of 2,000 records
	var missed []float64
	for _, c.Fresh = range []bool{false, true} {
		missed = append(missed, simulated(t, c).Call("READ").ByTrips[2])
	}
	if missed[1] < 0.7 || missed[1] > 0.8 {
		t.Errorf("%v of the reads miss a cache of a quarter of the records", missed[1])
	}
	if math.Abs(missed[0]-missed[1]) < 0.001 {
		t.Errorf("%v of the reads miss, and %v when they are others than those of the warm-up", missed[0], missed[1])
	}
}

// TestGapAndLatencyOverTime finds a crash of a memory node where the figures of time show it.
func TestGapAndLatencyOverTime(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	c := config(t, "ycsb-c", 4, 0)
	c.Duration, c.Interval, c.WarmUp = 6*time.Millisecond, time.Millisecond, 20_000
	calm := simulated(t, c)
	if most := calm.Call("TOTAL").Latency.Max; calm.LongestGap < most || calm.LongestGap > 2*most+1 {
		t.Errorf("the longest gap is %v, the longest call took %v", calm.LongestGap, most)
	}
	for _, p := range calm.Points {
		if math.Abs(p.Throughput*p.Latency/4e6-1) > 0.05 {
			t.Errorf("4 clients do %v operations a second of %v µs", p.Throughput, p.Latency)
		}
	}
	c.Faults = "slow node=0 factor=20 at=2ms for=1ms; slow node=1 factor=20 at=2ms for=1ms"
	r := simulated(t, c)
	if fast, slow := r.Points[1].Latency, r.Points[2].Latency; slow < 4*fast {
		t.Errorf("calls take %v µs, and %v while the nodes are slow", fast, slow)
	}
	c.Faults = "partition client=\"client 1\" node=0 at=3ms for=500µs"
	if cut := simulated(t, c); cut.LongestGap < 400 || cut.LongestGap > 1500 {
		t.Errorf("the longest gap is %v µs with a client that is cut off for 500", cut.LongestGap)
	}
}

// TestMemory: the pool's memory holds the records, as often as there are replicas.
func TestMemory(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	c := config(t, "ycsb-c", 2, 10)
	if r := simulated(t, c); r.Memory != nil {
		t.Errorf("%v, without being asked for", r.Memory)
	}
	c.Memory = true
	sum := uint64(0)
	for _, use := range simulated(t, c).Memory {
		sum += use.Bytes
	}
	if least := uint64(2 * c.Spec.RecordCount * int64(c.Spec.PairBytes())); sum < least {
		t.Errorf("%d bytes for records of %d", sum, least)
	}
}
