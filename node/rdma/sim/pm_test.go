package sim_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/farkv/farkv/node/pmem"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/workloads/check/teeth"
)

// optane returns machines of the paper's, with one client a compute node, and one word in the NIC.
func optane(t testing.TB, dimms int) sim.Options {
	t.Helper()
	p, err := sim.LookupProfile("rowan-testbed")
	if err != nil {
		t.Fatal(err)
	}
	o := p.Options(1, 1)
	o.Memory, o.Hardware.ClientsPerNode, o.Hardware.ComputeNodes = 64<<20, 1, 0
	o.PMem, o.Device = &p.PMem, []sim.Range{{Node: 0, Offset: 0, Bytes: 8}}
	o.PMem.DIMMs = dimms
	return o
}

// TestPMemRates: where nothing else is in the way, the modules' media are.
func TestPMemRates(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	const size, clients = 512, 64
	at := func(c, i int) rdma.Addr { return rdma.At(0, uint64(i*clients+c+1)*size) }
	write := func(c, i int, b *rdma.Batch) { b.Write(at(c, i), b.Alloc(size)) }
	one, three := optane(t, 1), optane(t, 3)
	near(t, "million WRITEs to one module", bench(t, open(t, one), clients, 100, write), 2e9/size/1e6, 0.05)
	near(t, "million WRITEs to three", bench(t, open(t, three), clients, 200, write), 6e9/size/1e6, 0.05)
	read := func(c, i int, b *rdma.Batch) { b.Read(at(c, i), size) }
	near(t, "million READs of one module", bench(t, open(t, one), clients, 200, read), 6e9/size/1e6, 0.05)
}

// TestPersistRate: a NIC serves a WRITE with a READ behind it as fast as an APPEND.
func TestPersistRate(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	h := sim.Hardware{Propagation: 500, NodeMops: 20, PersistMops: 15}
	pair := func(c, _ int, b *rdma.Batch) {
		b.Write(rdma.At(0, uint64(8*c)), b.Alloc(8))
		b.Read(rdma.At(0, 0), 8)
	}
	near(t, "million WRITEs and READs", bench(t, open(t, machines(h)), 64, 300, pair), 2*15, 0.05)
	apart := func(_, i int, b *rdma.Batch) {
		if b.Read(rdma.At(0, 0), 8); i%2 == 0 {
			b.Read(rdma.At(0, 0), 8)
		}
	}
	near(t, "million READs", bench(t, open(t, machines(h)), 64, 300, apart), 20, 0.05)
}

// TestPMemLatency: a READ takes longer by what media take longer than main memory, unless the
// module's buffer has it. A READ behind WRITEs of others waits until the modules have these.
func TestPMemLatency(t *testing.T) {
	o := optane(t, 3)
	cold := func(b *rdma.Batch) { b.Read(rdma.At(0, 4096), 64) }
	dram := o
	dram.PMem = nil
	if got, want := idle(t, o, cold), idle(t, dram, cold)+2*pmem.DRAMLatency; got != want {
		t.Errorf("a READ takes %v, want %v", got, want)
	}
	warm := func(b *rdma.Batch) {
		b.Write(rdma.At(0, 4096), b.Alloc(64))
		b.Read(rdma.At(0, 4096), 8)
	}
	if got, want := idle(t, o, warm), idle(t, dram, warm); got != want {
		t.Errorf("a WRITE and a READ of it take %v, want %v", got, want)
	}
	s := open(t, o)
	var took time.Duration
	s.Go("writer", func(ep rdma.Endpoint) {
		b := ep.Batch()
		for i := range 64 {
			b.Write(rdma.At(0, uint64(1<<20+i<<16)), b.Alloc(64<<10))
		}
		if err := rdma.Do(ep, b, rdma.Forever); err != nil {
			t.Error(err)
		}
	})
	s.Go("reader", func(ep rdma.Endpoint) {
		for range 2 { // the second time from the buffer
			from := ep.Now()
			if _, err := rdma.ReadWord(ep, "flush", rdma.At(0, 4096), rdma.Forever); err != nil {
				t.Error(err)
			}
			took = ep.Now() - from
			ep.Sleep(400 * time.Microsecond)
		}
	})
	if err := s.Run(); err != nil {
		t.Fatal(err)
	}
	if took < 4*time.Microsecond { // a module has 64 blocks in its queue, which take it 2 µs, and a WRITE is 1,024
		t.Errorf("a READ behind WRITEs that wait takes %v", took)
	}
}

