package tcp

import (
	"context"
	"crypto/rand"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/wall"
)

// DefaultLease is for how long a node may serve since it last asked its peers, and how soon a client process counts as
// dead once nothing is heard of it; a pool is made with its own.
const DefaultLease = 300 * time.Millisecond

// DefaultConns is how many connections a node has at most.
const DefaultConns = 1024

// MaxMemory bounds what a node may offer, in bytes.
const MaxMemory = 1 << 44

// Security is what the two ends of a connection ask of each other.
type Security struct {
	// Token is known to all that may use the pool; nil: there is none, and nodes listen on loopback only. It is proved by
	// challenge and response, never sent.
	Token []byte
	// ReadToken lets who knows nothing else READ, and do nothing more. A client sets one of the two.
	ReadToken []byte
	// TLS wraps the connections; nil: they are plain. Nodes that ask for clients' certificates say so in it.
	TLS *tls.Config
}

// Config shapes a memory node. Zero values mean defaults where there are any.
type Config struct {
	Listen   string // HOST:PORT; port 0 is any free one
	Memory   uint64 // bytes that it offers
	File     string // backs the memory; "": anonymous memory does
	Handler  rdma.Handler
	Device   Device // executes the verbs of pools whose Record.Fabric is its; nil: there is none
	Security Security
	Conns    int          // connections of clients at most, default DefaultConns
	Log      *slog.Logger // nil: it is silent
}

// What callers branch on.
var (
	// ErrOpen is wrapped when a node without a token is to listen where other machines reach it.
	ErrOpen = errors.New("a node without a token listens on loopback only")
	// ErrMemory is wrapped when a node cannot offer that much memory.
	ErrMemory = errors.New("bad size of a node's memory")
)

// Node is a memory node: it executes the verbs that come over its connections. It serves one pool at a time.
type Node struct {
	cfg         Config
	log         *slog.Logger
	listener    net.Listener
	incarnation uint64
	file        *os.File
	stats       counters
	stop        chan struct{}
	group       sync.WaitGroup
	threads     atomic.Int32 // of connections that wait in the kernel

	// pool is replaced under mu; those who execute verbs look at it without.
	pool atomic.Pointer[pool]

	mu        sync.Mutex
	memory    *memory
	used      bool // memory held a pool, and was not renewed since
	conns     map[*conn]struct{}
	greeting  []net.Conn // that have not said yet what they want, the oldest first
	processes map[string]*process
	draining  bool
	closed    bool
	refusedAt time.Duration // when it was logged last that a connection was refused
}

// process is one that has, or had a moment ago, connections to the node.
type process struct {
	conns int
	lost  time.Duration // when the last one ended
	left  bool          // it said that it goes
}

// Listen starts a memory node, which has no pool yet.
func Listen(c Config) (*Node, error) {
	n, err := listen(c)
	if err != nil {
		return nil, fmt.Errorf("start a memory node on %s: %w", c.Listen, err)
	}
	return n, nil
}

