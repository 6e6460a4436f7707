package memnode

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/tcp"
	"github.com/farkv/farkv/node/rdma/transport"
)

// rawPatience bounds each wait of these tests.
const rawPatience = 20 * time.Second

// rawNode is a node with a pool of its own, and a fabric that keeps that pool alive.
type rawNode struct {
	*Node
	fabric *tcp.Fabric
	key    uint64
}

func newRawNode(t testing.TB, c Config) *rawNode {
	t.Helper()
	c.Listen, c.Memory = "127.0.0.1:0", 64<<10
	n, err := Listen(c)
	if err != nil {
		t.Fatal(err)
	}
	o := control.Options{Addresses: []string{n.Addr()}, Security: transport.Security{Token: c.Security.Token},
		MTU: control.MinMTU}
	if c.Device != nil {
		o.Fabric = c.Device.Fabric()
	}
	f, err := tcp.Create(o, control.Geometry{Nodes: 1, Memory: 32 << 10, Clients: 8}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(f.Close(), n.Close()); err != nil {
			t.Error(err)
		}
	})
	return &rawNode{n, f, n.pool.Load().key}
}

// call makes a connection that the test writes to itself.
func (n *rawNode) call(t testing.TB, p transport.Purpose) net.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), rawPatience)
	defer cancel()
	c, _, err := transport.Dial(ctx, n.Addr(), n.cfg.Security,
		transport.Hello{Purpose: p, Process: transport.NewID(), Pool: n.fabric.Record().ID})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(rawPatience))
	return c
}

// What the tests' connections are for.
const (
	forVerbs   = transport.ForVerbs
	forControl = transport.ForControl
)

// frame is one of verbs, or of another kind.
func frame(k transport.Kind, items int, tag uint32, body []byte) []byte {
	p := make([]byte, transport.HeaderBytes, transport.HeaderBytes+len(body))
	transport.Header{Body: len(body), Kind: k, Items: items, Tag: tag}.Put(p)
	return append(p, body...)
}

func (n *rawNode) rights() transport.Rights { return n.rightsOf(1) }

func (n *rawNode) rightsOf(c rdma.ClientID) transport.Rights {
	return transport.Rights{Key: n.key, Client: c, Life: 1}
}

// faa is the body of a frame with one FAA.
func faaOf(r transport.Rights, off uint64) []byte {
	return transport.AppendVerb(r.Append(nil), &rdma.Op{Verb: rdma.FetchAdd, Value: 1}, off, 0, 8)
}

// say sends a frame and returns how the node answers it, or that it ends the connection.
func say(c net.Conn, p []byte) (transport.Header, []byte, error) {
	if _, err := c.Write(p); err != nil {
		return transport.Header{}, nil, err
	}
	return next(c)
}

// next reads a frame.
func next(c net.Conn) (transport.Header, []byte, error) {
	var head [transport.HeaderBytes]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return transport.Header{}, nil, err
	}
	h, err := transport.ParseHeader(head[:], transport.MaxAnswer)
	if err != nil {
		return h, nil, err
	}
	body := make([]byte, h.Body)
	_, err = io.ReadFull(c, body)
	return h, body, err
}

// word reads the node's memory as its own procedures do.
func (n *rawNode) word(off uint64) uint64 {
	return (&view{n.memory, 0, n.fabric.Record().Memory, nil}).Load(off)
}

// outcome is the status of a frame, or of its first verb if that is worse.
func outcome(t testing.TB, c net.Conn, p []byte) transport.Status {
	t.Helper()
	h, body, err := say(c, p)
	if err != nil {
		t.Fatal(err)
	}
	if h.Status != transport.StatusOK {
		return h.Status
	}
	return transport.Status(body[0])
}

