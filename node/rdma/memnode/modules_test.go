package memnode

import (
	"sync"
	"testing"

	"github.com/farkv/farkv/node/pmem"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/tcp"
)

// TestModules: a model of persistent memory counts what verbs do to the node's memory.
func TestModules(t *testing.T) {
	d, a, b := newModelled(t, 2)
	ring, err := a.OpenRing(rdma.RingOptions{Number: 1})
	if err == nil {
		err = ring.Post(rdma.Span{Addr: rdma.At(0, 64<<10), Len: 64 << 10})
	}
	if err != nil {
		t.Fatal(err)
	}
	batch := b[0].Batch()
	batch.Write(rdma.At(0, 4096), batch.Alloc(128))
	batch.Read(rdma.At(0, 8192), 64)
	batch.FetchAdd(rdma.At(0, 12288), 1)
	batch.Append(rdma.RingAt(0, 1), batch.Alloc(200))
	batch.Write(rdma.At(0, modelled), batch.Alloc(64)) // of telemetry
	if err := rdma.Do(b[0], batch, rawPatience); err != nil {
		t.Fatal(err)
	}
	if w, r := requests(d); w != 2+1+4 || r != 1+1 {
		t.Errorf("the modules count %d writes and %d reads", w, r)
	}
}

// requests are those that modules count, in blocks of 64 bytes.
func requests(d *pmem.Device) (writes, reads uint64) {
	for _, m := range d.Counters() {
		writes, reads = writes+m.WriteRequests, reads+m.ReadRequests
	}
	return writes, reads
}

// newModelled makes a pool of one node with modules, and workers.
func newModelled(t *testing.T, workers int) (d *pmem.Device, first *tcp.Endpoint, others []*tcp.Endpoint) {
	t.Helper()
	d = pmem.NewDevice(pmem.Testbed())
	n, err := Listen(Config{Listen: "127.0.0.1:0", Memory: modelled, Telemetry: beside, Modules: d})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { n.Close() })
	f, err := tcp.Create(control.Options{Addresses: []string{n.Addr()}},
		control.Geometry{Nodes: 1, Memory: modelled, Clients: workers, Telemetry: beside}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	first = attached(t, f)
	for range workers - 1 {
		others = append(others, attached(t, f))
	}
	return d, first, others
}

// modelled is how much memory a node with modules has, and beside how much for telemetry.
const (
	modelled = 64 << 20
	beside   = 64 << 10
)

// TestDLWA: modules write several times as much as they are asked to when many senders write to
// logs of their own, and no more than that when these append to a ring (Rowan 2.4, 6.2). Senders
// write once in each round, in any order; logs are spread evenly over the modules.
func TestDLWA(t *testing.T) {
	const senders, rounds, bytes, logBytes = 144, 80, 64, 256 << 10
	d, receiver, eps := newModelled(t, senders+1)
	round := int(pmem.Testbed().Interleave) * pmem.Testbed().DIMMs
	ring, err := receiver.OpenRing(rdma.RingOptions{Number: 1})
	if err == nil {
		err = ring.Post(rdma.Span{Addr: rdma.At(0, 0), Len: 4 << 20})
	}
	if err != nil {
		t.Fatal(err)
	}
	dlwa := func(write func(b *rdma.Batch, sender, i int)) float64 {
		before := d.Counters()
		for i := range rounds {
			var group sync.WaitGroup
			for s, ep := range eps {
				group.Go(func() {
					b := ep.Batch()
					defer b.Release()
					write(b, s, i)
					if err := rdma.Do(ep, b, rawPatience); err != nil {
						t.Error(err)
					}
				})
			}
			group.Wait()
		}
		var asked, media float64
		for _, m := range pmem.Rates(before, d.Counters(), 1) {
			asked, media = asked+m.RequestWrote, media+m.MediaWritten
		}
		return media / asked
	}
	exclusive := dlwa(func(b *rdma.Batch, s, i int) {
		at := s * (logBytes + round/senders) &^ (bytes - 1)
		b.Write(rdma.At(0, uint64(8<<20+at+i*bytes)), b.Alloc(bytes))
	})
	appended := dlwa(func(b *rdma.Batch, _, _ int) { b.Append(ring.Addr(), b.Alloc(bytes)) })
	t.Logf("DLWA %.2f, appended %.2f", exclusive, appended)
	if exclusive < 1.5 || appended > 1.05 {
		t.Errorf("DLWA %.2f of logs of their own, %.2f of a ring", exclusive, appended)
	}
}

func attached(t *testing.T, f *tcp.Fabric) *tcp.Endpoint {
	t.Helper()
	ep, err := f.Open("worker")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ep.Close() })
	return ep.(*tcp.Endpoint)
}
