package ibverbs

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/realtime"
)

// BenchmarkWorkers compares workers with bare loops of the same verbs over the same queue pairs: a
// trip is a READ of 64 bytes, of one of two nodes in turn, or a WRITE of as many with a CAS behind
// it. A post counts as slow when it takes over 1 ms. 'make rxe-speed' runs it in a guest, beside
// the C programs of perftest.
func BenchmarkWorkers(b *testing.B) {
	needsDevice(b)
	f := newRemote(b, 2, 1<<20)
	for _, verbs := range []struct {
		name string
		fill func(*rdma.Batch, int)
	}{
		{"read", func(b *rdma.Batch, node int) { b.Read(rdma.At(node, 4096), 64) }},
		{"write+cas", func(b *rdma.Batch, node int) {
			b.Write(rdma.At(node, 4096), b.Alloc(64))
			b.CompareSwap(rdma.At(node, 8192), 0, 0)
		}},
	} {
		for _, loop := range []struct {
			name string
			trip func(testing.TB, *Endpoint, func(*rdma.Batch, int)) func(node int) (post time.Duration)
		}{{"bare", bareTrip}, {"worker", workerTrip}} {
			for _, workers := range []int{1, 4} {
				b.Run(fmt.Sprintf("%s/%s/%d", verbs.name, loop.name, workers), func(b *testing.B) {
					var trips []func(int) time.Duration
					for range workers {
						t := loop.trip(b, worker(b, f.Fabric), verbs.fill)
						t(0) // connects
						t(1)
						trips = append(trips, t)
					}
					benchTrips(b, trips)
				})
			}
		}
	}
}

// benchTrips shares b.N trips among workers.
func benchTrips(b *testing.B, trips []func(node int) (post time.Duration)) {
	var (
		all  sync.WaitGroup
		took = make([][]time.Duration, len(trips))
		slow = make([]int, len(trips))
	)
	switches, packets, cpu := contextSwitches(), sentPackets(), processorTime()
	b.ResetTimer()
	for i, trip := range trips {
		all.Go(func() {
			for n := range (b.N + i) / len(trips) {
				began := realtime.Now()
				if trip(n&1) > time.Millisecond {
					slow[i]++
				}
				took[i] = append(took[i], realtime.Now()-began)
			}
		})
	}
	all.Wait()
	b.StopTimer()
	every := slices.Concat(took...)
	slices.Sort(every)
	n, slows := float64(len(every)), 0
	for _, s := range slow {
		slows += s
	}
	b.ReportMetric(n/b.Elapsed().Seconds(), "trips/s")
	b.ReportMetric(float64(every[len(every)/2].Microseconds()), "p50-us")
	b.ReportMetric(float64(every[len(every)*99/100].Microseconds()), "p99-us")
	b.ReportMetric(float64(slows)*1000/n, "slow-posts/1000")
	b.ReportMetric(float64(contextSwitches()-switches)/n, "switches/trip")
	b.ReportMetric(float64(sentPackets()-packets)/n, "packets/trip")
	b.ReportMetric(float64((processorTime()-cpu).Nanoseconds())/1000/n, "cpu-us/trip")
	b.ReportMetric(0, "ns/op") // of all workers together: trips/s says it
}

func workerTrip(t testing.TB, ep *Endpoint, fill func(*rdma.Batch, int)) func(node int) (post time.Duration) {
	return func(node int) time.Duration {
		b := ep.Batch()
		defer b.Release()
		fill(b, node)
		began := realtime.Now()
		if err := ep.Post(b); err != nil {
			t.Error(err)
		}
		post := realtime.Now() - began
		ends(t, ep, b, nil)
		return post
	}
}

// bareTrip makes requests of the verbs once; its loop posts them and polls, and does nothing else.
func bareTrip(t testing.TB, ep *Endpoint, fill func(*rdma.Batch, int)) func(node int) (post time.Duration) {
	buf := make([]byte, 64)
	mem, err := ep.fabric.a.register(unsafe.Pointer(&buf[0]), uint64(len(buf)), false)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := mem.close(); err != nil {
			t.Error(err)
		}
	})
	key, _ := mem.keys()
	posts := make([]func(), 2)
	for node := range posts {
		word(t, ep, rdma.At(node, 0)) // connects
		b := ep.Batch()
		defer b.Release()
		fill(b, node)
		p := &ep.peers[node]
		var requests []request
		for i := range b.Len() {
			op := b.Op(i)
			requests = append(requests, request{
				remote: p.base + op.Addr.Offset(), local: uint64(uintptr(unsafe.Pointer(&buf[0]))), key: key,
				n: uint32(op.Len()), op: uint8(op.Verb), a: op.Expect, b: op.Value,
			})
		}
		requests[len(requests)-1].flags = flagSignal
		groups := []group{{pair: p.qp.handle(), key: p.key, n: uint32(len(requests))}}
		posts[node] = func() { ep.cq.post(groups, requests) }
	}
	found := make([]completion, 4)
	return func(node int) time.Duration {
		began := realtime.Now()
		posts[node]()
		post := realtime.Now() - began
		for ep.cq.poll(found, 0) == 0 {
		}
		if found[0].status != statusSuccess {
			t.Error(found[0].err())
		}
		return post
	}
}

func usage(t *unix.Rusage) *unix.Rusage {
	_ = unix.Getrusage(unix.RUSAGE_SELF, t) // fails for no valid argument
	return t
}

func contextSwitches() int64 {
	u := usage(&unix.Rusage{})
	return u.Nvcsw + u.Nivcsw
}

func processorTime() time.Duration {
	u := usage(&unix.Rusage{})
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// sentPackets returns what rxe0 has sent; 0: that is not the device.
func sentPackets() (n int) {
	p, _ := os.ReadFile("/sys/class/infiniband/rxe0/ports/1/hw_counters/sent_pkts")
	n, _ = strconv.Atoi(strings.TrimSpace(string(p)))
	return n
}
