package tcp_test

import (
	"encoding/binary"
	"errors"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/memnode"
	"github.com/farkv/farkv/node/rdma/tcp"
	"github.com/farkv/farkv/node/rdma/transport"
	"github.com/farkv/farkv/workloads/check/wait"
)

// long asks for the versions that take minutes.
var long = os.Getenv("FARKV_LONG") == "1"

// limit bounds each wait; nothing that is alive takes nearly as long.
const limit = 20 * time.Second

// do runs one batch of one verb.
func do(ep rdma.Endpoint, add func(b *rdma.Batch) *rdma.Op) (uint64, error) {
	b := ep.Batch()
	defer b.Release()
	op := add(b)
	err := rdma.Do(ep, b, limit)
	if op.Verb == rdma.Read && err == nil {
		return binary.LittleEndian.Uint64(op.Buf), nil
	}
	return op.Result, err
}

func load(ep rdma.Endpoint, node int, off uint64) (uint64, error) {
	return do(ep, func(b *rdma.Batch) *rdma.Op { return b.Read(rdma.At(node, off), 8) })
}

func add(ep rdma.Endpoint, node int, off uint64) (uint64, error) {
	return do(ep, func(b *rdma.Batch) *rdma.Op { return b.FetchAdd(rdma.At(node, off), 1) })
}

func store(ep rdma.Endpoint, node int, off uint64, p []byte) error {
	_, err := do(ep, func(b *rdma.Batch) *rdma.Op {
		buf := b.Alloc(len(p))
		copy(buf, p)
		return b.Write(rdma.At(node, off), buf)
	})
	return err
}

var eventually = wait.Until

// attach opens an endpoint that ends with the test.
func attach(t testing.TB, f *tcp.Fabric, name string) rdma.Endpoint {
	t.Helper()
	ep, err := f.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ep.Close() }) // the pool may be gone
	return ep
}

// opened opens a pool by its nodes' addresses, for as long as the test lasts.
func opened(t testing.TB, o control.Options) *tcp.Fabric {
	t.Helper()
	f, err := tcp.Open(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { f.Close() })
	return f
}

// created makes a pool on nodes.
func created(t testing.TB, o control.Options, g control.Geometry) *tcp.Fabric {
	t.Helper()
	f, err := tcp.Create(o, g, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := f.Close(); err != nil {
			t.Error(err)
		}
	})
	return f
}

// behind starts n nodes, each behind a proxy that is its address for all processes, and makes a
// pool of them.
func behind(t testing.TB, n int, lease time.Duration, h rdma.Handler) (*pool, []*proxy) {
	t.Helper()
	nodes, addrs := start(t, n, 1<<20, h)
	var proxies []*proxy
	for i, addr := range addrs {
		proxies = append(proxies, newProxy(t, addr))
		addrs[i] = proxies[i].addr()
	}
	f := created(t, control.Options{Addresses: addrs, Lease: lease},
		control.Geometry{Nodes: n, Memory: 1 << 20, Clients: 16})
	return &pool{f, nodes}, proxies
}

// down reports whether err says that a node is down, or is nil.
func downOrNil(err error) bool { return err == nil || errors.Is(err, rdma.ErrNodeDown) }

// heap is how many bytes are in use.
func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// TestFullNode: a node that has no place for a connection is, for verbs, one that is down, and the
// pool is not full. A process that cannot open a pool at all for that reason is told so.
func TestFullNode(t *testing.T) {
	_, addrs := start(t, 2, 1<<20, nil)
	full, err := memnode.Listen(memnode.Config{Listen: "127.0.0.1:0", Memory: 1 << 20, Conns: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { full.Close() })
	addrs = append(addrs, full.Addr())
	created(t, control.Options{Addresses: addrs}, geometry(3))
	ep := attach(t, opened(t, control.Options{Addresses: addrs[:2]}), "second")
	for what, err := range map[string]error{
		"a verb": func() error { _, err := add(ep, 2, 0); return err }(), "a call": ep.Call(2, &rdma.Request{}, limit),
	} {
		if !errors.Is(err, rdma.ErrNodeDown) || errors.Is(err, rdma.ErrFull) ||
			!strings.Contains(err.Error(), "2 connections") {
			t.Errorf("%s of a node that is full: %v", what, err)
		}
	}
	if _, err := tcp.Open(control.Options{Addresses: addrs[2:]}); !errors.Is(err, transport.ErrConnections) ||
		errors.Is(err, rdma.ErrFull) {
		t.Errorf("open a pool by a node that is full: %v", err)
	}
}
