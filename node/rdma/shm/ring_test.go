package shm

import (
	"encoding/binary"
	"runtime"
	"sync"
	"testing"

	"github.com/farkv/farkv/node/rdma"
)

// TestBlocksLieApart: senders give way to each other between two blocks of an entry: on one
// processor, where nothing else would part them.
func TestBlocksLieApart(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(1))
	const senders, entries, blocks, mtu = 3, 200, 4, 256
	const room = senders * entries * blocks * mtu
	f, err := NewMem(Geometry{Nodes: 1, Memory: room, Clients: senders + 1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	f.Seed, f.MTU = 1, mtu
	receiver, err := f.Open("receiver")
	if err != nil {
		t.Fatal(err)
	}
	defer receiver.Close()
	r, err := rdma.OpenRing(receiver, rdma.RingOptions{Number: 1})
	if err == nil {
		err = r.Post(rdma.Span{Addr: rdma.At(0, 0), Len: room})
	}
	if err != nil {
		t.Fatal(err)
	}
	var group sync.WaitGroup
	start := make(chan struct{})
	for id := range uint64(senders) {
		ep, err := f.Open("sender")
		if err != nil {
			t.Fatal(err)
		}
		group.Go(func() {
			defer ep.Close()
			<-start
			for i := range uint64(entries) {
				b := ep.Batch()
				p := b.Alloc(blocks * mtu)
				for k := range uint64(blocks) {
					binary.LittleEndian.PutUint64(p[k*mtu:], (id*entries+i)*blocks+k)
				}
				b.Append(rdma.RingAt(0, 1), p)
				if err := rdma.Do(ep, b, rdma.Forever); err != nil {
					t.Error(err)
				}
				b.Release()
			}
		})
	}
	close(start)
	group.Wait()
	p, err := rdma.ReadBytes(receiver, "", rdma.At(0, 0), room, rdma.Forever)
	if err != nil {
		t.Fatal(err)
	}
	apart, next := 0, [senders]uint64{}
	for last := ^uint64(0); len(p) > 0; p = p[mtu:] {
		number := binary.LittleEndian.Uint64(p)
		sender, i := number/(entries*blocks), number%(entries*blocks)
		if i != next[sender] {
			t.Fatalf("block %d of sender %d comes where %d is next", i, sender, next[sender])
		}
		next[sender]++
		if number%blocks > 0 && number != last+1 {
			apart++
		}
		last = number
	}
	if apart < entries/10 {
		t.Errorf("%d blocks lie apart from their entries", apart)
	}
}
