package memnode

import (
	"fmt"
	"net"
	"runtime/debug"
	"sync"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/transport"
)

// A fabric may be beside a node of its own process, as a store's server is: Node.Beside. Then its
// connection for verbs to that node is two ends of function calls. What a worker posts there is
// executed in Post, by the worker itself, and so has been answered when Post returns; a message for
// one of the fabric's mailboxes is put into it by the goroutine that executed the SEND. Everything
// else is as over a socket: frames, rights, leases, fences, bounds. So a worker's Post takes as
// long as the node takes, which is long when it has no lease: see pool.await.

// shortcut is such a connection. Attach makes it. It ends when either end closes it, and with it
// the connection as any other: the goroutine that Attach started calls Node.leave.
type shortcut struct {
	// node is the node's end as the node knows it; link is what takes what it writes.
	node *conn
	link *transport.Link

	// mu is held while what the node says is landed, so that nothing is landed when Close has
	// returned.
	mu    sync.Mutex // held while the fabric's end takes something
	ended bool
	over  chan struct{} // closed when ended is set
}

// nodeEnd is the node's end: what is written to it the fabric's workers get at once. It is
// outlet.nc and conn.raw of the connection.
type nodeEnd struct{ *shortcut }

// fabricEnd is the fabric's end: what is written to it the node executes at once. It is the
// net.Conn of the link. Its Read returns only at the end.
type fabricEnd struct{ *shortcut }

// Write lands answers and messages, which are whole frames. Any goroutine of the node may write:
// that of another connection delivers a message. The link copies what it keeps, so that p is the
// caller's again when Write returns. Frames are landed under mu, one writer at a time, in the order
// of outlet.writing.
func (b nodeEnd) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.ended {
		return 0, net.ErrClosed
	}
	return b.link.Take(p)
}

// Try is Write, which waits for nothing. The fabric takes everything, so that no rest is left.
func (b nodeEnd) Try(p []byte) (int, error) { return b.Write(p) }

// Write executes requests, which are whole frames. There is one caller at a time: see
// transport.Link. An error breaks the link, as one of a socket would. A frame that was executed
// before it is not executed again: what was in flight is lost, and counts as of unknown outcome.
// The caller is a worker that posts, or a goroutine of its fabric. It waits for the node's lease,
// and for faults that slow the node down. When it returns nil, all of p has been executed and
// answered.
func (b fabricEnd) Write(p []byte) (int, error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true)) // see conn.serve
	n, err := b.node.consume(p)
	if err == nil && n < len(p) {
		err = fmt.Errorf("%d bytes behind the last whole frame: %w", len(p)-n, transport.ErrProtocol)
	}
	if err != nil {
		// What conn.serve does at its end over a socket is done here, by the goroutine that
		// executes.
		b.node.session.forwardAll()
		b.node.settle()
	}
	return n, err
}

// Close ends the connection. When it returns, nothing is landed any more. It does not wait for what
// is being executed: conn.end does, as for every connection. It may be called by any goroutine,
// also while the node's end writes: that write fails, or is finished before Close returns.
func (b *shortcut) Close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.ended {
		b.ended = true
		close(b.over)
	}
	return nil
}

// Read returns when the connection has ended: what comes is not read, but landed. It blocks until
// then. The link's reader waits in it, and so learns of the end.
func (b *shortcut) Read([]byte) (int, error) {
	<-b.over
	return 0, net.ErrClosed
}

// Nothing waits for the other end. A worker that executes its own verbs cannot be slow to take the
// answers.
func (*shortcut) SetDeadline(time.Time) error { return nil }

func (*shortcut) SetReadDeadline(time.Time) error { return nil }

func (*shortcut) SetWriteDeadline(time.Time) error { return nil }

func (b *shortcut) LocalAddr() net.Addr { return b.node.node.listener.Addr() }

func (b *shortcut) RemoteAddr() net.Addr { return b.LocalAddr() }

// Tell has the node tell of the server beside it what tell returns when the node is asked, which
// may be at any time, by several goroutines; nil: there is no server any more. It replaces what was
// told before.
func (n *Node) Tell(tell func() *control.Server) {
	if tell == nil {
		n.server.Store(nil)
		return
	}
	n.server.Store(&tell)
}

// Changed returns a channel that receives when Beside may say something else than before. It has
// one receiver. It holds one signal, so that changes which come close together may be received as
// one. Beside is asked behind the signal, and says what is true then.
func (n *Node) Changed() <-chan struct{} { return n.changed }

// Attach connects a link of this process for verbs. What the link had before has ended when it
// returns. It registers the connection as others are, under the same rules: an expelled node, or
// one that is in no pool, lets none in. There is no greeting and no token: the caller is the node's
// own process. The connection counts among those of clients. It ends with the node's pool, with an
// expulsion, and when the link is closed. The error wraps what Node.admit refuses with, or
// rdma.ErrNodeDown once the node is closed.
func (n *Node) Attach(l *transport.Link) (net.Conn, transport.Welcome, error) {
	h := l.Hello
	c := &conn{node: n, purpose: transport.ForVerbs, process: h.Process, about: h.Pool, index: h.Node}
	b := &shortcut{node: c, link: l, over: make(chan struct{})}
	c.nc, c.raw = nodeEnd{b}, nodeEnd{b}
	w := transport.Welcome{Incarnation: n.incarnation.Load()}
	if why := n.enter(c, c.raw, h, &w); why != nil {
		return nil, w, fmt.Errorf("open the node at %s beside it: %w", l.Addr, why)
	}
	// The link writes nothing before Attach has returned, so that nothing is executed before look.
	c.session.look()
	n.mu.Lock()
	defer n.mu.Unlock()
	// Close has ended the connection meanwhile, and may have passed its wait for the group: no
	// goroutine is added any more.
	if n.closed {
		return nil, w, fmt.Errorf("open the node at %s beside it: %w", l.Addr, rdma.ErrNodeDown)
	}
	n.group.Go(func() {
		<-b.over
		n.leave(c)
	})
	return fabricEnd{b}, w, nil
}

// Beside returns how to open the pool that the node is in, beside it, with the token of the node
// and the trust that it has in its peers. The error wraps rdma.ErrNoPool while the node holds no
// memory of a pool that others may open.
func (n *Node) Beside() (control.Options, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	p := n.pool.Load()
	if p == nil || p.creator != "" || p.expelled.Load() || p.record.Index >= p.record.Nodes {
		return control.Options{}, fmt.Errorf("node at %s: %w", n.Addr(), rdma.ErrNoPool)
	}
	s := n.cfg.Security
	if s.TLS != nil {
		s.TLS = peerTLS(s.TLS)
	}
	return control.Options{
		Addresses: p.record.Addresses, ID: p.record.ID, Fabric: p.record.Fabric, Beside: n, BesideNode: p.record.Index,
		Security: transport.Security{Token: s.Token, TLS: s.TLS},
	}, nil
}
