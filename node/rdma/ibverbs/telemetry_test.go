package ibverbs

import (
	"errors"
	"testing"

	"github.com/farkv/farkv/node/rdma"
)

// TestTelemetryMemory: workers reach what lies behind the store's memory, and nothing behind that.
func TestTelemetryMemory(t *testing.T) {
	p := newPool(t, shape{nodes: 1, memory: 8192, telemetry: 4096})
	if p.Size() != 8192 {
		t.Errorf("the store has %d bytes", p.Size())
	}
	ep := worker(t, p.Fabric)
	last := rdma.At(0, 8192+4096-8)
	mustAdd(t, ep, rdma.At(0, 8192), 0)
	mustAdd(t, ep, last, 0)
	if got := word(t, ep, last); got != 1 {
		t.Errorf("the last word is %d", got)
	}
	if _, err := add(ep, rdma.At(0, 8192+4096)); !errors.Is(err, rdma.ErrAccess) {
		t.Errorf("a word that there is none of: %v", err)
	}
}
