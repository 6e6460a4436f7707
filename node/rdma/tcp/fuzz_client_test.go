package tcp

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/farkv/farkv/node/membership"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/realtime"
	"github.com/farkv/farkv/node/rdma/transport"
)

// What a node's bytes are.
const (
	inGreeting = iota // all that it sends
	inWelcome         // the body of its welcome
	inAnswers         // all that it sends behind the handshake
	inVerbs           // the body of the answer to verbs
	inCall            // the body of the answer to a call
	inInfo            // the body of the answer to a question what it is
	inAttach          // the body of the answer to an attach, and to how long it serves
	inMessage         // the body of a message, behind the answer to a listen
	inRing            // the body of the answer to a ring frame
	sortsOfAnswers
)

// FuzzClient has a client talk to a node that answers bytes. Whatever they are, its verbs end, in
// time, and it takes no more memory than it has to.
func FuzzClient(f *testing.F) {
	g := transport.NewGreeting()
	f.Add(uint8(inGreeting), uint8(0), g[:])
	f.Add(uint8(inWelcome), uint8(0), []byte(`{"incarnation":1,"key":7,"proof":"AAAA"}`))
	f.Add(uint8(inAnswers), uint8(0), framed(transport.KindVerbs, 5, 1, make([]byte, 5*transport.ResultBytes)))
	f.Add(uint8(inVerbs), uint8(0), make([]byte, 5*transport.ResultBytes+64))
	f.Add(uint8(inVerbs), uint8(transport.StatusStale), []byte{})
	f.Add(uint8(inVerbs), uint8(0), goodAnswer())
	f.Add(uint8(inCall), uint8(0), make([]byte, 48))
	f.Add(uint8(inCall), uint8(transport.StatusFull), []byte("no room"))
	f.Add(uint8(inAttach), uint8(0), make([]byte, 16))
	f.Add(uint8(inAttach), uint8(transport.StatusNotSupported), []byte("no device, "))
	f.Add(uint8(inAttach), uint8(0), []byte{})
	f.Add(uint8(inMessage), uint8(0), []byte("\x05\x00\x00\x00\x01\x00\x00\x00\x05\x00\x00\x00\x00\x00\x00\x00hello"))
	f.Add(uint8(inMessage), uint8(0), []byte("\x05\x00\x00\x00\x01\x00\x00\x00\x09\x00\x00\x00\x00\x00\x00\x00hello"))
	f.Add(uint8(inMessage), uint8(0), make([]byte, 5000))
	f.Add(uint8(inRing), uint8(0), make([]byte, control.CountBytes))
	f.Add(uint8(inRing), uint8(0), []byte{})
	f.Add(uint8(inRing), uint8(0), make([]byte, 24))
	f.Add(uint8(inRing), uint8(transport.StatusNoRing), []byte("no ring,"))
	f.Add(uint8(inInfo), uint8(0),
		[]byte(
			`{"info":{"pool":{"id":"fuzzed fuzzed fuzzed","index":99,`+
				`"nodes":1,"addresses":["x"],"memory":8,"clients":1,"lease":1000000},"sealed":true}}`))
	f.Fuzz(func(t *testing.T, sort, st uint8, p []byte) {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		n := newScriptedNode(t, int(sort)%sortsOfAnswers, transport.Status(st), p)
		defer n.close()
		if n.sort == inInfo {
			// What it says of itself twice must not be taken for two pools, nor believed when it
			// cannot be.
			r, _, err := control.RecordOf(control.Options{Addresses: []string{n.addr(), n.addr()}})
			if err == nil && r.Check(control.MaxMemory) != nil {
				t.Errorf("a node makes believe: %+v", r)
			}
		} else {
			n.visit(t)
		}
		if runtime.ReadMemStats(&after); after.TotalAlloc-before.TotalAlloc > 16<<20 {
			t.Errorf("%d bytes cost %d of memory", len(p), after.TotalAlloc-before.TotalAlloc)
		}
	})
}

// goodAnswer is what a node answers to the visitor's verbs.
func goodAnswer() []byte {
	var p []byte
	for _, n := range []int{8, 24, 0, 8, 8} {
		p = append(p, 0, 0, 0, 0)
		p = binary.LittleEndian.AppendUint32(p, uint32(n))
		p = append(p, make([]byte, n)...)
	}
	return p
}

