package trace_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/rdmatest"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/node/rdma/trace"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// run runs one logged worker on a pool with messages of a microsecond each way, and returns the
// log.
func run(t *testing.T, ring *trace.Ring, worker func(ep rdma.Endpoint)) string {
	t.Helper()
	s := sim.New(sim.Options{
		Nodes: 2, MinLatency: time.Microsecond, MaxLatency: time.Microsecond, NodeTimeout: time.Millisecond,
		Handler: func(m rdma.Memory, r *rdma.Request) error { return nil },
	})
	defer s.Close()
	s.KillNode(1)
	s.Go("worker", func(ep rdma.Endpoint) {
		ep.Sleep(10*time.Microsecond - ep.Now())
		worker(ring.Endpoint(ep, "worker"))
	})
	if err := s.Run(); err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	if n, err := ring.WriteTo(&out); err != nil || n != int64(out.Len()) {
		t.Fatal(n, err)
	}
	return out.String()
}

func TestLogReadsAsProse(t *testing.T) {
	got := run(t, trace.NewRing(100), func(ep rdma.Endpoint) {
		b := ep.Batch()
		p := b.Alloc(50)
		clear(p)
		p[0], p[9] = 7, 1
		b.Write(rdma.At(0, 4096), p)
		b.Read(rdma.At(0, 4096), 12)
		rdma.Do(ep, b.As("fill"), rdma.Forever)
		b.Release()
		b = ep.Batch()
		b.CompareSwap(rdma.At(0, 0), 0, 5)
		b.CompareSwap(rdma.At(0, 0), 0, 6).Fence = true
		b.FetchAdd(rdma.At(0, 8), ^uint64(0))
		b.FetchAdd(rdma.At(1, 8), 1)
		ep.Post(b.As("commit"))
		ep.Wait(b, 3, rdma.Forever)
		ep.Call(0, &rdma.Request{Proc: 3}, rdma.Forever)
	})
	want := `
          10µs  worker [fill]: batch 1, WRITE 0:0x1000, 50 bytes: 0x7 0x100 0x0 0x0 ...
          10µs  worker [fill]: batch 1, READ 0:0x1000, 12 bytes: 0x7 0x100
          12µs  worker [commit]: batch 2, CAS 0:0x0 from 0x0 to 0x5: swapped
          12µs  worker [commit]: batch 2, CAS 0:0x0 from 0x0 to 0x6, fenced: met 0x5
          12µs  worker [commit]: batch 2, FAA 0:0x8 by -1: met 0x0
          12µs  worker [commit]: batch 2, FAA 1:0x8 by 1, in flight
          16µs  worker: calls procedure 3 of node 0: answered
`
	if "\n"+got != want {
		t.Errorf("log is\n%s\nwant%s", got, want)
	}
}

func TestRingKeepsTheLast(t *testing.T) {
	ring := trace.NewRing(5)
	run(t, ring, func(ep rdma.Endpoint) {
		for i := range 9 {
			b := ep.Batch()
			b.FetchAdd(rdma.At(0, 0), uint64(i))
			if i == 7 {
				b.FetchAdd(rdma.At(1, 0), 1)
			}
			rdma.Do(ep, b, rdma.Forever)
			b.Release()
		}
	})
	var batches []uint64
	for _, r := range ring.Records() {
		batches = append(batches, r.Batch)
		if !r.Done || (r.Err != nil) != (r.Addr.Node() == 1) {
			t.Errorf("%s", r)
		}
	}
	if fmt.Sprint(batches) != "[6 7 8 8 9]" {
		t.Errorf("kept batches %v", batches)
	}
}

func TestBackgroundBatchesAreBounded(t *testing.T) {
	ring := trace.NewRing(300)
	run(t, ring, func(ep rdma.Endpoint) {
		for range 200 {
			b := ep.Batch()
			b.FetchAdd(rdma.At(0, 0), 1)
			ep.Post(b)
			b.Release()
		}
	})
	if rs := ring.Records(); len(rs) != 200 || rs[199].Done || !strings.HasSuffix(rs[199].String(), "in flight") {
		t.Errorf("%d records, the last %s", len(rs), rs[len(rs)-1])
	}
}

// TestAnswersGoToTheirOwnRecords: a queue uses a batch again, and a ring a record.
func TestAnswersGoToTheirOwnRecords(t *testing.T) {
	ring := trace.NewRing(3)
	run(t, ring, func(ep rdma.Endpoint) {
		post := func(n uint64) *rdma.Batch {
			b := ep.Batch()
			b.FetchAdd(rdma.At(0, 0), n)
			ep.Post(b)
			return b
		}
		old := post(1) // its record is overwritten below
		background := post(2)
		background.Release()
		ep.Sleep(time.Second)
		again := post(3)
		if again != background {
			t.Error("the batch is not used again")
		}
		ep.Wait(again, rdma.All, rdma.Forever)
		last := post(4)
		ep.Wait(old, rdma.All, rdma.Forever)
		last.Release()
	})
	got := ""
	for _, r := range ring.Records() {
		got += fmt.Sprintln(r.Value, r.Done, r.Result)
	}
	if got != "2 false 0\n3 true 3\n4 false 0\n" {
		t.Errorf("records are\n%s", got)
	}
}

