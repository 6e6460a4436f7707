package memnode

import (
	"context"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/farkv/farkv/node/membership"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/realtime"
	"github.com/farkv/farkv/node/rdma/tcp"
	"github.com/farkv/farkv/node/rdma/transport"
)

// holding is a procedure that stays in the midst of its work until it is let go.
type holding struct {
	begun, goOn chan struct{}
	over        atomic.Bool
}

func newHolding() *holding { return &holding{begun: make(chan struct{}, 1), goOn: make(chan struct{})} }

func (h *holding) serve(rdma.Memory, *rdma.Request) error {
	h.begun <- struct{}{}
	<-h.goOn
	h.over.Store(true)
	return nil
}

// begin sends a call, and returns when it is in the midst of its work.
func (h *holding) begin(t *testing.T, n *rawNode, c net.Conn) {
	t.Helper()
	r := n.rights()
	if _, err := c.Write(frame(transport.KindCall, 1, 1, transport.AppendCall(r.Append(nil),
		&rdma.Request{}))); err != nil {
		t.Fatal(err)
	}
	<-h.begun
}

// TestDrain fences off while a procedure is in the midst of its work: that takes until it is over.
func TestDrain(t *testing.T) {
	for name, fence := range map[string]func(p *pool){
		"fence": func(p *pool) { p.fenceOff(1) }, "revoke": func(p *pool) { _ = p.revoke(1, 1) },
	} {
		t.Run(name, func(t *testing.T) {
			h := newHolding()
			n := newRawNode(t, Config{Handler: h.serve})
			h.begin(t, n, n.call(t, transport.ForVerbs))
			time.AfterFunc(50*time.Millisecond, func() { close(h.goOn) })
			if fence(n.pool.Load()); !h.over.Load() {
				t.Error("what had begun goes on behind the fence")
			}
		})
	}
}

// TestReconnectDrains connects again while a procedure that came over the last connection is in the
// midst of its work: the process is let in when that is over, and the node works for others
// meanwhile.
func TestReconnectDrains(t *testing.T) {
	h := newHolding()
	n := newRawNode(t, Config{Handler: h.serve})
	ctx, cancel := context.WithTimeout(t.Context(), rawPatience)
	defer cancel()
	me := transport.Hello{Purpose: transport.ForVerbs, Process: transport.NewID(), Pool: n.fabric.Record().ID}
	first, _, err := transport.Dial(ctx, n.Addr(), transport.Security{}, me)
	if err != nil {
		t.Fatal(err)
	}
	defer first.Close()
	h.begin(t, n, first)
	let := make(chan error, 1)
	go func() {
		second, _, err := transport.Dial(ctx, n.Addr(), transport.Security{}, me)
		if err == nil {
			second.Close()
			if !h.over.Load() {
				err = errors.New("it is over before")
			}
		}
		let <- err
	}()
	for by := time.Now().Add(100 * time.Millisecond); time.Now().Before(by); { // the second one waits
		if st := outcome(t, n.call(t, transport.ForVerbs), frame(transport.KindVerbs, 1, 1,
			faaOf(n.rightsOf(2), 8))); st != transport.StatusOK ||
			h.over.Load() {
			t.Errorf("another process is not served meanwhile: status %d", st)
		}
	}
	close(h.goOn)
	if err := <-let; err != nil {
		t.Errorf("the process is let in when what it began is over: %v", err)
	}
}

