package sim_test

import (
	"encoding/binary"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/workloads/check/teeth"
)

// bench lets clients post batches, made by fill, one after the other, and returns verbs a second of
// virtual time in million.
func bench(t testing.TB, s *sim.Sim, clients, batches int, fill func(client, i int, b *rdma.Batch)) float64 {
	t.Helper()
	verbs := 0
	for c := range clients {
		s.Go(fmt.Sprint("client ", c), func(ep rdma.Endpoint) {
			for i := range batches {
				b := ep.Batch()
				fill(c, i, b)
				verbs += b.Len()
				if err := rdma.Do(ep, b, rdma.Forever); err != nil {
					t.Error(err)
					return
				}
				b.Release()
			}
		})
	}
	if err := s.Run(); err != nil {
		t.Fatal(err)
	}
	return float64(verbs) / float64(s.Now().Microseconds())
}

// near fails t when got is not within some share of want.
func near(t testing.TB, what string, got, want, share float64) {
	t.Helper()
	if math.Abs(got-want) > share*want {
		t.Errorf("%s is %.4g, want %.4g", what, got, want)
	}
}

func machines(h sim.Hardware) sim.Options { return sim.Options{Seed: 1, Nodes: 4, Hardware: &h} }

func read(node int, n int) func(int, int, *rdma.Batch) {
	return func(_, _ int, b *rdma.Batch) { b.Read(rdma.At(node, 0), n) }
}

func TestThroughputOfEachPart(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	const far = 500 * time.Nanosecond
	spread := func(n int) func(int, int, *rdma.Batch) { // 1 KB from each of the four nodes in turn
		return func(c, i int, b *rdma.Batch) { b.Read(rdma.At((c+i)%4, 0), n) }
	}
	write := func(_, _ int, b *rdma.Batch) { b.Write(rdma.At(0, 4096), b.Alloc(1024)) }
	device := []sim.Range{{Node: 0, Offset: 0, Bytes: 4096}}
	hot := func(_, _ int, b *rdma.Batch) { b.CompareSwap(rdma.At(0, 64), 0, 0) }
	cold := func(c, i int, b *rdma.Batch) { b.CompareSwap(rdma.At(0, uint64(c*8)), 0, 0) }
	atomics := sim.Hardware{
		Propagation: far, AtomicMops: 20, AtomicWordMops: 3, DeviceMops: 40, DeviceWordMops: 9, NodeMops: 75,
	}
	for _, c := range []struct {
		name   string
		h      sim.Hardware
		device []sim.Range
		fill   func(int, int, *rdma.Batch)
		want   float64
	}{
		{"the node's link, READs of 1 KB", sim.Hardware{LinkGbps: 56, Header: 26, Propagation: far}, nil,
			read(0, 1024), 56e3 / 8 / (1024 + 26 + 4)},
		{"the node's link, WRITEs of 1 KB", sim.Hardware{LinkGbps: 56, Header: 26, Propagation: far}, nil,
			write, 56e3 / 8 / (1024 + 26 + 16)},
		{"the node's link, packets of 256 B", sim.Hardware{LinkGbps: 56, Header: 26, MTU: 256, Propagation: far}, nil,
			read(0, 1024), 56e3 / 8 / (1024 + 4*(26+4))},
		{"the compute node's link", sim.Hardware{LinkGbps: 56, Header: 26, Propagation: far, ClientsPerNode: 64}, nil,
			spread(1024), 56e3 / 8 / (1024 + 26 + 4)},
		{"four nodes' links", sim.Hardware{LinkGbps: 10, Header: 26, Propagation: far}, nil,
			spread(1024), 4 * 10e3 / 8 / (1024 + 26 + 4)},
		{"the node's message rate", sim.Hardware{LinkGbps: 100, Propagation: far, NodeMops: 26}, nil, read(0, 8), 26},
		{"the compute node's message rate", sim.Hardware{Propagation: far, NodeMops: 75,
			ClientMops: 12, ClientsPerNode: 64},
			nil, spread(8), 12},
		{"two compute nodes' message rates", sim.Hardware{Propagation: far, NodeMops: 75,
			ClientMops: 12, ClientsPerNode: 32},
			nil, spread(8), 24},
		{"PCIe, READs", sim.Hardware{LinkGbps: 100, Propagation: far, PCIe: far, PCIeGbps: 50}, nil,
			read(0, 1024), 50e3 / 8 / 1024},
		{"PCIe, WRITEs", sim.Hardware{LinkGbps: 100, Propagation: far, PCIe: far, PCIeGbps: 50}, nil,
			write, 50e3 / 8 / 1024},
		{"atomics on one word", atomics, nil, hot, 3},
		{"atomics on many words", atomics, nil, cold, 20},
		{"atomics on one word of the device", atomics, device, hot, 9},
		{"atomics on many words of the device", atomics, device, cold, 40},
	} {
		o := machines(c.h)
		o.Device = c.device
		near(t, c.name, bench(t, open(t, o), 64, 300, c.fill), c.want, 0.05)
	}
}