// TestRights sends verbs and calls with rights that are not right: the node refuses them, and
// executes nothing.
func TestRights(t *testing.T) {
	n := newRawNode(t, Config{
		Handler: func(m rdma.Memory, r *rdma.Request) error { m.FetchAdd(r.Arg[0], 1); return nil },
	})
	p := n.pool.Load()
	p.revoked[2].Store(3)
	p.fence.Store(5)
	good := transport.Rights{Key: n.key, Client: 1, Life: 1, Epoch: 5}
	for name, c := range map[string]struct {
		change func(r *transport.Rights)
		want   transport.Status
	}{
		"all right":              {func(r *transport.Rights) {}, transport.StatusOK},
		"a later epoch":          {func(r *transport.Rights) { r.Epoch = 9 }, transport.StatusOK},
		"an earlier epoch":       {func(r *transport.Rights) { r.Epoch = 4 }, transport.StatusStale},
		"another key":            {func(r *transport.Rights) { r.Key++ }, transport.StatusAccess},
		"no key":                 {func(r *transport.Rights) { r.Key = 0 }, transport.StatusAccess},
		"the key of readers":     {func(r *transport.Rights) { r.Key = p.readKey }, transport.StatusAccess},
		"client 0":               {func(r *transport.Rights) { r.Client = 0 }, transport.StatusAccess},
		"a client beyond":        {func(r *transport.Rights) { r.Client = 9 }, transport.StatusAccess},
		"a client far beyond":    {func(r *transport.Rights) { r.Client = 1<<16 - 1 }, transport.StatusAccess},
		"a life that is over":    {func(r *transport.Rights) { r.Client, r.Life = 2, 3 }, transport.StatusRevoked},
		"a life that never was":  {func(r *transport.Rights) { r.Life = 0 }, transport.StatusRevoked},
		"the life after it":      {func(r *transport.Rights) { r.Client, r.Life = 2, 4 }, transport.StatusOK},
		"a life that is revoked": {func(r *transport.Rights) { r.Client, r.Life = 2, 2 }, transport.StatusRevoked},
	} {
		t.Run(name, func(t *testing.T) {
			r, conn, before := good, n.call(t, transport.ForVerbs), n.word(8)
			c.change(&r)
			if st := outcome(t, conn, frame(transport.KindVerbs, 1, 1, faaOf(r, 8))); st != c.want {
				t.Errorf("verb: status %d, want %d", st, c.want)
			}
			h, _, err := say(conn, frame(transport.KindCall, 1, 2,
				transport.AppendCall(r.Append(nil), &rdma.Request{Arg: [6]uint64{8}})))
			if err != nil || h.Status != c.want {
				t.Errorf("call: status %d, want %d (%v)", h.Status, c.want, err)
			}
			want := before
			if c.want == transport.StatusOK {
				want += 2
			}
			if now := n.word(8); now != want {
				t.Errorf("the word was %d and is %d", before, now)
			}
		})
	}
}

// TestStrayAtNode sends verbs that stray from the node's memory, as no Endpoint would: they are
// refused, and so is all that their client sends behind them, while others on the same connection
// go on.
func TestStrayAtNode(t *testing.T) {
	n := newRawNode(t, Config{})
	const size = 32 << 10 // of the pool; the node has more
	for name, verb := range map[string][]byte{
		"READ over the end": transport.AppendVerb(nil, &rdma.Op{Verb: rdma.Read}, size-8, 0, 16),
		"READ far beyond":   transport.AppendVerb(nil, &rdma.Op{Verb: rdma.Read}, 1<<63, 0, 8),
		"READ that wraps":   transport.AppendVerb(nil, &rdma.Op{Verb: rdma.Read}, ^uint64(7), 0, 16),
		"WRITE over the end": transport.AppendVerb(nil, &rdma.Op{Verb: rdma.Write, Buf: make([]byte, 16)}, size-8,
			0, 16),
		"WRITE that wraps": transport.AppendVerb(nil, &rdma.Op{Verb: rdma.Write, Buf: make([]byte, 16)},
			^uint64(0), 0, 16),
		"FAA at the end":      transport.AppendVerb(nil, &rdma.Op{Verb: rdma.FetchAdd, Value: 1}, size, 0, 8),
		"FAA misaligned":      transport.AppendVerb(nil, &rdma.Op{Verb: rdma.FetchAdd, Value: 1}, 12, 0, 8),
		"CAS misaligned":      transport.AppendVerb(nil, &rdma.Op{Verb: rdma.CompareSwap, Value: 1}, 9, 0, 8),
		"masked CAS far away": transport.AppendVerb(nil, &rdma.Op{Verb: rdma.MaskedCompareSwap, Value: 1}, 1<<40, 0, 8),
		"nothing at all":      transport.AppendBreach(nil),
	} {
		t.Run(name, func(t *testing.T) {
			c, before := n.call(t, transport.ForVerbs), n.word(8)
			body := append(faaOf(n.rights(), 8), verb...)
			body = append(body, faaOf(n.rights(), 8)[transport.RightsBytes:]...)
			h, answer, err := say(c, frame(transport.KindVerbs, 3, 1, body))
			if err != nil || h.Status != transport.StatusOK || len(answer) != 3*transport.ResultBytes+8 {
				t.Fatalf("%+v, %x, %v", h, answer, err)
			}
			first, it, behind := answer[0], answer[16], answer[24]
			if transport.Status(first) != transport.StatusOK ||
				transport.Status(it) != transport.StatusAccess ||
				transport.Status(behind) != transport.StatusAccess {
				t.Errorf("statuses before it, its own, behind it: %d, %d, %d", first, it, behind)
			}
			if st := outcome(t, c, frame(transport.KindVerbs, 1, 2,
				faaOf(n.rights(), 8))); st != transport.StatusAccess {
				t.Errorf("the client goes on: status %d", st)
			}
			other := n.rights()
			other.Client = 2
			if st := outcome(t, c, frame(transport.KindVerbs, 1, 3, faaOf(other, 8))); st != transport.StatusOK {
				t.Errorf("another client: status %d", st)
			}
			if now := n.word(8); now != before+2 {
				t.Errorf("the word was %d and is %d, want two more", before, now)
			}
		})
	}
}