// TestIdentityIsGivenBack closes an endpoint while the registry is out of reach: its identity comes
// back when the registry does.
func TestIdentityIsGivenBack(t *testing.T) {
	n, err := Listen(Config{Listen: "127.0.0.1:0", Memory: 4096})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	s := &moody{Store: membership.Memory()}
	f, err := tcp.Create(control.Options{Addresses: []string{n.Addr()}, Registry: s, RegistryName: "of this test"},
		control.Geometry{Nodes: 1, Memory: 4096, Clients: 2}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ep, err := f.Open("first")
	if err != nil {
		t.Fatal(err)
	}
	s.away.Store(true)
	if err := ep.Close(); !errors.Is(err, membership.ErrUnreachable) {
		t.Errorf("close without the registry: %v", err)
	}
	s.away.Store(false)
	if ep, err = f.Open("second"); err != nil {
		t.Fatal(err)
	}
	defer ep.Close()
	if all := f.Clients(); len(all) != 1 || all[0].ID != ep.Client() {
		t.Errorf("clients: %+v", all)
	}
}

// moody is a registry that is out of reach at times.
type moody struct {
	membership.Store
	away atomic.Bool
}

func (m *moody) Load(key string) ([]byte, uint64, error) {
	if m.away.Load() {
		return nil, 0, membership.ErrUnreachable
	}
	return m.Store.Load(key)
}

// TestExpelledInTheMidst takes a node's lease while a procedure is in the midst of its work: what
// that answers is not sent, until the node has a lease again.
func TestExpelledInTheMidst(t *testing.T) {
	h := newHolding()
	n := newRawNode(t, Config{Handler: h.serve})
	c := n.call(t, transport.ForVerbs)
	h.begin(t, n, c)
	p := n.pool.Load()
	p.until.Store(0)
	close(h.goOn)
	c.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	if _, err := c.Read(make([]byte, 1)); !isTimeout(err) {
		t.Errorf("a node without a lease answers: %v", err)
	}
	p.until.Store(int64(rdma.Forever))
	c.SetReadDeadline(time.Now().Add(rawPatience))
	if _, err := io.ReadFull(c, make([]byte, transport.HeaderBytes+48)); err != nil {
		t.Errorf("a node that has a lease again: %v", err)
	}
}

// TestReaderDisplacesNoProcess calls a node with the read token, in the name of a process that may
// write.
func TestReaderDisplacesNoProcess(t *testing.T) {
	s := transport.Security{Token: []byte("a token of twenty bytes"), ReadToken: []byte("another of as many, aye")}
	n := newRawNode(t, Config{Security: s})
	other := transport.Security{ReadToken: s.ReadToken}
	ctx, cancel := context.WithTimeout(t.Context(), rawPatience)
	defer cancel()
	l := n.fabric.Link(0)
	before, _ := l.Reach()
	for _, p := range []transport.Purpose{transport.ForVerbs, transport.ForControl} {
		c, w, err := transport.Dial(ctx, n.Addr(), other, transport.Hello{Purpose: p, Process: n.fabric.Process(),
			Pool: n.fabric.Record().ID})
		if err != nil || !w.ReadOnly || w.Key == n.key {
			t.Fatalf("%s: %+v, %v", p, w, err)
		}
		defer c.Close()
		if p == transport.ForControl {
			p, err := transport.AppendMessage(nil, transport.KindControl, transport.StatusOK, 1,
				control.Message{Do: control.DoBye})
			if err != nil {
				t.Fatal(err)
			}
			if h, body, err := say(c, p); err != nil || h.Status != transport.StatusOK {
				t.Errorf("goodbye: %+v, %q, %v", h, body, err)
			}
		}
	}
	n.mu.Lock()
	names := n.attached()
	n.mu.Unlock()
	if !slices.Contains(names, n.fabric.Process()) {
		t.Errorf("a reader said goodbye for another process: %q are left", names)
	}
	if _, err := n.fabric.CPU(); err != nil { // over its own connection
		t.Error(err)
	}
	time.Sleep(10 * time.Millisecond)
	if now, _ := l.Reach(); now != before {
		t.Error("a reader ended another process's connection")
	}
}

// TestProofIsFresh repeats to a node what a caller has said before.
func TestProofIsFresh(t *testing.T) {
	token := []byte("a token of twenty bytes")
	n := newRawNode(t, Config{Security: transport.Security{Token: token}})
	g := transport.NewGreeting()
	var proof []byte
	for i := range 2 {
		c, err := net.Dial("tcp", n.Addr())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(rawPatience))
		var theirs transport.Greeting
		c.Write(g[:])
		if _, err := io.ReadFull(c, theirs[:]); err != nil {
			t.Fatal(err)
		}
		h := transport.Hello{Purpose: transport.ForControl, Process: "the same"}
		if i == 0 {
			proof = transport.Prove(token, "caller", &g, &theirs, h)
		}
		h.Proof = proof
		if err := transport.WriteMessage(c, transport.KindHello, transport.StatusOK, h); err != nil {
			t.Fatal(err)
		}
		var w transport.Welcome
		st, err := transport.ReadMessage(c, transport.KindHello, transport.MaxHello, &w)
		if want := []transport.Status{transport.StatusOK, transport.StatusAccess}[i]; st != want || err != nil {
			t.Errorf("said for the %d. time: status %d, want %d: %+v, %v", i+1, st, want, w, err)
		}
	}
}