// idle is what one batch takes when there is no other worker, on the worker's clock.
func idle(t testing.TB, o sim.Options, fill func(b *rdma.Batch)) (took time.Duration) {
	t.Helper()
	s := open(t, o)
	s.Go("client", func(ep rdma.Endpoint) {
		b := ep.Batch()
		fill(b)
		before := ep.Now()
		if err := rdma.Do(ep, b, rdma.Forever); err != nil {
			t.Error(err)
		}
		took = ep.Now() - before
	})
	if err := s.Run(); err != nil {
		t.Fatal(err)
	}
	return took
}

func TestIdleLatency(t *testing.T) {
	h := sim.Hardware{
		LinkGbps: 8, Header: 100, MTU: 1000, Propagation: 500, // a byte takes a nanosecond
		ClientMops: 10, NodeMops: 5, PCIe: 300, PCIeGbps: 8, AtomicMops: 1, AtomicWordMops: 1,
		Doorbell: 200, Verb: 50, Poll: 100,
	}
	o := machines(h)
	o.Device = []sim.Range{{Node: 1, Offset: 64, Bytes: 8}}
	const cpu, way = 200 + 50 + 100, 2 * 500
	for _, c := range []struct {
		name string
		fill func(b *rdma.Batch)
		want time.Duration
	}{
		{"READ", func(b *rdma.Batch) {
			b.Read(rdma.At(0, 0), 1500)
		}, cpu + way + 300 + (100 + 16) + (2*(100+4) + 1500)},
		{"WRITE", func(b *rdma.Batch) {
			b.Write(rdma.At(0, 0), b.Alloc(1500))
		}, cpu + way + (2*100 + 16 + 1500) + (100 + 4)},
		{"CAS", func(b *rdma.Batch) { b.CompareSwap(rdma.At(0, 0), 0, 1) }, cpu + way + 300 + 128 + 112},
		{"CAS in the device", func(b *rdma.Batch) { b.CompareSwap(rdma.At(1, 64), 0, 1) }, cpu + way + 128 + 112},
		{"CAS beside the device", func(b *rdma.Batch) {
			b.CompareSwap(rdma.At(1, 72), 0, 1)
		}, cpu + way + 300 + 128 + 112},
		{"two nodes", func(b *rdma.Batch) { // two doorbells, the second READ's completion is polled behind the first
			b.Read(rdma.At(0, 0), 8)
			b.Read(rdma.At(1, 0), 8)
		}, 2*(200+50+100) + way + 300 + 116 + 112},
		{"a fence", func(b *rdma.Batch) { // one doorbell, two latencies
			b.CompareSwap(rdma.At(0, 0), 0, 1)
			b.CompareSwap(rdma.At(0, 8), 0, 1).Fence = true
		}, 200 + 2*50 + 2*100 + 2*(way+300+128+112)},
		{"no fence", func(b *rdma.Batch) { // the node's 5 M verbs a second are 200 ns apart
			b.Read(rdma.At(0, 0), 8)
			b.Read(rdma.At(0, 8), 8)
		}, 200 + 2*50 + 2*100 + way + 300 + 116 + 112 + 200},
	} {
		if got := idle(t, o, c.fill); got != c.want {
			t.Errorf("%s takes %v, want %v", c.name, got, c.want)
		}
	}
}

