package memnode

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/tcp"
	"github.com/farkv/farkv/node/rdma/transport"
)

// mostTaken bounds what a node may allocate for all that one connection of a fuzzer sends: its
// input and its answers, each of which may have grown a few times, and a message decoded.
const mostTaken = 16 << 20

// What a fuzzer's bytes are.
const (
	asGreeting = iota // all that is sent
	asHello           // the body of a hello
	asVerbs           // all that is sent behind the handshake, for verbs
	asFrames          // the body of a frame of verbs, behind good rights
	asControl         // all that is sent behind the handshake, for control
	asMessage         // the body of a control message
	asAttach          // an offer, behind good rights
	asListen          // what a listen frame has behind good rights
	asRing            // the same of a ring frame
	sortsOfBytes
)

// FuzzNode sends a node bytes. It ends the connection, or answers, and works for others; it takes
// no more memory than it was told to.
func FuzzNode(f *testing.F) {
	g := transport.NewGreeting()
	r := transport.Rights{Client: 1, Life: 1}
	f.Add(uint8(asGreeting), uint8(1),
		append(g[:], frame(transport.KindHello, 0, 0, []byte(`{"purpose":"control","process":"p"}     `))...))
	f.Add(uint8(asHello), uint8(1), []byte(`{"purpose":"verbs","process":"p","node":-1,"proof":"AAAA"}`))
	f.Add(uint8(asVerbs), uint8(1), frame(transport.KindVerbs, 1, 1, faaOf(r, 8)))
	f.Add(uint8(asVerbs), uint8(1), frame(transport.KindPing, 0, 1, nil))
	f.Add(uint8(asFrames), uint8(1), faaOf(r, 8)[transport.RightsBytes:])
	f.Add(uint8(asFrames), uint8(2),
		append(transport.AppendVerb(nil, &rdma.Op{Verb: rdma.Write, Buf: []byte("seven..")}, 0, 0, 7),
			transport.AppendVerb(nil, &rdma.Op{Verb: rdma.Read}, 65536-8, 0, 64)...))
	f.Add(uint8(asControl), uint8(1), frame(transport.KindControl, 0, 1, []byte(`{"do":"inspect"}`)))
	f.Add(uint8(asVerbs), uint8(1), frame(transport.KindServe, 0, 1, nil))
	f.Add(uint8(asFrames), uint8(1), transport.AppendSend(nil, &rdma.Op{
		Verb: rdma.Send, Addr: rdma.At(0, fuzzBox), Buf: []byte("seven.."),
		Spans: []rdma.Span{{Addr: 8, Len: 9}}}, rdma.OwnBoxes+8))
	f.Add(uint8(asListen), uint8(control.ListenOpen), []byte{})
	for what := range control.ListenClose + 2 {
		f.Add(uint8(asListen), uint8(what), listenOf(r, 9, 4, 64, 0)[transport.RightsBytes:])
	}
	f.Add(uint8(asFrames), uint8(1), appendsOf(r, fuzzRing, "seven..")[transport.RightsBytes:])
	f.Add(uint8(asFrames), uint8(2), append(appendsOf(r, fuzzRing, string(make([]byte, 1000)))[transport.RightsBytes:],
		appendsOf(r, 9, "none")[transport.RightsBytes:]...))
	for what := range control.RingClose + 2 {
		f.Add(uint8(asRing), uint8(what), ringOf(r, 9, 1)[transport.RightsBytes:])
	}
	f.Add(uint8(asRing), uint8(control.RingPost), ringOf(r, 9, 1,
		rdma.Span{Addr: 64, Len: 4096})[transport.RightsBytes:])
	for what := range control.AttachRing + control.AttachEnd + 2 {
		f.Add(uint8(asAttach), uint8(what), []byte("an offer"))
	}
	for _, m := range []string{
		`{"do":"inspect"}`, `{"do":"attached","pool":"` + fuzzPool + `"}`, `{"do":"bye"}`, `{"do":"seal"}`,
		`{"do":"board","pool":"` + fuzzPool + `","ask":{"kind":"peekall","key":""}}`,
		`{"do":"board","pool":"` + fuzzPool +
			`","ask":{"kind":"accept","key":"fuzz","ballot":{"counter":1,"proposer":"p"},"state":{"version":1}}}`,
	} {
		f.Add(uint8(asMessage), uint8(1), []byte(m))
	}
	n := newFuzzedNode(f)
	f.Fuzz(func(t *testing.T, sort, items uint8, p []byte) {
		c, said := n.prepare(t, int(sort)%sortsOfBytes, int(items), p)
		if c == nil {
			return
		}
		defer c.Close()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		c.SetDeadline(time.Now().Add(rawPatience))
		var group sync.WaitGroup
		group.Go(func() {
			c.Write(said)
			c.(*net.TCPConn).CloseWrite()
		})
		if _, err := io.Copy(io.Discard, c); isTimeout(err) {
			t.Errorf("the node neither answers nor ends the connection")
		}
		group.Wait()
		n.works(t)
		if runtime.ReadMemStats(&after); after.TotalAlloc-before.TotalAlloc > mostTaken {
			t.Errorf("%d bytes cost %d of memory", len(said), after.TotalAlloc-before.TotalAlloc)
		}
	})
}

