package tcp

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
)

// rawPatience bounds each wait of these tests.
const rawPatience = 20 * time.Second

// rawNode is a node with a pool of its own, and a fabric that keeps that pool alive.
type rawNode struct {
	*Node
	fabric *Fabric
	key    uint64
}

func newRawNode(t testing.TB, c Config) *rawNode {
	t.Helper()
	c.Listen, c.Memory = "127.0.0.1:0", 64<<10
	n, err := Listen(c)
	if err != nil {
		t.Fatal(err)
	}
	o := Options{Addresses: []string{n.Addr()}, Security: Security{Token: c.Security.Token}, MTU: minMTU}
	if c.Device != nil {
		o.Fabric = c.Device.Fabric()
	}
	f, err := Create(o, Geometry{1, 32 << 10, 8, 0}, nil)
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
func (n *rawNode) call(t testing.TB, p purpose) net.Conn {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), rawPatience)
	defer cancel()
	c, _, err := dial(ctx, n.Addr(), n.cfg.Security, hello{Purpose: p, Process: newID(), Pool: n.fabric.record.ID})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	c.SetDeadline(time.Now().Add(rawPatience))
	return c
}

// frame is one of verbs, or of another kind.
func frame(k kind, items int, tag uint32, body []byte) []byte {
	p := make([]byte, headerBytes, headerBytes+len(body))
	header{body: len(body), kind: k, items: items, tag: tag}.put(p)
	return append(p, body...)
}

func (n *rawNode) rights() rights { return n.rightsOf(1) }

func (n *rawNode) rightsOf(c rdma.ClientID) rights { return rights{key: n.key, client: c, life: 1} }

// faa is the body of a frame with one FAA.
func (r rights) faa(off uint64) []byte {
	return appendVerb(r.append(nil), &rdma.Op{Verb: rdma.FetchAdd, Value: 1}, off, 0, 8)
}

// say sends a frame and returns how the node answers it, or that it ends the connection.
func say(c net.Conn, p []byte) (header, []byte, error) {
	if _, err := c.Write(p); err != nil {
		return header{}, nil, err
	}
	var head [headerBytes]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return header{}, nil, err
	}
	h, err := parseHeader(head[:], maxAnswer)
	if err != nil {
		return h, nil, err
	}
	body := make([]byte, h.body)
	_, err = io.ReadFull(c, body)
	return h, body, err
}

// word reads the node's memory as its own procedures do.
func (n *rawNode) word(off uint64) uint64 {
	return (&view{n.memory, 0, n.fabric.record.Memory, nil}).Load(off)
}

