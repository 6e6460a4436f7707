package rdmatest_test

import (
	"fmt"
	"testing"

	"go.uber.org/goleak"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/rdmatest"
	"github.com/farkv/farkv/node/rdma/sim"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// simHarness runs the suite on pools made with o.
func simHarness(o sim.Options) rdmatest.Harness {
	return rdmatest.Harness{
		New: func(t testing.TB, nodes int, memory uint64, h rdma.Handler) rdma.Fabric {
			o := o
			o.Nodes, o.Memory, o.Handler = nodes, memory, h
			s := sim.New(o)
			t.Cleanup(func() { s.Close() })
			return s
		},
		Parallel: func(t testing.TB, f rdma.Fabric, workers ...func(rdma.Endpoint)) {
			t.Helper()
			s := f.(*sim.Sim)
			for i, w := range workers {
				s.Go(fmt.Sprint("worker ", i), w)
			}
			if err := s.Run(); err != nil {
				t.Errorf("%v", err)
			}
		},
		Beside: func(t testing.TB, f rdma.Fabric, node int, server func(rdma.Endpoint),
			clients ...func(rdma.Endpoint)) {
			t.Helper()
			s := f.(*sim.Sim)
			s.GoAt(node, "server", server)
			for i, c := range clients {
				s.Go(fmt.Sprint("client ", i), c)
			}
			if err := s.Run(); err != nil {
				t.Errorf("%v", err)
			}
		},
		KillNode: func(t testing.TB, f rdma.Fabric, node int) {
			if err := f.(*sim.Sim).KillNode(node); err != nil {
				t.Error(err)
			}
		},
		Capabilities: rdmatest.Capabilities{MaskedCAS: true, AllocFree: true, InFlight: true, Rings: true},
	}
}

func TestSim(t *testing.T) {
	t.Run("gentle", func(t *testing.T) { rdmatest.Run(t, simHarness(sim.Options{Seed: 1})) })
	for seed := range uint64(3) {
		o := sim.Hostile(seed)
		o.MTU, o.CountRings, o.DMAProb = 256, true, 0.05
		t.Run(fmt.Sprint("hostile/", seed), func(t *testing.T) { rdmatest.Run(t, simHarness(o)) })
	}
}
