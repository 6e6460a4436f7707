package tcp_test

import (
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// BenchmarkVerbs measures one verb at a time and batches of 16, against a node in this process:
// what it costs includes the node's part.
func BenchmarkVerbs(b *testing.B) {
	f := New(b, 1, 1<<20, nil)
	ep, err := f.Open("bench")
	if err != nil {
		b.Fatal(err)
	}
	defer ep.Close()
	for _, c := range []struct {
		name string
		add  func(batch *rdma.Batch, at rdma.Addr)
		n    int
	}{
		{"read 4K", func(b *rdma.Batch, at rdma.Addr) { b.Read(at, 4096) }, 4096},
		{"write 4K", func(b *rdma.Batch, at rdma.Addr) { b.Write(at, b.Alloc(4096)) }, 4096},
		{"faa", func(b *rdma.Batch, at rdma.Addr) { b.FetchAdd(at, 1) }, 8},
	} {
		for _, depth := range []int{1, 16} {
			b.Run(c.name+map[int]string{1: " alone", 16: " by 16"}[depth], func(b *testing.B) {
				b.ReportAllocs()
				b.SetBytes(int64(c.n))
				for i := 0; i < b.N; i += depth {
					batch := ep.Batch()
					for k := range depth {
						c.add(batch, rdma.At(0, uint64(k)*4096))
					}
					if err := rdma.Do(ep, batch, 10*time.Second); err != nil {
						b.Fatal(err)
					}
					batch.Release()
				}
			})
		}
	}
}
