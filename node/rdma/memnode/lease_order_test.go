package memnode

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/tcp"
	"github.com/farkv/farkv/node/rdma/transport"
)

// TestLeasesBeforeTheBoard: while every node of a pool is busy with a long question to the
// registry, all keep their leases.
func TestLeasesBeforeTheBoard(t *testing.T) {
	t.Parallel()
	const lease = 300 * time.Millisecond
	var nodes []*Node
	var addrs []string
	for range 3 {
		n, err := Listen(Config{Listen: "127.0.0.1:0", Memory: 1 << 20})
		if err != nil {
			t.Fatal(err)
		}
		defer n.Close()
		nodes, addrs = append(nodes, n), append(addrs, n.Addr())
	}
	f, err := tcp.Create(control.Options{Addresses: addrs, Lease: lease},
		control.Geometry{Nodes: 3, Memory: 1 << 20, Clients: 8}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, n := range nodes {
		p := n.pool.Load()
		p.registryMu.Lock()
		defer p.registryMu.Unlock()
	}
	time.Sleep(3 * lease)
	for until := time.Now().Add(rawPatience); ; time.Sleep(time.Millisecond) {
		with := 0
		for _, n := range nodes {
			if n.Info().Lease > 0 {
				with++
			}
		}
		if with == len(nodes) {
			return
		}
		if time.Now().After(until) {
			t.Fatalf("%d of %d nodes have a lease", with, len(nodes))
		}
	}
}

// TestReaderSendsMuch: a node takes no frame from a reader that is longer than a reader's can be. A
// reader's own program does not send it: a long WRITE ends as a short one does.
func TestReaderSendsMuch(t *testing.T) {
	full, readOnly := transport.Security{Token: []byte("a token of some length")},
		transport.Security{ReadToken: []byte("another token that reads")}
	n := newRawNode(t, Config{Security: transport.Security{Token: full.Token, ReadToken: readOnly.ReadToken}})
	c, _, err := transport.Dial(t.Context(), n.Addr(), readOnly,
		transport.Hello{Purpose: transport.ForVerbs, Process: transport.NewID(),
			Pool: n.fabric.Record().ID})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(rawPatience))
	before := n.Stats().Breaches
	if _, _, err := say(c, frame(transport.KindVerbs, 1, 1, make([]byte, control.ReaderBody+8))); err == nil {
		t.Error("a reader's long frame was answered")
	}
	for until := time.Now().Add(rawPatience); n.Stats().Breaches == before; time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("a reader's long frame is no breach")
		}
	}
	f, err := tcp.Open(control.Options{Addresses: []string{n.Addr()}, Security: readOnly})
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ep, err := f.Open("reader")
	if err != nil {
		t.Fatal(err)
	}
	defer ep.Close()
	b := ep.Batch()
	defer b.Release()
	op := b.Write(rdma.At(0, 0), b.Alloc(24<<10))
	b.Write(rdma.At(0, 0), b.Alloc(24<<10))
	b.Write(rdma.At(0, 0), b.Alloc(24<<10))
	if rdma.Do(ep, b, rawPatience); !errors.Is(op.Err, rdma.ErrAccess) || n.Stats().Breaches != before+1 {
		t.Errorf("a long WRITE of a reader: %v", op.Err)
	}
}

// TestFit: a node takes as many connections as it was asked for where there are files for them, and
// leaves some files free where there are not.
func TestFit(t *testing.T) {
	for _, files := range []uint64{64, 128, 300, 1024, 4096, 1 << 20} {
		n := &Node{cfg: Config{Conns: DefaultConns}, log: slog.New(slog.DiscardHandler)}
		n.fit(files)
		own := files - uint64(min(n.cfg.Conns+2*n.mostGreeting+adminConns, int(files)))
		switch {
		case n.cfg.Conns < 1 || n.mostGreeting < 1:
			t.Errorf("%d files: %d connections, and %d that say nothing", files, n.cfg.Conns, n.mostGreeting)
		case files >= 4096 && (n.cfg.Conns != DefaultConns || n.mostGreeting < mostGreeting/4):
			t.Errorf("%d files are enough, and it takes %d connections, and %d that say nothing", files,
				n.cfg.Conns, n.mostGreeting)
		case files >= 128 && own < ownFiles:
			t.Errorf("%d files: %d connections and %d that say nothing leave %d", files, n.cfg.Conns, n.mostGreeting,
				own)
		}
	}
}