// TestDeviceFence: where the NIC executes atomics on its own memory in order, a fence behind them
// costs nothing, and behind others a latency; what it keeps behind them stays there.
func TestDeviceFence(t *testing.T) {
	h := sim.Hardware{LinkGbps: 8, Propagation: 500, PCIe: 300, PCIeGbps: 8, DeviceMops: 1, DeviceWordMops: 1,
		AtomicMops: 1, AtomicWordMops: 1}
	lock := func(node int) func(b *rdma.Batch) {
		return func(b *rdma.Batch) {
			b.CompareSwap(rdma.At(node, 64), 0, 1)
			b.Read(rdma.At(node, 0), 8).Fence = true
		}
	}
	took := func(free bool, node int) time.Duration {
		o := machines(h)
		o.Hardware.DeviceFence, o.Device = free, []sim.Range{{Node: 1, Offset: 64, Bytes: 8}}
		return idle(t, o, lock(node))
	}
	const latency = 2*500 + 300
	free, stalled, host := took(true, 1), took(false, 1), took(true, 0)
	if free < latency || free >= 2*latency-300 || stalled < free+latency-300 || host < 2*latency {
		t.Errorf("%v behind a CAS on the device, %v if it stalls, %v behind one on memory", free, stalled, host)
	}
	// Others keep the word busy, so that a CAS of it has to wait at the node: what is fenced still
	// sees it.
	o := machines(h)
	o.Hardware.DeviceFence, o.Device, o.Reorder = true, []sim.Range{{Node: 0, Offset: 64, Bytes: 8}}, true
	s := open(t, o)
	for i := range 8 {
		s.Go(fmt.Sprint("client ", i), func(ep rdma.Endpoint) {
			for n := uint64(1); n <= 200; n++ {
				b := ep.Batch()
				swap := b.CompareSwap(rdma.At(0, 64), n-1, n)
				if i > 0 {
					swap.Expect = 1 << 40 // which it never is
				}
				word := b.Read(rdma.At(0, 64), 8)
				word.Fence = true
				if err := rdma.Do(ep, b, rdma.Forever); err != nil {
					t.Error(err)
					return
				}
				if got := binary.LittleEndian.Uint64(word.Buf); i == 0 && got != n {
					t.Errorf("read %d behind a swap to %d", got, n)
				}
				b.Release()
			}
		})
	}
	if err := s.Run(); err != nil {
		t.Fatal(err)
	}
}

// TestBesideShareACore: operations that a thread has in flight hide the network's time from each
// other, but not the CPU's.
func TestBesideShareACore(t *testing.T) {
	rate := func(way time.Duration, lanes int, apart bool) (perMicrosecond float64, places int) {
		s := open(t, machines(sim.Hardware{Doorbell: 200, Verb: 50, Poll: 150, Propagation: way}))
		done := 0
		var first *sim.Worker
		for i := range lanes {
			f := func(ep rdma.Endpoint) {
				for ep.Now() < 400*time.Microsecond {
					b := ep.Batch()
					b.Read(rdma.At(0, 0), 8)
					if err := rdma.Do(ep, b, rdma.Forever); err != nil {
						t.Error(err)
						return
					}
					b.Release()
					done++
				}
			}
			if name := fmt.Sprint("lane ", i); first == nil || apart {
				first = s.Go(name, f)
			} else {
				s.GoOnCoreOf(first, name, f)
			}
		}
		if err := s.Run(); err != nil {
			t.Fatal(err)
		}
		return float64(done) / float64(s.Now().Microseconds()), len(s.Usage()) - 4
	}
	const cpu, way = 400, 800 // ns: what a READ takes of the core, and of the network each way
	for lanes, want := range map[int]float64{1: 1e3 / (cpu + 2*way), 2: 2e3 / (cpu + 2*way), 4: 4e3 / (cpu + 2*way),
		9: 1e3 / cpu} {
		got, places := rate(way, lanes, false)
		near(t, fmt.Sprintf("the rate of %d lanes", lanes), got, want, 0.02)
		if places != 1 {
			t.Errorf("%d lanes of a thread are on %d compute nodes", lanes, places)
		}
	}
	if got, places := rate(way, 9, true); got < 4 || places != 9 {
		t.Errorf("nine threads do %v on %d compute nodes", got, places)
	}
}

