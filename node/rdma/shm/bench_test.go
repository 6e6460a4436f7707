package shm

import (
	"math/rand/v2"
	"testing"

	"github.com/farkv/farkv/node/rdma"
)

func benchmarkRead(b *testing.B, records, size uint64) {
	f, err := NewMem(Geometry{Nodes: 1, Memory: records * size, Clients: 1}, nil)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	e, err := f.Open("bench")
	if err != nil {
		b.Fatal(err)
	}
	defer e.Close()
	pool := f.mapping[f.g.first():]
	for i := range pool {
		pool[i] = byte(i) &^ 1
	}
	order := make([]uint64, 1<<17)
	for i := range order {
		order[i] = rand.Uint64N(records) * size
	}
	b.Run("verb", func(b *testing.B) {
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			t := e.Batch()
			t.Read(rdma.At(0, order[i%len(order)]), int(size))
			if e.Post(t) != nil || e.Wait(t, rdma.All, rdma.Forever) != nil {
				b.Fatal("read failed")
			}
			t.Release()
		}
	})
	b.Run("copy", func(b *testing.B) {
		buf := make([]byte, size)
		for i := 0; b.Loop(); i++ {
			at := order[i%len(order)]
			copy(buf, pool[at:at+size])
		}
	})
	// As a verb ends before the next begins, so does each of these copies.
	b.Run("copy-in-turn", func(b *testing.B) {
		buf := make([]byte, size)
		for i := 0; b.Loop(); i++ {
			at := order[(i+int(buf[size-1]&1))%len(order)]
			copy(buf, pool[at:at+size])
		}
	})
}

// BenchmarkRead128Hot is the cost of a batch over the memory copy that it makes.
func BenchmarkRead128Hot(b *testing.B) { benchmarkRead(b, 1, 128) }

// BenchmarkRead1KCold reads from 100,000 records of 1 KB, out of cache.
func BenchmarkRead1KCold(b *testing.B) { benchmarkRead(b, 100_000, 1024) }
