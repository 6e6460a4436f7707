package rowan_test

import (
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/realtime"
	"github.com/farkv/farkv/node/rowan"
)

const (
	benchWorkers = 16
	benchRoom    = 4 << 20 // bytes of each log: all of them together are as long
	benchRound   = 200     // ops of a worker of one kind, before the next kind's turn
)

// BenchmarkAppend compares, by 16 workers in memory and over tcp, there as of four processes, an
// APPEND to a ring with a WRITE to a log of each worker's own, with one that has a READ behind it,
// and with the strawman. They take turns, and what is compared is the processor time of all, the
// node's included, so that other programs do not count: "append/write" is how many WRITEs an APPEND
// costs.
func BenchmarkAppend(b *testing.B) {
	log := rowan.Options{Base: benchRoom, Segments: 1, SegmentBytes: benchRoom}
	b.Run("mem", func(b *testing.B) { benchAppend(b, newMem(b, log, 4096)) })
	b.Run("tcp", func(b *testing.B) { benchAppend(b, newTCP(b, log, 4096, 4)...) })
}

func benchAppend(b *testing.B, processes ...rdma.Fabric) {
	receiver := open(b, processes[0], "receiver")
	var workers [benchWorkers]benchWorker
	for i := range workers {
		workers[i] = benchWorker{open(b, processes[i%len(processes)], "worker"), uint64(i) * benchRoom / benchWorkers,
			0}
	}
	for _, n := range []int{64, 128, 1024} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			ring, err := rdma.OpenRing(receiver, rdma.RingOptions{Node: 0, Number: 1})
			if err == nil { // the same memory again and again, as much as there are entries
				err = ring.Post(slices.Repeat([]rdma.Span{{Addr: rdma.At(0, benchRoom), Len: benchRoom}},
					rdma.MaxRingBuffers)...)
			}
			if err != nil {
				b.Fatal(err)
			}
			defer ring.Close()
			kinds := []func(w *benchWorker, n int) error{
				(*benchWorker).append, (*benchWorker).write, (*benchWorker).writeAndRead, (*benchWorker).strawman,
			}
			var took [4]time.Duration
			rounds := b.N/benchWorkers/benchRound + 1
			for range rounds {
				for k, do := range kinds {
					before := realtime.CPU()
					var group sync.WaitGroup
					for i := range workers {
						group.Go(func() {
							for range benchRound {
								if err := do(&workers[i], n); err != nil {
									b.Error(err)
									return
								}
							}
						})
					}
					group.Wait()
					took[k] += realtime.CPU() - before
				}
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(float64(took[0])/float64(rounds*benchWorkers*benchRound), "ns/append")
			for k, name := range []string{1: "append/write", 2: "append/write-read", 3: "append/strawman"} {
				if k > 0 {
					b.ReportMetric(float64(took[0])/float64(took[k]), name)
				}
			}
		})
	}
}

// benchWorker is a worker with a log of its own.
type benchWorker struct {
	ep       rdma.Endpoint
	log, off uint64
}

// place returns the next place for n bytes of the worker's log.
func (w *benchWorker) place(n int) rdma.Addr {
	if w.off += uint64(n); w.off > benchRoom/benchWorkers-uint64(n) {
		w.off = 0
	}
	return rdma.At(0, w.log+w.off)
}

func (w *benchWorker) append(n int) error {
	t := w.ep.Batch()
	defer t.Release()
	t.Append(rdma.RingAt(0, 1), t.Alloc(n))
	return rdma.Do(w.ep, t, patience)
}

func (w *benchWorker) write(n int) error {
	t := w.ep.Batch()
	defer t.Release()
	t.Write(w.place(n), t.Alloc(n))
	return rdma.Do(w.ep, t, patience)
}

func (w *benchWorker) writeAndRead(n int) error { return w.writeTo(w.place(n), n) }

func (w *benchWorker) writeTo(at rdma.Addr, n int) error {
	t := w.ep.Batch()
	defer t.Release()
	t.Chain()
	t.Write(at, t.Alloc(n))
	t.Read(at, 8)
	return rdma.Do(w.ep, t, patience)
}

func (w *benchWorker) strawman(n int) error {
	t := w.ep.Batch()
	defer t.Release()
	place := t.FetchAdd(rdma.At(0, 2*benchRoom), uint64(n)) // behind both logs
	if err := rdma.Do(w.ep, t, patience); err != nil {
		return err
	}
	return w.writeTo(rdma.At(0, place.Result/64*64%(benchRoom-8192)), n)
}
