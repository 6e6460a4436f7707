package rowan_test

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
)

// BenchmarkAppend compares, by 16 workers in memory, an APPEND to a ring whose buffers a receiver posts again and again
// with a WRITE and a READ to a log of each worker's own, and with the strawman. All are as long.
func BenchmarkAppend(b *testing.B) {
	const workers, room = 16, 16 << 20
	for _, n := range []int{64, 128, 1024} {
		run := func(name string, op func(ep rdma.Endpoint, worker, i int) error) {
			b.Run(fmt.Sprint(name, "/", n), func(b *testing.B) {
				f := newMem(b, rowan.Options{Base: room, Segments: 1, SegmentBytes: room}, 4096)
				var stop atomic.Bool
				var group, recycler sync.WaitGroup
				recycler.Go(func() { recycle(b, open(b, f, "receiver"), room, &stop) })
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
				b.StopTimer()
				stop.Store(true)
				recycler.Wait()
			})
		}
		run("append", func(ep rdma.Endpoint, _, _ int) error {
			for {
				t := ep.Batch()
				t.Append(rdma.RingAt(0, 1), t.Alloc(n))
				err := rdma.Do(ep, t, patience)
				t.Release()
				if !errors.Is(err, rdma.ErrNoRing) && !errors.Is(err, rdma.ErrRingDry) {
					return err
				}
				runtime.Gosched()
			}
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

// recycle posts the buffers of a ring behind room as soon as they are settled.
func recycle(b *testing.B, ep rdma.Endpoint, room int, stop *atomic.Bool) {
	const buffers = 64
	r, err := rdma.OpenRing(ep, rdma.RingOptions{Node: 0, Number: 1})
	size := room / buffers
	for posted := uint64(0); err == nil && !stop.Load(); {
		if posted < r.Count().Settled+buffers {
			err = r.Post(rdma.Span{Addr: rdma.At(0, uint64(room+int(posted%buffers)*size)), Len: size})
			posted++
		} else {
			ep.Sleep(20 * time.Microsecond)
		}
	}
	if err != nil {
		b.Error(err)
	}
}