// TestBreaches sends what no client sends. The node ends the connection, says so in its statistics,
// and goes on.
func TestBreaches(t *testing.T) {
	n := newRawNode(t, Config{})
	huge := make([]byte, transport.HeaderBytes)
	binary.LittleEndian.PutUint32(huge, 0xFFFFFFF8)
	huge[4] = byte(transport.KindVerbs)
	odd := frame(transport.KindPing, 0, 1, nil)
	odd[0] = 3
	rest := frame(transport.KindPing, 0, 1, nil)
	rest[12] = 1
	r := n.rights()
	long := transport.AppendVerb(r.Append(nil), &rdma.Op{Verb: rdma.Read}, 0, 0, transport.MaxData+8)
	reads := r.Append(nil)
	for range 5 {
		reads = transport.AppendVerb(reads, &rdma.Op{Verb: rdma.Read}, 0, 0, 64<<10)
	}
	write := transport.AppendVerb(r.Append(nil), &rdma.Op{Verb: rdma.Write, Buf: make([]byte, 64)}, 0, 0, 64)
	verb9 := faaOf(r, 8)
	verb9[transport.RightsBytes] = 9
	narrow := faaOf(r, 8)
	narrow[transport.RightsBytes+4] = 4
	for name, c := range map[string]struct {
		purpose transport.Purpose
		frame   []byte
	}{
		"a frame of 4 GB":                   {forVerbs, huge},
		"a frame of 3 bytes":                {forVerbs, odd},
		"a header with something behind it": {forVerbs, rest},
		"a ping with a body":                {forVerbs, frame(transport.KindPing, 0, 1, make([]byte, 8))},
		"kind 0":                            {forVerbs, frame(0, 0, 1, nil)},
		"kind 6":                            {forVerbs, frame(6, 0, 1, nil)},
		"a hello":                           {forVerbs, frame(transport.KindHello, 0, 1, nil)},
		"no verbs":                          {forVerbs, frame(transport.KindVerbs, 0, 1, r.Append(nil))},
		"no rights":                         {forVerbs, frame(transport.KindVerbs, 1, 1, make([]byte, 24))},
		"fewer verbs than it says":          {forVerbs, frame(transport.KindVerbs, 2, 1, faaOf(r, 8))},
		"more verbs than it says": {forVerbs, frame(transport.KindVerbs, 1, 1,
			append(faaOf(r, 8), faaOf(r, 8)[transport.RightsBytes:]...))},
		"65535 verbs":                      {forVerbs, frame(transport.KindVerbs, 65535, 1, faaOf(r, 8))},
		"a READ that is too long":          {forVerbs, frame(transport.KindVerbs, 1, 1, long)},
		"READs that are too long together": {forVerbs, frame(transport.KindVerbs, 5, 1, reads)},
		"a WRITE with less data":           {forVerbs, frame(transport.KindVerbs, 1, 1, write[:len(write)-8])},
		"verb 9":                           {forVerbs, frame(transport.KindVerbs, 1, 1, verb9)},
		"an atomic of 4 bytes":             {forVerbs, frame(transport.KindVerbs, 1, 1, narrow)},
		"an APPEND with less data": {forVerbs, frame(transport.KindVerbs, 1, 1,
			appendsOf(r, 9, strings.Repeat("-", 64))[:len(write)-8])},
		"a ring frame without a number": {forVerbs, frame(transport.KindRing, control.RingCount, 1,
			r.Append(nil))},
		"with buffers that it has no use for": {forVerbs, frame(transport.KindRing, control.RingCount, 1,
			ringOf(r, 9, 1, rdma.Span{}))},
		"with fewer buffers than it says": {forVerbs, frame(transport.KindRing, control.RingPost, 1,
			ringOf(r, 9, 2, rdma.Span{}))},
		"with 4 billion of them": {forVerbs, frame(transport.KindRing, control.RingPost, 1,
			ringOf(r, 9, 1<<32-1))},
		"for what there is not": {forVerbs, frame(transport.KindRing, control.RingClose+1, 1,
			ringOf(r, 9, 0))},
		"about a ring over control": {forControl, frame(transport.KindRing, control.RingCount, 1,
			ringOf(r, 9, 0))},
		"a short call": {forVerbs, frame(transport.KindCall, 1, 1,
			make([]byte, transport.CallBytes-8))},
		"a long call": {forVerbs, frame(transport.KindCall, 1, 1,
			make([]byte, transport.CallBytes+8))},
		"control over verbs": {forVerbs, frame(transport.KindControl, 0, 1,
			[]byte(`{"do":"inspect"}`))},
		"verbs over control": {forControl, frame(transport.KindVerbs, 1, 1, faaOf(r, 8))},
		"no JSON": {forControl, frame(transport.KindControl, 0, 1,
			[]byte(`{"do":"inspect"`+" "))},
		"a message that is too long": {forControl, frame(transport.KindControl, 0, 1,
			[]byte(strings.Repeat(" ", maxControl+8)))},
	} {
		t.Run(name, func(t *testing.T) { n.breach(t, c.purpose, c.frame) })
	}
}