func listen(c Config) (*Node, error) {
	if c.Conns == 0 {
		c.Conns = DefaultConns
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Memory < 4096 || c.Memory > MaxMemory {
		return nil, fmt.Errorf("%w: %d bytes: want 4 KiB to 16 TiB", ErrMemory, c.Memory)
	}
	if len(c.Security.Token) == 0 && (len(c.Security.ReadToken) > 0 || !onLoopback(c.Listen)) {
		return nil, ErrOpen
	}
	n := &Node{
		cfg: c, log: c.Log, stop: make(chan struct{}), conns: map[*conn]struct{}{}, processes: map[string]*process{},
	}
	var r [8]byte
	rand.Read(r[:]) // never fails
	n.incarnation = binary.LittleEndian.Uint64(r[:])
	var err error
	if c.File != "" {
		if n.file, err = openFile(c.File); err != nil {
			return nil, err
		}
	}
	if n.memory, err = newMemory(c.Memory&^4095, n.file, c.Device != nil); err != nil {
		return nil, errors.Join(err, n.leaveFile())
	}
	if n.listener, err = net.Listen("tcp", c.Listen); err != nil {
		return nil, errors.Join(err, n.memory.close(), n.leaveFile())
	}
	n.group.Go(n.accept)
	return n, nil
}

func (n *Node) leaveFile() error {
	if n.file == nil {
		return nil
	}
	return leaveFile(n.file)
}

// onLoopback tells whether an address is reached by this machine alone. A name is looked up.
func onLoopback(addr string) bool {
	host, _, err := net.SplitHostPort(addr)
	if err != nil || host == "" {
		return false
	}
	if ip := net.ParseIP(host); ip != nil {
		return ip.IsLoopback()
	}
	ips, err := net.LookupIP(host)
	return err == nil && len(ips) > 0 && !slices.ContainsFunc(ips, func(ip net.IP) bool { return !ip.IsLoopback() })
}

// Addr is where the node listens.
func (n *Node) Addr() string { return n.listener.Addr().String() }

// Loopback tells whether only this machine reaches the node.
func (n *Node) Loopback() bool { return onLoopback(n.Addr()) }

// maxProcess bounds the name of a process, in bytes.
const maxProcess = 64

// mostGreeting bounds the connections that have not said yet what they want. When there are more, the oldest has to go:
// those that say nothing cannot keep out those who have something to say.
const mostGreeting = 64

func (n *Node) accept() {
	pause := time.Millisecond
	for {
		c, err := n.listener.Accept()
		if err != nil {
			select {
			case <-n.stop:
				return
			default:
			}
			if errors.Is(err, net.ErrClosed) {
				return // it drains
			}
			n.log.Warn("accept a connection", "error", err) // such as too many open files
			time.Sleep(pause)
			pause = min(2*pause, time.Second)
			continue
		}
		pause = time.Millisecond
		n.mu.Lock()
		if n.closed || n.draining {
			n.mu.Unlock()
			c.Close()
			continue
		}
		n.greeting = append(n.greeting, c)
		if len(n.greeting) > mostGreeting {
			n.refuse(n.greeting[0], "too many connections say nothing")
		}
		n.group.Go(func() { n.receive(c) })
		n.mu.Unlock()
	}
}

// refuse ends a connection, and says so now and then. The caller holds mu.
func (n *Node) refuse(c net.Conn, why string) {
	n.forgetGreeting(c)
	n.stats.refused.Add(1)
	c.Close()
	if now := wall.Now(); n.refusedAt == 0 || now-n.refusedAt > time.Minute {
		n.refusedAt = now
		n.log.Warn("refused a connection (logged once a minute)", "from", c.RemoteAddr().String(), "why", why,
			"refused", n.stats.refused.Load())
	}
}

func (n *Node) forgetGreeting(c net.Conn) {
	if i := slices.Index(n.greeting, c); i >= 0 {
		n.greeting = slices.Delete(n.greeting, i, i+1)
	}
}

// receive finds out what a connection is for, and serves it to its end.
func (n *Node) receive(raw net.Conn) {
	defer raw.Close()
	c, err := n.welcome(raw)
	if c == nil {
		n.mu.Lock()
		defer n.mu.Unlock()
		var why *refused
		if slices.Contains(n.greeting, raw) || errors.As(err, &why) { // else it was ended to make room, and counted then
			n.refuse(raw, err.Error())
		}
		return
	}
	defer n.leave(c)
	switch err := c.serve(); {
	case errors.Is(err, ErrProtocol):
		n.stats.breaches.Add(1)
		n.log.Warn("ended a connection", "from", raw.RemoteAddr().String(), "why", err.Error())
	case err != nil:
		n.log.Debug("connection ended", "from", raw.RemoteAddr().String(), "why", err.Error())
	}
}

// welcome lets a caller in. It has a few seconds to say who it is.
func (n *Node) welcome(raw net.Conn) (*conn, error) {
	raw.SetDeadline(time.Now().Add(greetPatience))
	nc := raw
	if n.cfg.Security.TLS != nil {
		nc = tls.Server(raw, n.cfg.Security.TLS)
	}
	h, readOnly, answer, err := greeted(nc, n.cfg.Security)
	if err != nil {
		return nil, err
	}
	if readOnly {
		h.Process = "reader " + h.Process // who may only read takes no other's place, and does not say goodbye for it
	}
	c := &conn{node: n, nc: nc, raw: raw, purpose: h.Purpose, process: h.Process, readOnly: readOnly, peer: h.Peer,
		about: h.Pool, index: h.Node}
	b := c.block()
	w := welcome{Incarnation: n.incarnation, ReadOnly: readOnly}
	if why := n.enter(c, raw, h, &w); why != nil {
		w.Text = why.text
		defer c.raw.Close()
		return nil, errors.Join(why, answer(w, why.status))
	}
	if err := answer(w, statusOK); err != nil {
		n.leave(c)
		return nil, err
	}
	raw.SetDeadline(time.Time{})
	if t, ok := raw.(*net.TCPConn); ok {
		t.SetNoDelay(true)
		t.SetWriteBuffer(socketBytes)
	}
	if b != nil {
		b.leavePoller()
	}
	return c, nil
}

// enter makes c one of the node's connections. What its process had for the same purpose ends before: no verb that came
// over it is executed any more. It is waited for without mu: a procedure may take its time, and others do not wait for it.
func (n *Node) enter(c *conn, raw net.Conn, h hello, w *welcome) *refused {
	old, why := n.register(c, raw, h, w)
	for _, o := range old {
		o.end()
	}
	return why
}

// register returns the connections that c replaces.
func (n *Node) register(c *conn, raw net.Conn, h hello, w *welcome) (replaced []*conn, why *refused) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.forgetGreeting(raw)
	if n.closed || n.draining {
		return nil, refuse(rdma.ErrNodeDown, "the node is about to end")
	}
	if len(h.Process) < 1 || len(h.Process) > maxProcess {
		return nil, refuse(ErrProtocol, "a process with a name of %d bytes", len(h.Process))
	}
	p := n.pool.Load()
	switch h.Purpose {
	case forControl:
	case forVerbs, forPeer:
		if p == nil || p.record.ID != h.Pool || p.record.Index != h.Node {
			return nil, refuse(rdma.ErrNodeDown, "the node does not serve pool %s", h.Pool)
		}
		if h.Purpose == forVerbs && h.Node >= p.record.Nodes {
			return nil, refuse(rdma.ErrAccess, "the node is a witness of pool %s, and has no memory", h.Pool)
		}
		if p.expelled.Load() {
			return nil, refuse(rdma.ErrNodeDown, "the node was expelled from pool %s", h.Pool)
		}
		c.pool = p
		w.Key = p.key
		if c.readOnly {
			w.Key = p.readKey
		}
	default:
		return nil, refuse(ErrProtocol, "a connection for %q: this node knows none", h.Purpose)
	}
	if h.Purpose == forPeer && (c.readOnly || h.Peer < 0 || h.Peer >= len(p.record.Addresses)) {
		return nil, refuse(rdma.ErrAccess, "not a peer")
	}
	for old := range n.conns {
		if old.purpose == c.purpose && (c.purpose == forPeer && old.peer == c.peer || c.purpose != forPeer && old.process == c.process) {
			replaced = append(replaced, old)
		}
	}
	if h.Purpose != forPeer && n.callers() >= n.cfg.Conns { // clients must not take the peers' leases from the node
		return replaced, refuse(rdma.ErrFull, "the node has %d connections", n.cfg.Conns)
	}
	n.conns[c] = struct{}{}
	if c.purpose != forPeer {
		proc := n.processes[c.process]
		if proc == nil {
			proc = &process{}
			n.processes[c.process] = proc
		}
		proc.conns++
	}
	return replaced, nil
}

