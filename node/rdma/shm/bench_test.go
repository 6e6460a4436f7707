package shm

import (
	"math/rand/v2"
	"testing"

	"github.com/farkv/farkv/node/rdma"
)

// A cold benchmark reads from 100,000 records of 1 KB, out of cache.
var (
	hot  = benchmark{records: 1, size: 128}
	cold = benchmark{records: 100_000, size: 1024}
)

type benchmark struct{ records, size uint64 }

func (m benchmark) geometry() Geometry {
	return Geometry{Nodes: 1, Memory: m.records * m.size, Clients: 1}
}

func (m benchmark) onMem(b *testing.B) {
	f, err := NewMem(m.geometry(), nil)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	m.run(b, f)
}

// run measures a batch of one READ, and the memory copy that it makes.
func (m benchmark) run(b *testing.B, f *Fabric) {
	records, size := m.records, m.size
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

func BenchmarkRead128Hot(b *testing.B) { hot.onMem(b) }

func BenchmarkRead1KCold(b *testing.B) { cold.onMem(b) }