// TestHyperThreads: workers of a compute node slow each other down when they are more than its
// cores, and no others.
func TestHyperThreads(t *testing.T) {
	h := sim.Hardware{Doorbell: 200, Verb: 50, Poll: 150, ClientsPerNode: 4, Cores: 2, HyperSpeed: 0.5}
	const alone = 1e3 / 400 // million a second
	for clients, want := range map[int]float64{1: alone, 2: 2 * alone, 3: 2 * alone, 4: 2 * alone, 6: 4 * alone} {
		s := open(t, machines(h))
		done := 0
		for i := range clients {
			s.Go(fmt.Sprint("client ", i), func(ep rdma.Endpoint) {
				for ep.Now() < 400*time.Microsecond {
					b := ep.Batch()
					b.Read(rdma.At(0, 0), 8)
					if err := rdma.Do(ep, b, rdma.Forever); err != nil {
						t.Error(err)
						return
					}
					b.Release()
					done++
				}
			})
		}
		if err := s.Run(); err != nil {
			t.Fatal(err)
		}
		near(t, fmt.Sprintf("the rate of %d clients", clients), float64(done)/float64(s.Now().Microseconds()), want,
			0.02)
	}
}

// TestTheCPUPaysForDoorbellsAndPolling: a client over a network that takes no time is as fast as
// its CPU.
func TestTheCPUPaysForDoorbellsAndPolling(t *testing.T) {
	h := sim.Hardware{Doorbell: 400, Verb: 50, Poll: 150}
	near(t, "a client's rate", bench(t, open(t, machines(h)), 1, 500, read(0, 8)), 1e3/(400+50+150), 0.01)
	both := func(_, _ int, b *rdma.Batch) { b.Read(rdma.At(0, 0), 8); b.Read(rdma.At(0, 64), 8) }
	near(t, "with two verbs a doorbell", bench(t, open(t, machines(h)), 1, 500, both), 2e3/(400+2*50+2*150), 0.01)
	chain := func(_, _ int, b *rdma.Batch) { b.Chain(); both(0, 0, b) }
	near(t, "in one chain", bench(t, open(t, machines(h)), 1, 500, chain), 2e3/(400+2*50+150), 0.01)

	s := open(t, machines(h))
	s.Go("client", func(ep rdma.Endpoint) {
		before := ep.Now()
		for n := range 4 { // posting takes the CPU's time even without a wait
			b := ep.Batch()
			b.Read(rdma.At(n, 0), 8)
			b.Read(rdma.At((n+1)%4, 0), 8)
			ep.Post(b)
			b.Release()
		}
		if took := ep.Now() - before; took != 4*2*(400+50) {
			t.Errorf("four posts to two nodes take %v", took)
		}
		before = ep.Now()
		ep.Sleep(time.Microsecond)
		if took := ep.Now() - before; took != time.Microsecond {
			t.Errorf("a sleep behind them takes %v", took)
		}
	})
	if err := s.Run(); err != nil {
		t.Fatal(err)
	}
}

