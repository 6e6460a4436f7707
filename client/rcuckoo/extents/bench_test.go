package extents

import (
	"testing"
	"time"

	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/shm"
)

func BenchmarkExtents(b *testing.B) {
	p := small()
	p.SlabExtents, p.ExtentBytes = 256, 1000
	l := lay(b, p, 1)
	f, err := shm.NewMem(shm.Geometry{Nodes: 1, Memory: l.Bytes, Clients: 4}, node.Serve)
	must(b, err)
	defer f.Close()
	must(b, node.Commit(f, 0, 0, l.Areas.Slabs.Base))
	ep, err := f.Open("settler")
	must(b, err)
	defer ep.Close()
	x := openExtents(l, ep)
	key, value := []byte("user1234567890"), make([]byte, 1000)
	b.Run("take, write and mark 1 KB", func(b *testing.B) {
		for b.Loop() {
			r, err := takeNow(x, 0, len(value))
			if err != nil {
				b.Fatal(err)
			}
			batch := ep.Batch()
			l.AddValue(batch, 0, r, key, value)
			l.AddMark(batch, 0, r)
			err = rdma.Do(ep, batch, time.Second)
			batch.Release()
			if err != nil {
				b.Fatal(err)
			}
		}
	})
	r, err := takeNow(x, 0, len(value))
	must(b, err)
	write(b, x, func(batch *rdma.Batch) { l.AddValue(batch, 0, r, key, value) })
	b.Run("read 1 KB", func(b *testing.B) {
		for b.Loop() {
			batch := ep.Batch()
			read := l.AddRead(batch, l.Leads[0], r, key)
			err := rdma.Do(ep, batch, time.Second)
			if _, ok := l.ValueOf(read.Buf, 0, r, key); !ok || err != nil {
				b.Fatal(ok, err)
			}
			batch.Release()
		}
	})
}