// scriptedNode is a node that answers what a fuzzer says, to the first connection; others it ends.
type scriptedNode struct {
	sort     int
	status   transport.Status
	p        []byte
	listener net.Listener
	group    sync.WaitGroup
	mu       sync.Mutex
	conns    []net.Conn
}

func newScriptedNode(t *testing.T, sort int, st transport.Status, p []byte) *scriptedNode {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	n := &scriptedNode{sort: sort, status: st, p: p, listener: l}
	n.group.Go(func() {
		for first := true; ; first = n.sort == inInfo {
			c, err := l.Accept()
			if err != nil {
				return
			}
			if !first {
				c.Close()
				continue
			}
			n.mu.Lock()
			n.conns = append(n.conns, c)
			n.mu.Unlock()
			n.group.Go(func() {
				defer c.Close()
				n.answer(c)
			})
		}
	})
	return n
}

func (n *scriptedNode) addr() string { return n.listener.Addr().String() }

func (n *scriptedNode) close() {
	n.listener.Close()
	n.mu.Lock()
	for _, c := range n.conns {
		c.Close()
	}
	n.mu.Unlock()
	n.group.Wait()
}

func (n *scriptedNode) answer(c net.Conn) {
	c.SetDeadline(time.Now().Add(clientPatience))
	if n.sort == inGreeting {
		c.Write(n.p)
		return
	}
	padded := append([]byte(nil), n.p...)
	for len(padded)%8 != 0 {
		padded = append(padded, ' ')
	}
	_, _, answer, err := transport.Greeted(c, transport.Security{})
	if err != nil {
		return
	}
	if n.sort == inWelcome {
		c.Write(framed(transport.KindHello, 0, 0, padded))
		return
	}
	if answer(transport.Welcome{Incarnation: 1, Key: 1}, transport.StatusOK) != nil {
		return
	}
	for {
		var head [transport.HeaderBytes]byte
		if _, err := io.ReadFull(c, head[:]); err != nil {
			return
		}
		h, err := transport.ParseHeader(head[:], transport.MaxBody)
		if err != nil {
			return
		}
		if _, err := io.CopyN(io.Discard, c, int64(h.Body)); err != nil {
			return
		}
		said := n.p
		if n.sort != inAnswers {
			said = framed(h.Kind, h.Items, h.Tag, padded)
			said[5] = byte(n.status)
		}
		if n.sort == inMessage {
			said = framed(h.Kind, h.Items, h.Tag, nil)
			for range 3 {
				said = append(said, framed(transport.KindMessage, 0, 1, padded)...)
			}
		}
		if _, err := c.Write(said); err != nil || n.sort == inAnswers {
			return
		}
	}
}

// visit runs one verb of each kind, and a call, of a pool of which the scripted node is the only
// node.
func (n *scriptedNode) visit(t *testing.T) {
	f := newFabric(control.New(control.Options{Registry: membership.Memory()}, control.Record{
		ID: "the pool of a fuzzer", Nodes: 1, Addresses: []string{n.addr()}, Memory: 4096, Clients: 4,
		Lease:  control.DefaultLease,
		Fabric: map[bool]string{true: "fake"}[n.sort == inAttach],
	}))
	defer func() { // as Close does, without a goodbye to one that is not there any more
		f.Disconnect()
	}()
	ctx, cancel := context.WithTimeout(context.Background(), clientPatience)
	defer cancel()
	f.ConnectVerbs(ctx)
	ep, err := f.Open("visitor")
	if err != nil {
		t.Fatal(err)
	}
	defer ep.Close()
	if n.sort == inCall {
		if err := ep.Call(0, &rdma.Request{}, clientPatience); errors.Is(err, rdma.ErrTimeout) {
			t.Errorf("a call does not end: %v", err)
		}
		return
	}
	if n.sort == inAttach {
		if answer, err := ep.(*Endpoint).Attach(0, []byte("an offer")); errors.Is(err, rdma.ErrTimeout) ||
			len(answer) > len(n.p)+8 {
			t.Errorf("an attach ends in %q, %v", answer, err)
		}
		if until, _ := f.Served(0); until > realtime.Boot()+time.Hour {
			t.Errorf("a node makes believe that it serves until %v", until)
		}
		return
	}
	if n.sort == inMessage {
		n.writeTo(t, ep)
		return
	}
	if n.sort == inRing {
		n.ring(t, ep)
		return
	}
	b := ep.Batch()
	defer b.Release()
	b.FetchAdd(rdma.At(0, 8), 1)
	read := b.Read(rdma.At(0, 16), 24)
	b.Write(rdma.At(0, 64), b.Alloc(16))
	b.CompareSwap(rdma.At(0, 128), 0, 1)
	b.MaskedCompareSwap(rdma.At(0, 136), 0, 1, 1, 1)
	if err := ep.Post(b); err != nil {
		t.Fatal(err)
	}
	if err := ep.Wait(b, rdma.All, clientPatience); err != nil {
		t.Errorf("verbs do not end: %v", err)
	}
	if n.sort == inVerbs && string(n.p) == string(goodAnswer()) && n.status == transport.StatusOK && (b.Err() != nil ||
		read.Err != nil) {
		t.Errorf("a good answer: %v", b.Err())
	}
}