// TestLeaseCountsFromTheQuestion has a peer that takes its time: the lease that it grants began
// before it was asked.
func TestLeaseCountsFromTheQuestion(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	n, err := Listen(Config{Listen: "127.0.0.1:0", Memory: 4096})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	const lease = 10 * time.Second
	r := control.Record{ID: fuzzPool, Nodes: 2, Addresses: []string{n.Addr(), l.Addr().String()}, Memory: 4096,
		Clients: 1, Lease: lease}
	if err := n.adopt(&conn{}, &r); err != nil {
		t.Fatal(err)
	}
	c, err := l.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if h, _, answer, err := transport.Greeted(c, transport.Security{}); err != nil || h.Purpose != transport.ForPeer ||
		answer(transport.Welcome{}, transport.StatusOK) != nil {
		t.Fatalf("%+v, %v", h, err)
	}
	var m control.Message
	if _, err := transport.ReadMessage(c, transport.KindControl, maxControl, &m); err != nil ||
		m.Do != control.DoLease {
		t.Fatalf("%+v, %v", m, err)
	}
	asked, p := realtime.Boot(), n.pool.Load()
	if p.until.Load() > 0 {
		t.Error("a node has a lease that no voter granted")
	}
	time.Sleep(20 * time.Millisecond)
	if err := transport.WriteMessage(c, transport.KindControl, transport.StatusOK, control.Reply{}); err != nil {
		t.Fatal(err)
	}
	for by := realtime.Now() + rawPatience; p.until.Load() == 0 && realtime.Now() < by; time.Sleep(time.Millisecond) {
	}
	if until := time.Duration(p.until.Load()); until == 0 || until > asked+lease {
		t.Errorf("asked before %v, a lease of %v lasts until %v", asked, lease, until)
	}
}

// TestExpelWaits expels a node that does not answer: that takes as long as a lease, and a
// majority's word.
func TestExpelWaits(t *testing.T) {
	t.Parallel()
	const lease = 1500 * time.Millisecond // more than a silent node is waited for
	var nodes []*Node
	o := control.Options{Registry: membership.Memory(), RegistryName: "of this test", Lease: lease}
	for range 3 {
		n, err := Listen(Config{Listen: "127.0.0.1:0", Memory: 4096})
		if err != nil {
			t.Fatal(err)
		}
		defer n.Close()
		nodes, o.Addresses = append(nodes, n), append(o.Addresses, n.Addr())
	}
	f, err := tcp.Create(o, control.Geometry{Nodes: 3, Memory: 4096, Clients: 4}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if ok, err := f.Advance(rdma.State{}, rdma.State{Epoch: 1, Busy: true}); !ok || err != nil {
		t.Fatal(ok, err)
	}
	nodes[0].Close()
	began := realtime.Now()
	if err := f.Expel(1, 0); err != nil || realtime.Now()-began < lease {
		t.Errorf("a node that may have a lease of %v was expelled within %v: %v", lease, realtime.Now()-began, err)
	}
	// Without the word of the others it is unknown whether they grant leases.
	nodes[1].Close()
	nodes[2].pool.Load().end()
	if err := f.Expel(1, 1); err == nil || !strings.Contains(err.Error(), "only 1 of 3") {
		t.Errorf("expelled by one of three: %v", err)
	}
}
