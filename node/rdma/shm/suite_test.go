package shm

import (
	"testing"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/rdmatest"
)

// harness runs the suite of every fabric on pools that make returns.
func harness(make func(t testing.TB, g Geometry, h rdma.Handler) (*Fabric, error)) rdmatest.Harness {
	return rdmatest.Harness{
		New: func(t testing.TB, nodes int, memory uint64, h rdma.Handler) rdma.Fabric {
			f, err := make(t, Geometry{Nodes: nodes, Memory: memory, Clients: 16}, h)
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := f.Close(); err != nil {
					t.Error(err)
				}
			})
			return f
		},
		Parallel: rdmatest.Goroutines,
		KillNode: func(t testing.TB, f rdma.Fabric, node int) {
			if err := f.(*Fabric).KillNode(node); err != nil {
				t.Error(err)
			}
		},
		Capabilities: rdmatest.Capabilities{MaskedCAS: true, AllocFree: true},
	}
}

func TestSuiteOnMem(t *testing.T) {
	h := harness(func(_ testing.TB, g Geometry, h rdma.Handler) (*Fabric, error) { return NewMem(g, h) })
	h.Beside = func(t testing.TB, f rdma.Fabric, _ int, server func(rdma.Endpoint), clients ...func(rdma.Endpoint)) {
		t.Helper()
		h.Parallel(t, f, append(clients, server)...)
	}
	h.Rings = true
	rdmatest.Run(t, h)
}
