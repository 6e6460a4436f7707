package ibverbs

import (
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/realtime"
)

// BenchmarkAppend compares APPENDs to a ring with WRITEs, with WRITEs that have a READ behind them,
// as APPENDs have, and with the strawman: one worker's, one at a time and 16. They take turns;
// "append/write" is how many WRITEs an APPEND takes. In a guest the clock counts instructions, so
// that other programs do not count:
//
//	.ci/rxe/build ./node/rdma/ibverbs /tmp/verbs.test
//	.ci/rxe/guest -t 900 /tmp/verbs.test -- \
//	    "./verbs.test -rdma 10.77.0.1 -test.run '^$' -test.bench Append -test.benchtime 800x"
func BenchmarkAppend(b *testing.B) {
	needsDevice(b)
	f := newRemote(b, 1, 1<<20)
	ring, err := rdma.OpenRing(worker(b, f.Fabric), rdma.RingOptions{Number: 3})
	r := &refilled{ring: ring, live: map[uint64]rdma.Span{}}
	if err == nil {
		err = r.post(ringBuffers(14, 64<<10)...)
	}
	if err != nil {
		b.Fatal(err)
	}
	from := worker(b, f.Fabric)
	for _, n := range []int{64, 128, 1024, 4096} {
		for _, depth := range []int{1, 16} {
			b.Run(fmt.Sprintf("%d/%d", n, depth), func(b *testing.B) { benchAppends(b, from, r, n, depth) })
		}
	}
}

func benchAppends(b *testing.B, ep *Endpoint, r *refilled, n, depth int) {
	const round = 16 // ops of a kind, before the next kind's turn: they fit into the ring
	do := func(fill func(*rdma.Batch)) {
		t := ep.Batch()
		defer t.Release()
		for range depth {
			t.Chain()
			fill(t)
		}
		if err := rdma.Do(ep, t, testPatience); err != nil {
			b.Fatal(err)
		}
	}
	at := rdma.At(0, ringBase)
	write := func(t *rdma.Batch) { t.Write(at, t.Alloc(n)) }
	writeRead := func(t *rdma.Batch) { write(t); t.Read(at, wordBytes) }
	kinds := []func(){
		func() { do(func(t *rdma.Batch) { t.Append(r.ring.Addr(), t.Alloc(n)) }) },
		func() { do(write) },
		func() { do(writeRead) },
		func() { do(func(t *rdma.Batch) { t.FetchAdd(rdma.At(0, 8), uint64(n)) }); do(writeRead) },
	}
	var took [4]time.Duration
	rounds := b.N/round + 1
	for i := range rounds + 1 {
		for k, one := range kinds {
			began := realtime.Now()
			for range round / depth {
				one()
			}
			if i > 0 { // connections are made in the first
				took[k] += realtime.Now() - began
			}
		}
		if err := r.refill(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(float64(took[0].Nanoseconds())/1000/float64(rounds*round), "us/append")
	for k, name := range []string{1: "append/write", 2: "append/write-read", 3: "append/strawman"} {
		if k > 0 {
			b.ReportMetric(float64(took[0])/float64(took[k]), name)
		}
	}
}
