package sim_test

import (
	"fmt"
	"testing"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/sim"
)

// reader posts n batches of two READs and a CAS.
func reader(n int) func(rdma.Endpoint) {
	return func(ep rdma.Endpoint) {
		for i := range n {
			b := ep.Batch()
			off := uint64(i%64) * 1024
			b.Read(rdma.At(0, off), 64)
			b.Read(rdma.At(1, 1<<19+off), 256)
			b.CompareSwap(rdma.At(i%3, 8*uint64(i%8)), uint64(i), uint64(i+1))
			if rdma.Do(ep, b, 1e9) != nil {
				panic("verb failed")
			}
			b.Release()
		}
	}
}

// BenchmarkVerbs reports virtual verbs a second of one core, by clients, on networks that are
// gentle or hostile and on the machines of a profile.
func BenchmarkVerbs(b *testing.B) {
	fusee, err := sim.LookupProfile("fusee-testbed")
	if err != nil {
		b.Fatal(err)
	}
	for _, network := range []struct {
		name string
		o    sim.Options
	}{{"gentle", sim.Options{Seed: 1}}, {"hostile", sim.Hostile(1)}, {fusee.Name, fusee.Options(1, 3)}} {
		for _, clients := range []int{1, 16, 512} {
			b.Run(fmt.Sprintf("%s/clients=%d", network.name, clients), func(b *testing.B) {
				o := network.o
				o.Nodes, o.MaxEvents = 3, 1<<60
				s := sim.New(o)
				defer s.Close()
				for i := range clients {
					s.Go(fmt.Sprint("client ", i), reader(b.N/clients/3+1))
				}
				b.ReportAllocs()
				b.ResetTimer()
				if err := s.Run(); err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "verbs/s")
			})
		}
	}
}

// BenchmarkPools makes, runs and closes a pool of three nodes of 1 MiB with three clients of ten
// batches each.
func BenchmarkPools(b *testing.B) {
	b.ReportAllocs()
	for i := range b.N {
		o := sim.Hostile(uint64(i))
		o.Nodes = 3
		s := sim.New(o)
		for c := range 3 {
			s.Go(fmt.Sprint("client ", c), reader(10))
		}
		if err := s.Run(); err != nil {
			b.Fatal(err)
		}
		s.Close()
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "pools/s")
}
