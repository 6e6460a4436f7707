package ibverbs

import (
	"io"
	"net"
	"sync"
	"testing"
)

// gateway stands in front of a node's process, not of its device, which it does not see. While it
// is shut nothing comes through, either way, and neither end is told.
type gateway struct {
	listener net.Listener
	node     string
	group    sync.WaitGroup

	mu     sync.Mutex
	change *sync.Cond
	shut   bool
	closed bool
	wires  map[net.Conn]struct{}
}

func newGateway(t testing.TB, node string) *gateway {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	g := &gateway{listener: l, node: node, wires: map[net.Conn]struct{}{}}
	g.change = sync.NewCond(&g.mu)
	g.group.Go(g.accept)
	t.Cleanup(func() {
		g.mu.Lock()
		g.closed = true
		g.mu.Unlock()
		g.listener.Close()
		g.open()
		g.sever()
		g.group.Wait()
	})
	return g
}

func (g *gateway) addr() string { return g.listener.Addr().String() }

func (g *gateway) accept() {
	for {
		c, err := g.listener.Accept()
		if err != nil {
			return
		}
		n, err := net.Dial("tcp", g.node)
		if err != nil {
			c.Close()
			continue
		}
		if g.add(c, n) {
			g.group.Go(func() { g.pass(c, n) })
			g.group.Go(func() { g.pass(n, c) })
		}
	}
}

// add notes the two ends of a connection.
func (g *gateway) add(c, n net.Conn) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.closed {
		c.Close()
		n.Close()
		return false
	}
	g.wires[c], g.wires[n] = struct{}{}, struct{}{}
	return true
}

func (g *gateway) pass(to io.WriteCloser, from net.Conn) {
	defer to.Close()
	p := make([]byte, 32<<10)
	for {
		n, err := from.Read(p)
		g.mu.Lock()
		for g.shut {
			g.change.Wait()
		}
		if err != nil {
			delete(g.wires, from)
		}
		g.mu.Unlock()
		if _, werr := to.Write(p[:n]); err != nil || werr != nil {
			return
		}
	}
}

func (g *gateway) close() { g.set(true) }
func (g *gateway) open()  { g.set(false) }

func (g *gateway) set(shut bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut = shut
	g.change.Broadcast()
}

// sever ends all connections; others may be made.
func (g *gateway) sever() {
	g.mu.Lock()
	defer g.mu.Unlock()
	for c := range g.wires {
		c.Close()
	}
}
