package rowan_test

import (
	"fmt"
	"sync"
	"testing"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
)

// BenchmarkAppend compares, by 16 workers in memory, an APPEND to a ring with a WRITE and a READ to a log of each
// worker's own, and with the strawman. All logs together are as long.
func BenchmarkAppend(b *testing.B) {
	const workers, room = 16, 4 << 20
	for _, n := range []int{64, 128, 1024} {
		run := func(name string, op func(ep rdma.Endpoint, worker, i int) error) {
			b.Run(fmt.Sprint(name, "/", n), func(b *testing.B) {
				f := newMem(b, rowan.Options{Base: room, Segments: 1, SegmentBytes: room}, 4096)
				ring, err := rdma.OpenRing(open(b, f, "receiver"), rdma.RingOptions{Node: 0, Number: 1})
				for range rdma.MaxRingBuffers { // the same memory again and again, as much as there are entries
					if err == nil {
						err = ring.Post(rdma.Span{Addr: rdma.At(0, room), Len: room})
					}
				}
				if err != nil {
					b.Fatal(err)
				}
				var group sync.WaitGroup
				var eps [workers]rdma.Endpoint
				for w := range eps {
					eps[w] = open(b, f, "worker")
				}
				b.ResetTimer()
				for w, ep := range eps {
					group.Go(func() {
						for i := range b.N/workers + 1 {
							if err := op(ep, w, i); err != nil {
								b.Error(err)
								return
							}
						}
					})
				}
				group.Wait()
			})
		}
		run("append", func(ep rdma.Endpoint, _, _ int) error {
			t := ep.Batch()
			defer t.Release()
			t.Append(rdma.RingAt(0, 1), t.Alloc(n))
			return rdma.Do(ep, t, patience)
		})
		run("write", func(ep rdma.Endpoint, w, i int) error {
			at := rdma.At(0, uint64(w)*room/workers+uint64(i*n%(room/workers-n)))
			t := ep.Batch()
			defer t.Release()
			t.Chain()
			t.Write(at, t.Alloc(n))
			t.Read(at, 8)
			return rdma.Do(ep, t, patience)
		})
		run("strawman", func(ep rdma.Endpoint, _, _ int) error {
			t := ep.Batch()
			defer t.Release()
			place := t.FetchAdd(rdma.At(0, 0), uint64(n))
			if err := rdma.Do(ep, t, patience); err != nil {
				return err
			}
			at := rdma.At(0, 64+place.Result/64*64%(room-8192))
			u := ep.Batch()
			defer u.Release()
			u.Chain()
			u.Write(at, u.Alloc(n))
			u.Read(at, 8)
			return rdma.Do(ep, u, patience)
		})
	}
}