func isTimeout(err error) bool {
	e, ok := err.(net.Error)
	return ok && e.Timeout()
}

// fuzzPool is long enough for a pool's name, and known to the seeds.
const fuzzPool = "fuzzed fuzzed fuzzed"

// fuzzBox is a mailbox to which fuzzers may send what they like, and fuzzRing a ring.
const (
	fuzzBox  = 3
	fuzzRing = 4
)

type fuzzedNode struct {
	*rawNode
	mu     sync.Mutex
	worker rdma.Endpoint
}

func newFuzzedNode(f *testing.F) *fuzzedNode {
	node, err := Listen(Config{Listen: "127.0.0.1:0", Memory: 64 << 10})
	if err != nil {
		f.Fatal(err)
	}
	fabric, err := tcp.Create(control.Options{Addresses: []string{node.Addr()}, ID: fuzzPool},
		control.Geometry{Nodes: 1, Memory: 64 << 10, Clients: 8}, nil)
	if err != nil {
		f.Fatal(err)
	}
	n := &fuzzedNode{rawNode: &rawNode{node, fabric, node.pool.Load().key}}
	if n.worker, err = fabric.Open("works"); err != nil {
		f.Fatal(err)
	}
	if _, err := rdma.Listen(n.worker, rdma.BoxOptions{Node: 0, Number: fuzzBox, Slots: 16}); err != nil {
		f.Fatal(err)
	}
	ring, err := rdma.OpenRing(n.worker, rdma.RingOptions{Number: fuzzRing, Buffers: 8})
	if err == nil {
		err = ring.Post(slices.Repeat([]rdma.Span{{Addr: rdma.At(0, 0), Len: 16 << 10}}, 8)...)
	}
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() {
		n.worker.Close()
		fabric.Close()
		node.Close()
	})
	return n
}

// prepare makes a connection for what is to be said, and returns both; nil: that would give the
// node away.
func (n *fuzzedNode) prepare(t *testing.T, sort, items int, p []byte) (net.Conn, []byte) {
	p = append([]byte(nil), p...)
	for len(p)%8 != 0 && (sort == asHello || sort == asFrames || sort == asMessage || sort == asAttach ||
		sort == asListen || sort == asRing) {
		p = append(p, ' ')
	}
	purpose := transport.ForVerbs
	switch sort {
	case asGreeting, asHello:
		c, err := net.Dial("tcp", n.Addr())
		if err != nil {
			t.Fatal(err)
		}
		if g := transport.NewGreeting(); sort == asHello {
			p = append(g[:], frame(transport.KindHello, 0, 0, p)...)
		}
		return c, p
	case asFrames: // of a client that is not the worker
		p = frame(transport.KindVerbs, items, 1, append((&transport.Rights{Key: n.key, Client: 8,
			Life: 1}).Append(nil), p...))
	case asAttach:
		p = frame(transport.KindAttach, items, 1, append((&transport.Rights{Key: n.key, Client: 8,
			Life: 1}).Append(nil), p...))
	case asListen:
		p = frame(transport.KindListen, items, 1, append((&transport.Rights{Key: n.key, Client: 8,
			Life: 1}).Append(nil), p...))
	case asRing:
		p = frame(transport.KindRing, items, 1, append((&transport.Rights{Key: n.key, Client: 8,
			Life: 1}).Append(nil), p...))
	case asControl, asMessage:
		var m control.Message
		body := p
		if sort == asControl && len(p) > transport.HeaderBytes {
			body = p[transport.HeaderBytes:]
		}
		_ = json.Unmarshal(body, &m)
		switch m.Do {
		// they are as good as they say
		case control.DoAdopt, control.DoDrop, control.DoFence, control.DoRevoke, control.DoExpel, control.DoFault:
			return nil, nil
		}
		purpose = transport.ForControl
		if sort == asMessage {
			p = frame(transport.KindControl, 0, 1, p)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), rawPatience)
	defer cancel()
	c, _, err := transport.Dial(ctx, n.Addr(), transport.Security{},
		transport.Hello{Purpose: purpose, Process: transport.NewID(), Pool: fuzzPool})
	if err != nil {
		t.Fatal(err)
	}
	return c, p
}

// works checks that another client's verbs are executed, at a word that fuzzers do not hit on
// purpose.
func (n *fuzzedNode) works(t *testing.T) {
	n.mu.Lock()
	defer n.mu.Unlock()
	b := n.worker.Batch()
	defer b.Release()
	b.FetchAdd(rdma.At(0, 32<<10), 1)
	if err := rdma.Do(n.worker, b, rawPatience); err != nil {
		t.Errorf("the node does not work for others any more: %v", err)
	}
}