// breach sends what breaks the protocol: the node ends the connection, counts that, and serves the
// next one.
func (n *rawNode) breach(t *testing.T, p transport.Purpose, request []byte) {
	before := n.Stats().Breaches
	conn := n.call(t, p)
	h, body, err := say(conn, request)
	if err == nil {
		t.Errorf("the node answers %+v %q", h, body)
	}
	for until := time.Now().Add(rawPatience); n.Stats().Breaches == before; time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatal("the node does not count it")
		}
	}
	if st := outcome(t, n.call(t, forVerbs),
		frame(transport.KindVerbs, 1, 1, faaOf(n.rights(), 16))); st != transport.StatusOK {
		t.Errorf("the next connection: status %d", st)
	}
}

// TestOtherPoolsAreStrangers: a node refuses verbs and peers of another pool, as of one that its
// address served before, and those that take it for another node of its own.
func TestOtherPoolsAreStrangers(t *testing.T) {
	n := newRawNode(t, Config{})
	own := n.fabric.Record().ID
	for _, p := range []transport.Purpose{transport.ForVerbs, transport.ForPeer} {
		for _, h := range []transport.Hello{{Pool: transport.NewID()}, {Pool: own, Node: 1}} {
			h.Purpose, h.Process = p, transport.NewID()
			c, _, err := transport.Dial(t.Context(), n.Addr(), transport.Security{}, h)
			if err == nil {
				c.Close()
			}
			if !errors.Is(err, rdma.ErrNodeDown) {
				t.Errorf("a connection for node %d of pool %s to node 0 of %s: %v", h.Node, h.Pool, own, err)
			}
		}
	}
}

// TestConnectionsAreBounded fills a node with connections: it refuses the next client, and counts
// that, but no peer.
func TestConnectionsAreBounded(t *testing.T) {
	n := newRawNode(t, Config{Conns: 4}) // of which the pool's maker has two
	n.call(t, transport.ForVerbs)
	n.call(t, transport.ForControl)
	before := n.Stats().Refused
	ctx, cancel := context.WithTimeout(t.Context(), rawPatience)
	defer cancel()
	h := transport.Hello{Purpose: transport.ForVerbs, Process: transport.NewID(), Pool: n.fabric.Record().ID}
	if _, _, err := transport.Dial(ctx, n.Addr(), transport.Security{}, h); !errors.Is(err, transport.ErrConnections) ||
		errors.Is(err, rdma.ErrFull) {
		t.Errorf("one connection too many: %v", err)
	}
	if _, _, err := transport.Dial(ctx, n.Addr(), transport.Security{},
		transport.Hello{Purpose: transport.ForVerbs, Process: strings.Repeat("x", 65)}); err == nil {
		t.Errorf("a process with a long name: %v", err)
	}
	c, _, err := transport.Dial(ctx, n.Addr(), transport.Security{},
		transport.Hello{Purpose: transport.ForPeer, Process: "peer", Pool: n.fabric.Record().ID})
	if err != nil {
		t.Fatalf("a peer: %v", err)
	}
	c.Close()
	for until := time.Now().Add(rawPatience); n.Stats().Refused != before+2; time.Sleep(time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("%d were refused, want 2", n.Stats().Refused-before)
		}
	}
}
