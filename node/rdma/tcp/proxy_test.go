package tcp_test

import (
	"encoding/binary"
	"encoding/json"
	"io"
	"net"
	"sync"
	"testing"
	"time"
)

// caller is what a connection says of itself in its hello.
type caller struct {
	Purpose string `json:"purpose"`
	Process string `json:"process"`
	Peer    int    `json:"peer"`
}

func (c caller) verbs() bool { return c.Purpose == "verbs" }

// fate is what a proxy does with a connection.
type fate int

const (
	through fate = iota
	severed      // it ends
	lost         // bytes vanish, both ways: half-open
	stuck        // nothing is read any more
	trickle      // a few bytes at a time
	slow         // what comes in is read at some 100 KB a second
)

// proxy stands between a node and all its callers, and does to each connection what it is told. It
// reads hellos, so that it can tell callers apart: those of plain TCP.
type proxy struct {
	listener net.Listener
	node     string
	group    sync.WaitGroup
	narrow   bool // its sockets hold little of what callers send

	mu     sync.Mutex
	change *sync.Cond
	judge  func(c caller) fate
	budget func(c caller) (up, down int) // bytes until a new connection is cut; negative: never
	wires  map[*wired]struct{}
	cuts   int // connections that were cut because their budget was spent
	closed bool
}

// wired is one connection.
type wired struct {
	p            *proxy
	client, node net.Conn
	caller       caller
	known        bool // the caller
	left         [2]int
}

const up, down = 0, 1

func newProxy(t testing.TB, node string) *proxy { return newProxyOf(t, node, false) }

func newProxyOf(t testing.TB, node string, narrow bool) *proxy {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{listener: l, node: node, narrow: narrow, wires: map[*wired]struct{}{}}
	p.change = sync.NewCond(&p.mu)
	p.group.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

func (p *proxy) addr() string { return p.listener.Addr().String() }

func (p *proxy) accept() {
	for {
		c, err := p.listener.Accept()
		if err != nil {
			return
		}
		if p.narrow {
			c.(*net.TCPConn).SetReadBuffer(slowBytes)
		}
		p.group.Go(func() { p.serve(c) })
	}
}

// rule decides about connections, those that are there and those to come.
func (p *proxy) rule(judge func(c caller) fate) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.judge = judge
	p.change.Broadcast()
	for w := range p.wires {
		if w.fate() == severed {
			w.end()
		}
	}
}

// limit gives new connections a budget.
func (p *proxy) limit(budget func(c caller) (up, down int)) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.budget = budget
}

// sever ends the connections that match, once.
func (p *proxy) sever(match func(c caller) bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for w := range p.wires {
		if w.known && match(w.caller) {
			w.end()
		}
	}
}

// count returns how many connections match.
func (p *proxy) count(match func(c caller) bool) (n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for w := range p.wires {
		if w.known && match(w.caller) {
			n++
		}
	}
	return n
}

// limitNext ends the connections that match, and has the next one cut after n bytes one way. The
// function that it returns reports whether that one has come.
func (p *proxy) limitNext(match func(c caller) bool, way, n int) (came func() bool) {
	limited := false
	p.limit(func(c caller) (int, int) {
		if limited || !match(c) {
			return -1, -1
		}
		limited = true
		if way == up {
			return n, -1
		}
		return -1, n
	})
	p.sever(match)
	return func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return limited
	}
}

func (p *proxy) spent() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cuts
}

func (p *proxy) close() {
	p.mu.Lock()
	p.closed = true
	p.listener.Close()
	for w := range p.wires {
		w.end()
	}
	p.change.Broadcast()
	p.mu.Unlock()
	p.group.Wait()
}

func (p *proxy) serve(client net.Conn) {
	defer client.Close()
	node, err := net.Dial("tcp", p.node)
	if err != nil {
		return
	}
	defer node.Close()
	w := &wired{p: p, client: client, node: node, left: [2]int{-1, -1}}
	p.mu.Lock()
	p.wires[w] = struct{}{}
	if p.closed {
		w.end()
	}
	p.mu.Unlock()
	var group sync.WaitGroup
	group.Go(func() { w.pump(client, node, down) })
	if w.greet() {
		w.pump(node, client, up)
	}
	group.Wait()
	p.mu.Lock()
	delete(p.wires, w)
	p.mu.Unlock()
}

// greet reads what the caller says first, and identifies the caller before it passes the hello on.
// Nothing of the budget counts before that: a cut within the greeting falls into the bytes that
// follow all the same, since they wait here.
func (w *wired) greet() bool {
	said := make([]byte, 48)
	if _, err := io.ReadFull(w.client, said); err != nil {
		w.end()
		return false
	}
	if _, err := w.node.Write(said); err != nil {
		w.end()
		return false
	}
	head := make([]byte, 16)
	if _, err := io.ReadFull(w.client, head); err != nil {
		w.end()
		return false
	}
	body := make([]byte, min(binary.LittleEndian.Uint32(head), 4096))
	if _, err := io.ReadFull(w.client, body); err != nil {
		w.end()
		return false
	}
	w.p.mu.Lock()
	if json.Unmarshal(body, &w.caller) == nil {
		w.known = true
	}
	if w.p.budget != nil {
		w.left[up], w.left[down] = w.p.budget(w.caller)
	}
	if w.fate() == severed {
		w.end()
	}
	w.p.mu.Unlock()
	return w.pass(w.node, append(head, body...), up)
}

// fate is what is to be done with w now. The caller holds mu.
func (w *wired) fate() fate {
	if w.p.closed {
		return severed
	}
	if !w.known || w.p.judge == nil {
		return through
	}
	return w.p.judge(w.caller)
}

// slowBytes is how much a slow connection holds at a time, as its socket's buffer does.
const slowBytes = 4 << 10

func (w *wired) slow() bool {
	w.p.mu.Lock()
	defer w.p.mu.Unlock()
	return w.fate() == slow
}

func (w *wired) end() {
	w.client.Close()
	w.node.Close()
}

func (w *wired) pump(to, from net.Conn, way int) {
	defer w.end()
	buf := make([]byte, 64<<10)
	for {
		w.p.mu.Lock()
		for w.fate() == stuck {
			w.p.change.Wait()
		}
		w.p.mu.Unlock()
		room := buf
		if way == up && w.slow() {
			room = buf[:slowBytes]
			time.Sleep(40 * time.Millisecond)
		}
		n, err := from.Read(room)
		if n > 0 && !w.pass(to, buf[:n], way) {
			return
		}
		if err != nil {
			return
		}
	}
}

// pass sends p on, as far as it may; false: the connection is over.
func (w *wired) pass(to net.Conn, p []byte, way int) bool {
	w.p.mu.Lock()
	for w.fate() == stuck {
		w.p.change.Wait()
	}
	f := w.fate()
	cut := w.left[way] >= 0 && len(p) >= w.left[way]
	if cut {
		p = p[:w.left[way]]
		w.p.cuts++
	}
	if w.left[way] >= 0 {
		w.left[way] -= len(p)
	}
	w.p.mu.Unlock()
	switch f {
	case severed:
		return false
	case lost:
		return true
	case trickle:
		for ; len(p) > 0; p = p[min(7, len(p)):] {
			if _, err := to.Write(p[:min(7, len(p))]); err != nil {
				return false
			}
			time.Sleep(100 * time.Microsecond)
		}
	}
	if _, err := to.Write(p); err != nil || cut {
		w.end()
		return false
	}
	return true
}
