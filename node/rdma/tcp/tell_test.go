package tcp

import (
	"errors"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/memnode"
	"github.com/farkv/farkv/node/rdma/transport"
)

// TestTell writes without an identity: that goes for what lies behind the store's memory, and not
// with the token that permits to read. Nodes refuse the rest themselves.
func TestTell(t *testing.T) {
	s := transport.Security{Token: []byte("a token of some length"), ReadToken: []byte("another of some length")}
	n, err := memnode.Listen(memnode.Config{Listen: "127.0.0.1:0", Memory: 1 << 20, Security: s})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	o := control.Options{Addresses: []string{n.Addr()}, Security: transport.Security{Token: s.Token}}
	f, err := Create(o, control.Geometry{Nodes: 1, Memory: 32 << 10, Clients: 8, Telemetry: 4096}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	o.Security = transport.Security{ReadToken: s.ReadToken}
	r, err := Open(o)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	const own, behind = 32<<10 - 8, 32 << 10 // the store's last word, and the first of telemetry
	for _, c := range []struct {
		what   string
		f      *Fabric
		off    uint64
		access bool
	}{
		{"the store's memory", f, own, false}, {"telemetry", f, behind, true},
		{"the end of telemetry", f, behind + 4096, false}, {"telemetry with the token of readers", r, behind, false},
	} {
		for verb, add := range map[string]func(b *rdma.Batch) *rdma.Op{
			"WRITE": func(b *rdma.Batch) *rdma.Op { return b.Write(rdma.At(0, c.off), b.Alloc(8)) },
			"FAA":   func(b *rdma.Batch) *rdma.Op { return b.FetchAdd(rdma.At(0, c.off), 1) },
		} {
			w, err := c.f.Anonymous("teller")
			if err != nil {
				t.Fatal(err)
			}
			ep := c.f.endpoint(w) // which leaves it to the node
			b := ep.Batch()
			op := add(b)
			_ = rdma.Do(ep, b, time.Second)
			if access := op.Err == nil; access != c.access || !access && !errors.Is(op.Err, rdma.ErrAccess) {
				t.Errorf("%s to %s: %v", verb, c.what, op.Err)
			}
			b.Release()
			if err := ep.Close(); err != nil {
				t.Error(err)
			}
		}
	}
	ep, err := f.Tell("tell")
	if err != nil {
		t.Fatal(err)
	}
	defer ep.Close()
	b := ep.Batch()
	b.FetchAdd(rdma.At(0, own), 1)
	if err := rdma.Do(ep, b, time.Second); !errors.Is(err, rdma.ErrAccess) {
		t.Errorf("told to the store's memory: %v", err)
	}
	if err := ep.Call(0, new(rdma.Request), time.Second); !errors.Is(err, rdma.ErrAccess) {
		t.Errorf("a call: %v", err)
	}
	if all := f.Clients(); len(all) > 0 || ep.Client() != 0 {
		t.Errorf("clients: %+v", all)
	}
}