// writeTo has the scripted node send messages, which come or end the connection.
func (n *scriptedNode) writeTo(t *testing.T, ep rdma.Endpoint) {
	box, err := rdma.Listen(ep, rdma.BoxOptions{Node: 0, Number: 5, Slots: 2})
	if err != nil {
		t.Fatal(err)
	}
	if err := box.Await(10 * time.Millisecond); err != nil && !errors.Is(err, rdma.ErrTimeout) {
		t.Errorf("wait for messages: %v", err)
	}
	for m := box.Next(); m != nil; m = box.Next() {
		if len(m.Data) > len(n.p) || m.From.Number() < 1 || m.From.Number() > rdma.MaxBox {
			t.Errorf("%d bytes are taken for %d from %s", len(n.p), len(m.Data), m.From)
		}
		box.Release(m)
	}
	box.Close()
}

// ring opens a ring at the scripted node, and asks it about that.
func (n *scriptedNode) ring(t *testing.T, ep rdma.Endpoint) {
	r, err := rdma.OpenRing(ep, rdma.RingOptions{Number: 5})
	if err == nil {
		err = r.Post(rdma.Span{Addr: rdma.At(0, 0), Len: control.DefaultMTU})
	}
	if err == nil {
		_, err = r.Count()
	}
	if errors.Is(err, rdma.ErrTimeout) {
		t.Errorf("the ring's frames do not end: %v", err)
	}
	if string(n.p) == string(make([]byte, control.CountBytes)) && n.status == transport.StatusOK && err != nil {
		t.Errorf("a good answer: %v", err)
	}
	if r != nil {
		r.Close()
	}
}

// TestAnswerToNothing has a node answer something else than what it was asked.
func TestAnswerToNothing(t *testing.T) {
	n := newScriptedNode(t, inAnswers, transport.StatusOK,
		framed(transport.KindVerbs, 1, 2, []byte{0, 0, 0, 0, 8, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8}))
	defer n.close()
	f := newFabric(control.New(control.Options{Registry: membership.Memory()}, control.Record{
		ID: "the pool of a fuzzer", Nodes: 1, Addresses: []string{n.addr()}, Memory: 4096, Clients: 4,
		Lease: control.DefaultLease,
	}))
	defer f.Close()
	f.ConnectVerbs(t.Context())
	ep, err := f.Open("visitor")
	if err != nil {
		t.Fatal(err)
	}
	defer ep.Close()
	b := ep.Batch()
	b.Read(rdma.At(0, 0), 8)
	if err := rdma.Do(ep, b, clientPatience); !errors.Is(err, rdma.ErrNodeDown) ||
		!strings.Contains(err.Error(), transport.ErrProtocol.Error()) {
		t.Errorf("an answer to another question was taken: %v", err)
	}
}

// framed is one of verbs, or of another kind.
func framed(k transport.Kind, items int, tag uint32, body []byte) []byte {
	p := make([]byte, transport.HeaderBytes, transport.HeaderBytes+len(body))
	transport.Header{Body: len(body), Kind: k, Items: items, Tag: tag}.Put(p)
	return append(p, body...)
}