func TestCallsAtTheCPUsRate(t *testing.T) {
	for cores, want := range map[int]float64{1: 0.5, 4: 2} {
		o := machines(sim.Hardware{Propagation: 500, NodeCores: cores, ServiceTime: 2000, CallLatency: 10_000})
		o.Handler = adder
		s := open(t, o)
		for c := range 64 {
			s.Go(fmt.Sprint("client ", c), func(ep rdma.Endpoint) {
				for range 100 {
					if err := ep.Call(0, new(rdma.Request), rdma.Forever); err != nil {
						t.Error(err)
					}
				}
			})
		}
		if err := s.Run(); err != nil {
			t.Fatal(err)
		}
		near(t, fmt.Sprint("calls of ", cores, " cores"), 6400/float64(s.Now().Microseconds()), want, 0.05)
		near(t, "its CPU's time", s.Usage()[0].CPU.Seconds(), 6400*2e-6, 1e-9)
	}
	o := machines(sim.Hardware{Propagation: 500, ServiceTime: 2000, CallLatency: 10_000, Doorbell: 100, Poll: 50})
	o.Handler = adder
	s := open(t, o)
	s.Go("client", func(ep rdma.Endpoint) {
		before := ep.Now()
		if err := ep.Call(0, new(rdma.Request), rdma.Forever); err != nil || ep.Now()-before != 13_150 {
			t.Errorf("an idle call takes %v (%v)", ep.Now()-before, err)
		}
	})
	if err := s.Run(); err != nil {
		t.Fatal(err)
	}
}

func TestUsage(t *testing.T) {
	h := sim.Hardware{
		ClientsPerNode: 8, LinkGbps: 10, Header: 26, Propagation: 500, NodeMops: 10, ClientMops: 10,
		PCIeGbps: 50, AtomicMops: 10, Doorbell: 100,
	}
	s := open(t, machines(h))
	bench(t, s, 20, 200, read(1, 1024))
	bench(t, s, 1, 50, func(_, _ int, b *rdma.Batch) { b.FetchAdd(rdma.At(2, 0), 1) })
	u := s.Usage()
	if len(u) != 4+3 {
		t.Fatalf("%d machines, want four nodes and three compute nodes", len(u))
	}
	node := u[1]
	if node.Messages != 4000 || node.BytesIn != 4000*(26+16) || node.BytesOut != 4000*(1024+26+4) || node.Compute {
		t.Errorf("node 1: %+v", node)
	}
	near(t, "its link's busy time", node.LinkOut.Seconds(), 4000*(1024+26+4)*8/10e9, 1e-3)
	near(t, "its NIC's busy time", node.NIC.Seconds(), 4000/10e6, 1e-3)
	near(t, "its PCIe's busy time", node.PCIeOut.Seconds(), 4000*1024*8/50e9, 1e-3)
	near(t, "node 2's atomics' busy time", u[2].Atomics.Seconds(), 50/10e6, 1e-3)
	if u[0].Messages != 0 || u[2].Messages != 50 {
		t.Errorf("nodes 0 and 2: %+v, %+v", u[0], u[2])
	}
	for i, workers := range []int{8, 8, 5} { // 20 clients, and one more
		m := u[4+i]
		if !m.Compute || m.Node != i || m.Cores != workers || m.CPU < time.Duration(m.Messages)*100 {
			t.Errorf("compute node %d: %+v", i, m)
		}
	}
	if sum := u[4].BytesIn + u[5].BytesIn + u[6].BytesIn; sum != node.BytesOut+u[2].BytesOut {
		t.Errorf("nodes sent %d bytes, compute nodes got %d", node.BytesOut+u[2].BytesOut, sum)
	}
}

func TestASaturatedLinkIsBusyAllTheTime(t *testing.T) {
	s := open(t, machines(sim.Hardware{LinkGbps: 10, Header: 26, Propagation: 500}))
	bench(t, s, 64, 200, read(0, 1024))
	near(t, "utilisation", s.Usage()[0].LinkOut.Seconds()/s.Now().Seconds(), 1, 0.02)
}