// TestPMemCounts: verbs are counted as what they do to the modules, in Runs on a random network and
// on hardware, and outside; those of the NIC's own memory are not.
func TestPMemCounts(t *testing.T) {
	verbs := func(ep rdma.Endpoint) error {
		b := ep.Batch()
		b.Write(rdma.At(0, 4096), b.Alloc(128))
		b.Read(rdma.At(0, 8192), 64)
		b.FetchAdd(rdma.At(0, 12288), 1)
		b.FetchAdd(rdma.At(0, 0), 1)
		b.Append(rdma.RingAt(0, 1), b.Alloc(200))
		return rdma.Do(ep, b, rdma.Forever)
	}
	hardware := optane(t, 3)
	random := sim.Options{Seed: 1, Memory: 1 << 20, PMem: hardware.PMem, Device: hardware.Device, Tear: true}
	for name, o := range map[string]sim.Options{"hardware": hardware, "random": random} {
		for _, inside := range []bool{true, false} {
			s := open(t, o)
			var failed error
			work := func(ep rdma.Endpoint) {
				ring, err := rdma.OpenRing(ep, rdma.RingOptions{Number: 1})
				if err == nil {
					err = ring.Post(rdma.Span{Addr: rdma.At(0, 64<<10), Len: 64 << 10})
				}
				if failed = err; err == nil {
					failed = verbs(ep)
				}
			}
			if inside {
				s.GoAt(0, "worker", work)
				if err := s.Run(); err != nil {
					t.Fatal(err)
				}
			} else {
				ep, err := s.Open("loader")
				if err != nil {
					t.Fatal(err)
				}
				work(ep)
			}
			var sum pmem.DIMM
			for _, m := range s.PMem(0).Counters() {
				sum.WriteRequests += m.WriteRequests
				sum.ReadRequests += m.ReadRequests
			}
			if failed != nil || sum.WriteRequests != 2+1+4 || sum.ReadRequests != 1+1 {
				t.Errorf("%s, in a Run: %t: %d writes, %d reads, %v", name, inside, sum.WriteRequests,
					sum.ReadRequests, failed)
			}
		}
	}
}

// TestNTStore: a thread of the node takes what its processor takes, and what modules do that are
// full.
func TestNTStore(t *testing.T) {
	const size, threads, each = 128, 16, 2000
	o := optane(t, 1)
	s := open(t, o)
	var first time.Duration
	p := bytes.Repeat([]byte{7}, size)
	for i := range threads {
		s.GoAt(0, "thread", func(ep rdma.Endpoint) {
			ep.Sleep(time.Duration(i) * time.Microsecond)
			for k := range each {
				from := ep.Now()
				s.NTStore(rdma.At(0, uint64(i<<20+k*size+8192)), p)
				if i == 0 && k == 0 {
					first = ep.Now() - from
				}
			}
		})
	}
	if err := s.Run(); err != nil {
		t.Fatal(err)
	}
	if first != o.Hardware.NTStore {
		t.Errorf("the first takes %v", first)
	}
	near(t, "GB/s", size*threads*each/float64(s.Now()), 2, 0.05)
	ep, err := s.Open("reader")
	if err != nil {
		t.Fatal(err)
	}
	b := ep.Batch()
	read := b.Read(rdma.At(0, 8192+(each-1)*size), size)
	if err := rdma.Do(ep, b, rdma.Forever); err != nil || !bytes.Equal(read.Buf, p) {
		t.Errorf("%x, %v", read.Buf, err)
	}
}

// TestDirect: if told so, a worker reaches the memory of the node that it runs on by its core, past
// the NIC.
func TestDirect(t *testing.T) {
	for _, direct := range []bool{false, true} {
		o := optane(t, 3)
		h := o.Hardware
		h.Direct = direct
		s := open(t, o)
		var write, read time.Duration
		s.GoAt(0, "worker", func(ep rdma.Endpoint) {
			ep.Sleep(time.Microsecond)
			took := func(add func(b *rdma.Batch)) time.Duration {
				from, b := ep.Now(), ep.Batch()
				defer b.Release()
				add(b)
				if err := rdma.Do(ep, b, rdma.Forever); err != nil {
					t.Error(err)
				}
				return ep.Now() - from
			}
			write = took(func(b *rdma.Batch) {
				b.WriteWord(rdma.At(0, 8192), 7)
				b.Read(rdma.At(0, 8192), 8)
			})
			read = took(func(b *rdma.Batch) { b.Read(rdma.At(0, 1<<20), 64) })
			if word, err := rdma.ReadWord(ep, "read back", rdma.At(0, 8192), rdma.Forever); word != 7 || err != nil {
				t.Errorf("%d is there, %v", word, err)
			}
		})
		if err := s.Run(); err != nil {
			t.Fatal(err)
		}
		u := s.Usage()[0]
		switch {
		case !direct && (write < 2*h.Propagation || read < 2*h.Propagation || u.Messages == 0):
			t.Errorf("by the NIC a WRITE takes %v, a READ %v, and %d messages", write, read, u.Messages)
		case direct && (write != h.NTStore || read != o.PMem.ReadLatency || u.Messages > 0 || u.CPU != h.NTStore):
			t.Errorf("past the NIC a WRITE takes %v, a READ %v, both %v of the core and %d messages", write,
				read, u.CPU, u.Messages)
		}
	}
}