// outcome is the status of a frame, or of its first verb if that is worse.
func outcome(t testing.TB, c net.Conn, p []byte) status {
	t.Helper()
	h, body, err := say(c, p)
	if err != nil {
		t.Fatal(err)
	}
	if h.status != statusOK {
		return h.status
	}
	return status(body[0])
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
	good := rights{key: n.key, client: 1, life: 1, epoch: 5}
	for name, c := range map[string]struct {
		change func(r *rights)
		want   status
	}{
		"all right":              {func(r *rights) {}, statusOK},
		"a later epoch":          {func(r *rights) { r.epoch = 9 }, statusOK},
		"an earlier epoch":       {func(r *rights) { r.epoch = 4 }, statusStale},
		"another key":            {func(r *rights) { r.key++ }, statusAccess},
		"no key":                 {func(r *rights) { r.key = 0 }, statusAccess},
		"the key of readers":     {func(r *rights) { r.key = p.readKey }, statusAccess},
		"client 0":               {func(r *rights) { r.client = 0 }, statusAccess},
		"a client beyond":        {func(r *rights) { r.client = 9 }, statusAccess},
		"a client far beyond":    {func(r *rights) { r.client = 1<<16 - 1 }, statusAccess},
		"a life that is over":    {func(r *rights) { r.client, r.life = 2, 3 }, statusRevoked},
		"a life that never was":  {func(r *rights) { r.life = 0 }, statusRevoked},
		"the life after it":      {func(r *rights) { r.client, r.life = 2, 4 }, statusOK},
		"a life that is revoked": {func(r *rights) { r.client, r.life = 2, 2 }, statusRevoked},
	} {
		t.Run(name, func(t *testing.T) {
			r, conn, before := good, n.call(t, forVerbs), n.word(8)
			c.change(&r)
			if st := outcome(t, conn, frame(kindVerbs, 1, 1, r.faa(8))); st != c.want {
				t.Errorf("verb: status %d, want %d", st, c.want)
			}
			h, _, err := say(conn, frame(kindCall, 1, 2, appendCall(r.append(nil), &rdma.Request{Arg: [6]uint64{8}})))
			if err != nil || h.status != c.want {
				t.Errorf("call: status %d, want %d (%v)", h.status, c.want, err)
			}
			want := before
			if c.want == statusOK {
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
		"READ over the end":   appendVerb(nil, &rdma.Op{Verb: rdma.Read}, size-8, 0, 16),
		"READ far beyond":     appendVerb(nil, &rdma.Op{Verb: rdma.Read}, 1<<63, 0, 8),
		"READ that wraps":     appendVerb(nil, &rdma.Op{Verb: rdma.Read}, ^uint64(7), 0, 16),
		"WRITE over the end":  appendVerb(nil, &rdma.Op{Verb: rdma.Write, Buf: make([]byte, 16)}, size-8, 0, 16),
		"WRITE that wraps":    appendVerb(nil, &rdma.Op{Verb: rdma.Write, Buf: make([]byte, 16)}, ^uint64(0), 0, 16),
		"FAA at the end":      appendVerb(nil, &rdma.Op{Verb: rdma.FetchAdd, Value: 1}, size, 0, 8),
		"FAA misaligned":      appendVerb(nil, &rdma.Op{Verb: rdma.FetchAdd, Value: 1}, 12, 0, 8),
		"CAS misaligned":      appendVerb(nil, &rdma.Op{Verb: rdma.CompareSwap, Value: 1}, 9, 0, 8),
		"masked CAS far away": appendVerb(nil, &rdma.Op{Verb: rdma.MaskedCompareSwap, Value: 1}, 1<<40, 0, 8),
		"nothing at all":      appendBreach(nil),
	} {
		t.Run(name, func(t *testing.T) {
			c, before := n.call(t, forVerbs), n.word(8)
			body := append(n.rights().faa(8), verb...)
			body = append(body, n.rights().faa(8)[rightsBytes:]...)
			h, answer, err := say(c, frame(kindVerbs, 3, 1, body))
			if err != nil || h.status != statusOK || len(answer) != 3*resultBytes+8 {
				t.Fatalf("%+v, %x, %v", h, answer, err)
			}
			if before, it, behind := answer[0], answer[16], answer[24]; status(before) != statusOK ||
				status(it) != statusAccess ||
				status(behind) != statusAccess {
				t.Errorf("statuses before it, its own, behind it: %d, %d, %d", before, it, behind)
			}
			if st := outcome(t, c, frame(kindVerbs, 1, 2, n.rights().faa(8))); st != statusAccess {
				t.Errorf("the client goes on: status %d", st)
			}
			other := n.rights()
			other.client = 2
			if st := outcome(t, c, frame(kindVerbs, 1, 3, other.faa(8))); st != statusOK {
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
	huge := make([]byte, headerBytes)
	binary.LittleEndian.PutUint32(huge, 0xFFFFFFF8)
	huge[4] = byte(kindVerbs)
	odd := frame(kindPing, 0, 1, nil)
	odd[0] = 3
	rest := frame(kindPing, 0, 1, nil)
	rest[12] = 1
	r := n.rights()
	long := appendVerb(r.append(nil), &rdma.Op{Verb: rdma.Read}, 0, 0, maxData+8)
	reads := r.append(nil)
	for range 5 {
		reads = appendVerb(reads, &rdma.Op{Verb: rdma.Read}, 0, 0, 64<<10)
	}
	write := appendVerb(r.append(nil), &rdma.Op{Verb: rdma.Write, Buf: make([]byte, 64)}, 0, 0, 64)
	verb9 := r.faa(8)
	verb9[rightsBytes] = 9
	narrow := r.faa(8)
	narrow[rightsBytes+4] = 4
	for name, c := range map[string]struct {
		purpose purpose
		frame   []byte
	}{
		"a frame of 4 GB":                   {forVerbs, huge},
		"a frame of 3 bytes":                {forVerbs, odd},
		"a header with something behind it": {forVerbs, rest},
		"a ping with a body":                {forVerbs, frame(kindPing, 0, 1, make([]byte, 8))},
		"kind 0":                            {forVerbs, frame(0, 0, 1, nil)},
		"kind 6":                            {forVerbs, frame(6, 0, 1, nil)},
		"a hello":                           {forVerbs, frame(kindHello, 0, 1, nil)},
		"no verbs":                          {forVerbs, frame(kindVerbs, 0, 1, r.append(nil))},
		"no rights":                         {forVerbs, frame(kindVerbs, 1, 1, make([]byte, 24))},
		"fewer verbs than it says":          {forVerbs, frame(kindVerbs, 2, 1, r.faa(8))},
		"more verbs than it says": {forVerbs,
			frame(kindVerbs, 1, 1, append(r.faa(8), r.faa(8)[rightsBytes:]...))},
		"65535 verbs":                      {forVerbs, frame(kindVerbs, 65535, 1, r.faa(8))},
		"a READ that is too long":          {forVerbs, frame(kindVerbs, 1, 1, long)},
		"READs that are too long together": {forVerbs, frame(kindVerbs, 5, 1, reads)},
		"a WRITE with less data":           {forVerbs, frame(kindVerbs, 1, 1, write[:len(write)-8])},
		"verb 9":                           {forVerbs, frame(kindVerbs, 1, 1, verb9)},
		"an atomic of 4 bytes":             {forVerbs, frame(kindVerbs, 1, 1, narrow)},
		"an APPEND with less data": {forVerbs,
			frame(kindVerbs, 1, 1, r.appends(9, strings.Repeat("-", 64))[:len(write)-8])},
		"a ring frame without a number":       {forVerbs, frame(kindRing, ringCount, 1, r.append(nil))},
		"with buffers that it has no use for": {forVerbs, frame(kindRing, ringCount, 1, r.ring(9, 1, rdma.Span{}))},
		"with fewer buffers than it says":     {forVerbs, frame(kindRing, ringPost, 1, r.ring(9, 2, rdma.Span{}))},
		"with 4 billion of them":              {forVerbs, frame(kindRing, ringPost, 1, r.ring(9, 1<<32-1))},
		"for what there is not":               {forVerbs, frame(kindRing, ringClose+1, 1, r.ring(9, 0))},
		"about a ring over control":           {forControl, frame(kindRing, ringCount, 1, r.ring(9, 0))},
		"a short call":                        {forVerbs, frame(kindCall, 1, 1, make([]byte, callBytes-8))},
		"a long call":                         {forVerbs, frame(kindCall, 1, 1, make([]byte, callBytes+8))},
		"control over verbs":                  {forVerbs, frame(kindControl, 0, 1, []byte(`{"do":"inspect"}`))},
		"verbs over control":                  {forControl, frame(kindVerbs, 1, 1, r.faa(8))},
		"no JSON":                             {forControl, frame(kindControl, 0, 1, []byte(`{"do":"inspect"`+" "))},
		"a message that is too long": {forControl,
			frame(kindControl, 0, 1, []byte(strings.Repeat(" ", maxControl+8)))},
	} {
		t.Run(name, func(t *testing.T) {
			before := n.Stats().Breaches
			conn := n.call(t, c.purpose)
			h, body, err := say(conn, c.frame)
			if err == nil {
				t.Errorf("the node answers %+v %q", h, body)
			}
			for until := time.Now().Add(rawPatience); n.Stats().Breaches == before; time.Sleep(time.Millisecond) {
				if time.Now().After(until) {
					t.Fatal("the node does not count it")
				}
			}
			if st := outcome(t, n.call(t, forVerbs), frame(kindVerbs, 1, 1, r.faa(16))); st != statusOK {
				t.Errorf("the next connection: status %d", st)
			}
		})
	}
}

// TestConnectionsAreBounded fills a node with connections: it refuses the next client, and counts
// that, but no peer.
func TestConnectionsAreBounded(t *testing.T) {
	n := newRawNode(t, Config{Conns: 4}) // of which the pool's maker has two
	n.call(t, forVerbs)
	n.call(t, forControl)
	before := n.Stats().Refused
	ctx, cancel := context.WithTimeout(t.Context(), rawPatience)
	defer cancel()
	h := hello{Purpose: forVerbs, Process: newID(), Pool: n.fabric.record.ID}
	if _, _, err := dial(ctx, n.Addr(), Security{}, h); !errors.Is(err, ErrConnections) ||
		errors.Is(err, rdma.ErrFull) {
		t.Errorf("one connection too many: %v", err)
	}
	if _, _, err := dial(ctx, n.Addr(), Security{},
		hello{Purpose: forVerbs, Process: strings.Repeat("x", 65)}); err == nil {
		t.Errorf("a process with a long name: %v", err)
	}
	c, _, err := dial(ctx, n.Addr(), Security{}, hello{Purpose: forPeer, Process: "peer", Pool: n.fabric.record.ID})
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