// TestUsageIsWhatWasUsed: what waits for a link has not used it.
func TestUsageIsWhatWasUsed(t *testing.T) {
	s := open(t, machines(sim.Hardware{LinkGbps: 8, Propagation: 500}))
	s.Go("client", func(ep rdma.Endpoint) {
		b := ep.Batch()
		for range 100 {
			b.Read(rdma.At(0, 0), 1020) // the answers take a microsecond each
		}
		ep.Post(b)
		for range 90 {
			ep.Sleep(time.Microsecond)
			if used := s.Usage()[0].LinkOut; used > s.Now()+time.Microsecond || used < s.Now()-4*time.Microsecond {
				t.Errorf("at %v the link was busy for %v", s.Now(), used)
			}
		}
	})
	if err := s.Run(); err != nil {
		t.Fatal(err)
	}
}

func TestADeadNodeUsesNothing(t *testing.T) {
	s := open(t, machines(sim.Hardware{LinkGbps: 10, Propagation: 500}))
	s.Go("client", func(ep rdma.Endpoint) {
		for i := range 10 {
			if i == 4 {
				s.KillNode(0)
			}
			faa(ep, rdma.At(0, 0))
		}
	})
	if err := s.Run(); err != nil {
		t.Fatal(err)
	}
	if n := s.Usage()[0].Messages; n != 4 {
		t.Errorf("a node that died behind 4 verbs has served %d", n)
	}
}

func TestClientsAreDealtToComputeNodes(t *testing.T) {
	for _, c := range []struct {
		h       sim.Hardware
		clients int
		want    []int
	}{
		{sim.Hardware{ClientsPerNode: 3}, 7, []int{3, 3, 1}},
		{sim.Hardware{ClientsPerNode: 3, ComputeNodes: 2}, 4, []int{2, 2}},
		{sim.Hardware{ClientsPerNode: 3, ComputeNodes: 2}, 8, []int{3, 3, 2}},
		{sim.Hardware{}, 2, []int{1, 1}},
	} {
		s := open(t, machines(c.h))
		named := make([]int, len(c.want))
		for i := range c.clients {
			named[s.Go(fmt.Sprint("client ", i), func(rdma.Endpoint) {}).ComputeNode()]++
		}
		if !slices.Equal(named, c.want) {
			t.Errorf("%d clients say that they are on %v, want %v", c.clients, named, c.want)
		}
		var got []int
		for _, u := range s.Usage()[4:] {
			got = append(got, u.Cores)
		}
		if fmt.Sprint(got) != fmt.Sprint(c.want) {
			t.Errorf("%d clients, %d a node, dealt to %d: %v, want %v", c.clients, c.h.ClientsPerNode,
				c.h.ComputeNodes, got, c.want)
		}
	}
}

// TestQueuesDoNotBlockOthers: a verb that waits for a hot word, or for a node that is busy, delays
// no other worker.
func TestQueuesDoNotBlockOthers(t *testing.T) {
	h := sim.Hardware{
		LinkGbps: 100, Header: 26, Propagation: 500, NodeMops: 75, ClientMops: 75, PCIe: 300, PCIeGbps: 100,
		AtomicMops: 50, AtomicWordMops: 0.1, ClientsPerNode: 64,
	}
	s := open(t, machines(h))
	for c := range 40 { // ten microseconds each
		s.Go(fmt.Sprint("hot ", c), func(ep rdma.Endpoint) {
			for range 20 {
				faa(ep, rdma.At(0, 0))
			}
		})
	}
	var slowest time.Duration
	s.Go("other", func(ep rdma.Endpoint) {
		for i := range 500 {
			before := ep.Now()
			b := ep.Batch()
			b.Read(rdma.At(i%2, 4096), 8)
			rdma.Do(ep, b, rdma.Forever)
			b.Release()
			slowest = max(slowest, ep.Now()-before)
		}
	})
	if err := s.Run(); err != nil {
		t.Fatal(err)
	}
	if slowest > 2*time.Microsecond {
		t.Errorf("a READ beside a hot word takes up to %v", slowest)
	}
}
