package sim_test

import (
	"fmt"
	"testing"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/rdmatest"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/workloads/check/teeth"
)

// suite runs what every fabric must pass on pools made with o.
func suite(t *testing.T, o sim.Options) {
	rdmatest.Run(t, rdmatest.Harness{
		New: func(t testing.TB, nodes int, memory uint64, h rdma.Handler) rdma.Fabric {
			o := o
			o.Nodes, o.Memory, o.Handler = nodes, memory, h
			return open(t, o)
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
	})
}

// TestSuiteWithStreams runs the suite where entries land in several streams.
func TestSuiteWithStreams(t *testing.T) {
	for _, mtu := range []int{256, 4096} {
		t.Run(fmt.Sprint(mtu), func(t *testing.T) {
			o := sim.Hostile(3)
			o.MTU, o.RingStreams, o.DMAProb = mtu, true, 0.1
			suite(t, o)
		})
	}
}

// TestSuiteOnHardware runs the suite on every profile, as it is, and with everything on that the
// contract allows.
func TestSuiteOnHardware(t *testing.T) {
	if teeth.UnderRace {
		t.Skip("virtual time, in which one task runs at a time; run without -race")
	}
	for _, p := range sim.Profiles() {
		t.Run(p.Name, func(t *testing.T) { suite(t, p.Options(1, 0)) })
		t.Run(p.Name+"/hostile", func(t *testing.T) {
			o := sim.Hostile(2)
			h := p.Hardware
			h.Loss, h.RetransmitTimeout = 0.01, 100_000
			o.Hardware = &h
			suite(t, o)
		})
	}
}
