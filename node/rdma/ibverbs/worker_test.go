package ibverbs

import (
	"encoding/binary"
	"errors"
	"os"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/workloads/check/wait"
)

// long runs longer versions of some tests.
var long = os.Getenv("FARKV_LONG") == "1"

// testPatience bounds what these tests wait for.
const testPatience = 20 * time.Second

// worker opens an endpoint that is closed with the test.
func worker(t testing.TB, f *Fabric) *Endpoint {
	t.Helper()
	ep, err := f.Open("worker")
	if err != nil {
		t.Fatal(err)
	}
	closeAtEnd(t, ep)
	return ep.(*Endpoint)
}

// add raises the word at a by FAA.
func add(ep rdma.Endpoint, a rdma.Addr) (before uint64, err error) {
	b := ep.Batch()
	defer b.Release()
	op := b.FetchAdd(a, 1)
	err = rdma.Do(ep, b, testPatience)
	return op.Result, err
}

func mustAdd(t testing.TB, ep rdma.Endpoint, a rdma.Addr, want uint64) {
	t.Helper()
	if got, err := add(ep, a); err != nil || got != want {
		t.Errorf("the word at %s is %d (%v), want %d", a, got, err, want)
	}
}

// posted posts a WRITE of one word.
func posted(t testing.TB, ep rdma.Endpoint, a rdma.Addr, v uint64) *rdma.Batch {
	t.Helper()
	b := ep.Batch()
	p := b.Alloc(8)
	binary.NativeEndian.PutUint64(p, v)
	b.Write(a, p)
	if err := ep.Post(b); err != nil {
		t.Fatal(err)
	}
	return b
}

// word reads one word.
func word(t testing.TB, ep rdma.Endpoint, a rdma.Addr) uint64 {
	t.Helper()
	b := ep.Batch()
	defer b.Release()
	op := b.Read(a, 8)
	if err := rdma.Do(ep, b, testPatience); err != nil {
		t.Fatal(err)
	}
	return binary.NativeEndian.Uint64(op.Buf)
}

// ends waits for b and expects its ops to fail so; nil: not at all.
func ends(t testing.TB, ep rdma.Endpoint, b *rdma.Batch, want error) {
	t.Helper()
	if err := ep.Wait(b, rdma.All, testPatience); err != nil {
		t.Error(err)
	}
	if err := b.Err(); !errors.Is(err, want) || want == nil && err != nil {
		t.Errorf("the batch ends in %v, want %v", err, want)
	}
}

var eventually = wait.Until

// needsSoft skips a test that has faults happen which a device has too seldom.
func needsSoft(t testing.TB) {
	if *host != "" {
		t.Skip("a real device has no such faults to order: run without -rdma")
	}
}