// callers counts the connections of clients. The caller holds mu.
func (n *Node) callers() (sum int) {
	for c := range n.conns {
		if c.purpose != forPeer {
			sum++
		}
	}
	return sum
}

// leave forgets a connection. Its process stays known for a moment: it may be about to connect again.
func (n *Node) leave(c *conn) {
	c.end()
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, ok := n.conns[c]; !ok {
		return
	}
	delete(n.conns, c)
	now := wall.Now()
	if proc := n.processes[c.process]; proc != nil && c.purpose != forPeer {
		proc.conns--
		proc.lost = now
	}
	for name, proc := range n.processes {
		if proc.conns == 0 && (proc.left || now-proc.lost > n.grace()) {
			delete(n.processes, name)
		}
	}
	if p := n.pool.Load(); p != nil && p.creator == c.process && !n.closed {
		n.group.Go(func() { n.abandoned(p) })
	}
}

// alive tells whether a process is, or may be about to connect again. The caller holds mu.
func (n *Node) alive(process string) bool {
	proc := n.processes[process]
	return proc != nil && !proc.left && (proc.conns > 0 || wall.Now()-proc.lost <= n.grace())
}

// grace is for how long a process counts as alive behind the end of its last connection.
func (n *Node) grace() time.Duration {
	if p := n.pool.Load(); p != nil {
		return p.record.Lease
	}
	return DefaultLease
}

// attached lists the processes that are alive. The caller holds mu.
func (n *Node) attached() (names []string) {
	for name := range n.processes {
		if n.alive(name) {
			names = append(names, name)
		}
	}
	return names
}

// Shutdown ends the node when its clients have gone, or when the context ends, whichever comes first. It takes no new
// connections meanwhile. The error is the context's when clients were cut off.
func (n *Node) Shutdown(ctx context.Context) error {
	n.mu.Lock()
	n.draining = true
	n.mu.Unlock()
	n.listener.Close()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for n.busy() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return errors.Join(ctx.Err(), n.Close())
		}
	}
	return n.Close()
}

// busy tells whether some process uses the node's memory.
func (n *Node) busy() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for c := range n.conns {
		if c.purpose == forVerbs {
			return true
		}
	}
	return false
}

// Close ends the node at once. What its memory held is gone.
func (n *Node) Close() error {
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return nil
	}
	n.closed = true
	close(n.stop)
	n.listener.Close()
	for _, c := range n.greeting {
		c.Close()
	}
	for c := range n.conns {
		c.raw.Close()
	}
	if p := n.pool.Load(); p != nil {
		p.end()
	}
	n.mu.Unlock()
	n.group.Wait()
	if p := n.pool.Load(); p != nil {
		if err := p.unregister(); err != nil { // what a device may still write to stays mapped
			return errors.Join(err, n.leaveFile())
		}
	}
	return errors.Join(n.memory.close(), n.leaveFile())
}