func TestRefusedPostAndTasks(t *testing.T) {
	ring := trace.NewRing(10)
	run(t, ring, func(ep rdma.Endpoint) {
		ep.Go("helper", func(own rdma.Endpoint) {
			own.Call(1, &rdma.Request{}, rdma.Forever)
		})
		ep.Sleep(time.Second)
		ep.Close()
		b := ep.Batch()
		b.Write(rdma.At(0, 0), b.Alloc(8))
		ep.Post(b)
	})
	rs := ring.Records()
	if len(rs) != 2 || rs[0].Worker != "helper" || rs[0].Err == nil || rs[1].Worker != "worker" || rs[1].Err == nil {
		t.Errorf("records are %v", rs)
	}
}

func TestTrips(t *testing.T) {
	run(t, trace.NewRing(1), func(ep rdma.Endpoint) {
		got := trace.Trips(ep, func() {
			for range 3 {
				b := ep.Batch()
				b.Read(rdma.At(0, 0), 100)
				rdma.Do(ep, b, rdma.Forever)
				b.Release()
			}
		})
		want := rdma.Counters{Trips: 3, Doorbells: 3, Reads: 3, BytesRead: 300}
		if got != want {
			t.Errorf("counted %+v, want %+v", got, want)
		}
	})
}

// TestSuite runs the suite of every fabric through logged endpoints, all in one ring.
func TestSuite(t *testing.T) {
	ring := trace.NewRing(1000)
	rdmatest.Run(t, rdmatest.Harness{
		New: func(t testing.TB, nodes int, memory uint64, h rdma.Handler) rdma.Fabric {
			o := sim.Hostile(1)
			o.Nodes, o.Memory, o.Handler = nodes, memory, h
			s := sim.New(o)
			t.Cleanup(func() { s.Close() })
			return s
		},
		Parallel: func(t testing.TB, f rdma.Fabric, workers ...func(rdma.Endpoint)) {
			s := f.(*sim.Sim)
			for i, w := range workers {
				name := fmt.Sprint("worker ", i)
				s.Go(name, func(ep rdma.Endpoint) { w(ring.Endpoint(ep, name)) })
			}
			if err := s.Run(); err != nil {
				t.Errorf("%v", err)
			}
		},
		Beside: func(t testing.TB, f rdma.Fabric, node int, server func(rdma.Endpoint),
			clients ...func(rdma.Endpoint)) {
			t.Helper()
			s := f.(*sim.Sim)
			s.GoAt(node, "server", func(ep rdma.Endpoint) { server(ring.Endpoint(ep, "server")) })
			for i, c := range clients {
				s.Go(fmt.Sprint("client ", i), func(ep rdma.Endpoint) { c(ring.Endpoint(ep, "client")) })
			}
			if err := s.Run(); err != nil {
				t.Errorf("%v", err)
			}
		},
		KillNode:     func(t testing.TB, f rdma.Fabric, node int) { f.(*sim.Sim).KillNode(node) },
		Capabilities: rdmatest.Capabilities{MaskedCAS: true, InFlight: true, Rings: true},
	})
}

// TestTripsAndWords: records say in which trip their verbs were, also behind a fence that stalls,
// whether the worker has waited for them, and what atomics made of their words.
func TestTripsAndWords(t *testing.T) {
	ring := trace.NewRing(10)
	run(t, ring, func(ep rdma.Endpoint) {
		b := ep.Batch()
		b.CompareSwap(rdma.At(0, 0), 0, 5)
		b.FetchAdd(rdma.At(0, 8), 3)
		b.MaskedCompareSwap(rdma.At(0, 0), 5, 0xf, 0x20, 0xf0).Fence = true
		b.CompareSwap(rdma.At(0, 8), 0, 1)
		rdma.Do(ep, b.As("first"), rdma.Forever)
		b.Release()
		background := ep.Batch()
		background.Write(rdma.At(0, 16), background.Alloc(8))
		ep.Post(background)
		ep.Call(0, &rdma.Request{}, rdma.Forever)
	})
	got := ""
	for _, r := range ring.From(1) {
		got += fmt.Sprintln(r.Trip, r.Waited, r.Verb, r.Step, r.Result, r.After)
	}
	if want := "1 true FAA first 0 3\n2 true MASKED_CAS first 5 37\n2 true CAS first 3 3\n" +
		"3 false WRITE  0 0\n3 true VERB(0)  0 0\n"; got != want {
		t.Errorf("records are\n%swant\n%s", got, want)
	}
}
