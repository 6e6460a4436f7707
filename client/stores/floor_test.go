package stores

import (
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
)

// noted is an endpoint that keeps what its worker posts.
type noted struct {
	rdma.Endpoint
	batches [][]rdma.Op
}

func (e *noted) Post(b *rdma.Batch) error {
	ops := make([]rdma.Op, b.Len())
	for i := range ops {
		ops[i] = *b.Op(i)
		ops[i].Buf = append([]byte(nil), ops[i].Buf...)
	}
	e.batches = append(e.batches, ops)
	return e.Endpoint.Post(b)
}

// repost posts a batch anew, and waits for it.
func repost(ep rdma.Endpoint, ops []rdma.Op) error {
	b := ep.Batch()
	defer b.Release()
	for i := range ops {
		switch op := &ops[i]; op.Verb {
		case rdma.Read:
			b.Read(op.Addr, len(op.Buf))
		case rdma.Write:
			p := b.Alloc(len(op.Buf))
			copy(p, op.Buf)
			b.Write(op.Addr, p)
		case rdma.CompareSwap:
			b.CompareSwap(op.Addr, op.Expect, op.Value)
		case rdma.MaskedCompareSwap:
			b.MaskedCompareSwap(op.Addr, op.Expect, op.Value, op.CompareMask, op.SwapMask)
		case rdma.FetchAdd:
			b.FetchAdd(op.Addr, op.Value)
		}
	}
	if err := ep.Post(b); err != nil {
		return err
	}
	return ep.Wait(b, rdma.All, time.Second)
}

// BenchmarkFloor compares operations with their verbs alone, which are posted to another pool of the same shape: of the
// time of both, in turns, "x-floor" is the ratio.
func BenchmarkFloor(b *testing.B) {
	const turn = 64 // operations
	for _, store := range steadyStores {
		x, y := newSteady(b, store), newSteady(b, store)
		for _, name := range []string{"get", "update"} {
			for range 3000 {
				must(b, x.ops[name]())
			}
			fatal := func(err error) { // must is slow, as verbs go
				if err != nil {
					b.Fatal(err)
				}
			}
			batches := x.note(b, name)
			ep, err := y.pool.Fabric.Open("floor")
			must(b, err)
			b.Run(store+" "+name, func(b *testing.B) {
				var own, floor time.Duration
				for n := 0; b.Loop(); n++ {
					began := time.Now()
					for range turn {
						fatal(x.ops[name]())
					}
					middle := time.Now()
					for i := range turn {
						for _, ops := range batches[(n*turn+i)%len(batches)] {
							fatal(repost(ep, ops))
						}
					}
					own, floor = own+middle.Sub(began), floor+time.Since(middle)
				}
				b.ReportMetric(float64(own)/float64(floor), "x-floor")
				b.ReportMetric(float64(own)/float64(b.N*turn), "ns/own")
			})
			must(b, ep.Close())
		}
	}
}

// note returns the batches of some operations.
func (x *steady) note(t testing.TB, name string) (all [][][]rdma.Op) {
	t.Helper()
	ep, err := x.pool.Fabric.Open("noted")
	must(t, err)
	e := &noted{Endpoint: ep}
	var s client.Store
	s, err = x.pool.Kind.Open(e, Options{Fabric: x.pool.Fabric})
	must(t, err)
	own := x.s
	x.s = s
	for i := range 3000 {
		e.batches = nil
		if must(t, x.ops[name]()); i >= 1000 { // its cache is warm
			all = append(all, e.batches)
		}
	}
	x.s = own
	must(t, s.Close())
	must(t, ep.Close())
	return all
}
