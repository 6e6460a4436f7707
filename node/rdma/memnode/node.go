package memnode

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/farkv/farkv/node/pmem"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/realtime"
	"github.com/farkv/farkv/node/rdma/transport"
	"github.com/farkv/farkv/node/telemetry"
)

// Config shapes a memory node. Zero values mean defaults where there are any.
type Config struct {
	Listen string // HOST:PORT; port 0 is any free one: see transport.Listen
	// From 4 KiB to control.MaxMemory. It is mapped at once. Anonymous memory takes pages of the
	// machine only where they are touched, unless they are huge.
	Memory uint64 // bytes that it offers
	// Telemetry is how many bytes it has beside, for pools that register more than their stores
	// have: see rdma.Geometry.
	Telemetry uint64
	File      string // backs the memory; "": anonymous memory does
	// Region is the memory, with all that a node must remember to come back as itself: see
	// remember.go. Its size is Memory and Telemetry, in whole pages, its table's TableBytes. It is
	// the node's, and closed with it. Nil: a node that ends forgets.
	Region *pmem.Region
	// Handler runs the procedures of rdma.Proc; nil: calls end in rdma.ErrNotSupported.
	Handler  rdma.Handler
	Device   Device // executes the verbs of pools of which Record.Fabric is the device's; nil: there is none
	Security transport.Security
	// connections of clients at most, default DefaultConns; fewer where the limit of open files is
	// low
	Conns int
	Log   *slog.Logger // nil: it is silent
	// Modules are a model of persistent memory: they count what verbs do to pools' memory,
	// telemetry apart, as if it were theirs. Nil: nothing does.
	Modules *pmem.Device
	// PMem returns what is known of the machine's persistent memory, which the node tells those
	// that inspect it; nil: nothing is.
	PMem func() *telemetry.PMem
}

// What callers branch on.
var (
	// ErrOpen is wrapped when a node without a token is to listen where other machines reach it.
	ErrOpen = errors.New("a node without a token listens on loopback only")
	// ErrMemory is wrapped when a node cannot offer that much memory.
	ErrMemory = errors.New("bad size of a node's memory")
)

// Node is a memory node: it executes the verbs that come over its connections. It serves one pool
// at a time. Locks are taken in this order: mu, session.executing, the locks of pool.rings and
// pool.boxes, nodeRing.mu and mail.mu. parts.asking is taken before mu, and outlet.writing before
// mail.mu. None of pool.mu, registryMu and noting is held while another one of these is taken.
type Node struct {
	// What is up to file does not change behind listen, incarnation apart.
	cfg      Config
	log      *slog.Logger
	listener net.Listener
	// incarnation names this node to others for as long as what it remembers lasts. Another one
	// says that the node has forgotten all. It is random, and is drawn again whenever the node
	// leaves a pool: see forget.
	incarnation atomic.Uint64
	file        *os.File
	stats       counters
	// broken is never reset: see breaks.
	broken atomic.Pointer[error] // why what is durable is unknown; nil: it is known
	// stop is closed by Close, under mu.
	stop chan struct{}
	// group has every goroutine of the node. Close waits for it before the memory is unmapped.
	group sync.WaitGroup
	// threads is at most mostThreads: beyond that connections are read through Go's poller.
	threads atomic.Int32                           // of connections that wait in the kernel
	numbers atomic.Uint64                          // of connections, so far
	server  atomic.Pointer[func() *control.Server] // nil: there is none
	// holds one while no receiver has heard that the pool may be another
	changed chan struct{}
	// The large buffers for answers, of connections with the read token, and of all others.
	readerOutputs, outputs *outputs

	// pool is replaced under mu. Goroutines that execute verbs load it without mu.
	pool atomic.Pointer[pool]

	// mu is locked before session.executing and pool.mu, and is not held while a socket is read or
	// written. Under mu are all fields below it, the fields of process, and pool.creator.
	mu sync.Mutex
	// memory is replaced under mu when no pool has it: a pool keeps the one that it was made with.
	memory *memory
	used   bool // memory held a pool, and was not renewed since
	// conns has each connection from when it was entered until its goroutine has left. So it may
	// have two of a process for one purpose, of which one was ended.
	conns map[*conn]struct{}
	// Times until which the places of readers that took no answers stay taken, in order, on
	// realtime.Now. A penalty keeps the place from a reader that comes back at once.
	penalties    []time.Duration
	mostGreeting int       // see fit
	greeting     []greeter // that have not said yet what they want, the oldest first
	// processes has those that have a connection about the pool, and those that lost the last one
	// less than a grace ago.
	processes map[string]*process
	// While draining is set no connection is let in. closed is never reset, and neither is
	// draining.
	draining  bool
	closed    bool
	refusedAt [reasons]time.Duration // when it was logged last that a connection was refused
}

// process is one that has, or had a moment ago, connections to the node. Clients' liveness goes by
// it: a client is dead when no node of its pool knows its process any more. Its connections count
// that are about a pool, for verbs or for control. Peers have no process.
type process struct {
	conns int
	lost  time.Duration // when the last one ended
	left  bool          // it said that it goes
}

// Listen starts a memory node, which has no pool yet. The error wraps ErrMemory or ErrOpen for a
// Config that there cannot be, and ErrFile for a file that is none of a node's. Others are the
// system's or the Region's. A node with a Region may be in the pool that it was in when it ended,
// and asks its peers for leases at once.
func Listen(c Config) (*Node, error) {
	n, err := listen(c)
	if err != nil {
		return nil, fmt.Errorf("start a memory node on %s: %w", c.Listen, err)
	}
	return n, nil
}

// listen makes the node's parts in the order in which they depend on each other. What fails gives
// back those before. The Region is the caller's to close if it fails before there is memory, and is
// closed with the memory otherwise.
func listen(c Config) (*Node, error) {
	if c.Conns == 0 {
		c.Conns = DefaultConns
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	if c.Memory < 4096 || c.Memory > control.MaxMemory {
		return nil, fmt.Errorf("%w: %d bytes: want 4 KiB to 16 TiB", ErrMemory, c.Memory)
	}
	if len(c.Security.Token) == 0 && (len(c.Security.ReadToken) > 0 || !control.OnLoopback(c.Listen)) {
		return nil, ErrOpen
	}
	n := &Node{
		cfg: c, log: c.Log, stop: make(chan struct{}), changed: make(chan struct{}, 1), conns: map[*conn]struct{}{},
		processes: map[string]*process{},
	}
	n.fit(mostFiles())
	n.outputs = newOutputs(slowUnderPressure)
	n.readerOutputs = newOutputs(slowReaderUnderPressure)
	// recall replaces it by the one that a Region remembers.
	n.incarnation.Store(newIncarnation())
	var err error
	if c.File != "" {
		if n.file, err = openFile(c.File); err != nil {
			return nil, err
		}
	}
	if n.memory, err = n.newMemory(); err != nil {
		return nil, errors.Join(err, n.leaveFile())
	}
	if n.listener, err = transport.Listen(c.Listen, c.Region != nil); err != nil {
		return nil, errors.Join(err, n.memory.close(), n.leaveFile())
	}
	if err := n.recall(); err != nil {
		return nil, errors.Join(err, n.listener.Close(), n.memory.close())
	}
	// It is last: all that the node has to remember is there when the first connection comes.
	n.group.Go(n.accept)
	return n, nil
}

// Bytes is how many bytes a node maps: whole pages of 4 KiB, so that a few bytes of those asked for
// may be left out.
func (c Config) Bytes() uint64 { return (c.Memory + c.Telemetry) &^ 4095 }

// newMemory returns memory that is all zero, but for a region, which holds what it held. The error
// wraps ErrMemory when a Region has another size.
func (n *Node) newMemory() (*memory, error) {
	size := n.cfg.Bytes()
	if r := n.cfg.Region; r != nil {
		if r.Size() != size {
			return nil, fmt.Errorf("%w: a region of %d bytes, want %d", ErrMemory, r.Size(), size)
		}
		return &memory{region: r, base: r.Base(), size: size}, nil
	}
	return newMemory(size, n.file, n.cfg.Device != nil, n.log)
}

// newIncarnation draws the name of a node that remembers nothing.
func newIncarnation() uint64 {
	var r [8]byte
	rand.Read(r[:]) // never fails
	return binary.LittleEndian.Uint64(r[:])
}

// leaveFile gives back the file behind the memory, if there is one. The memory was unmapped, or is
// never used again.
func (n *Node) leaveFile() error {
	if n.file == nil {
		return nil
	}
	return leaveFile(n.file)
}

// Addr is where the node listens.
func (n *Node) Addr() string { return n.listener.Addr().String() }

// accept takes connections until the listener is closed. An error of a single one does not end it:
// it goes on after a pause of up to a second. A goroutine of its own greets each connection, so
// that one that says nothing keeps back no other.
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
		n.makeRoom()
		// makeRoom may have freed mu. Under mu a connection is noted and its goroutine added to the
		// group, or Close has begun and will not see it.
		if n.closed || n.draining {
			n.mu.Unlock()
			c.Close()
			continue
		}
		n.greeting = append(n.greeting, greeter{c, realtime.Now()})
		n.group.Go(func() { n.receive(c) })
		n.mu.Unlock()
	}
}

// receive finds out what a connection is for, and serves it to its end. It returns when nothing
// that came over the connection is executed any more, and the connection is forgotten.
func (n *Node) receive(raw net.Conn) {
	defer raw.Close()
	c, err := n.welcome(raw)
	if c == nil {
		n.mu.Lock()
		defer n.mu.Unlock()
		var why *transport.Refused
		if n.isGreeting(raw) || errors.As(err, &why) { // else it was ended to make room, and counted then
			n.refuse(raw, err)
		}
		return
	}
	defer n.leave(c)
	switch err := c.serve(); {
	case errors.Is(err, transport.ErrProtocol):
		n.stats.breaches.Add(1)
		n.log.Warn("ended a connection", "from", raw.RemoteAddr().String(), "why", err.Error())
	case err != nil:
		n.log.Debug("connection ended", "from", raw.RemoteAddr().String(), "why", err.Error())
	}
}

// leave forgets a connection. Its process stays known for a moment: it may be about to connect
// again. What came over it has been executed, or never will be, before its process counts as gone:
// a client is found dead only behind its last verb. It blocks for what is being executed. Another
// call for the same connection changes nothing. When the maker of a pool that is not sealed loses a
// connection, a goroutine of the node's may give that pool up later: see abandoned.
func (n *Node) leave(c *conn) {
	// It is called before mu is locked, so that others do not wait for what is being executed.
	c.end()
	n.mu.Lock()
	defer n.mu.Unlock()
	if _, ok := n.conns[c]; !ok {
		return
	}
	delete(n.conns, c)
	now := realtime.Now()
	if c.readOnly && c.outlet.slow.Load() {
		n.penalties = append(n.penalties, now+SlowPenalty)
	}
	// as register counted
	if proc := n.processes[c.process]; proc != nil && c.purpose != transport.ForPeer && c.about != "" {
		proc.conns--
		proc.lost = now
	}
	// Each connection that ends clears out what is over of others: no timer does. alive looks at
	// the time, and does not need that.
	for name, proc := range n.processes {
		if proc.conns == 0 && (proc.left || now-proc.lost > n.grace()) {
			delete(n.processes, name)
		}
	}
	if p := n.pool.Load(); p != nil && p.creator == c.process && !n.closed {
		n.group.Go(func() { n.abandoned(p) })
	}
}

// alive reports whether a process is, or may be about to connect again. The caller holds mu. Only
// all nodes together know that a process is gone: another one may have a connection of it.
func (n *Node) alive(process string) bool {
	proc := n.processes[process]
	return proc != nil && !proc.left && (proc.conns > 0 || realtime.Now()-proc.lost <= n.grace())
}

// grace is for how long a process counts as alive behind the end of its last connection. A process
// that lost its connections for a shorter time is not taken for dead, though it may be. What that
// costs is a lease of waiting. The caller holds mu, so that the pool is not replaced meanwhile.
func (n *Node) grace() time.Duration {
	if p := n.pool.Load(); p != nil {
		return p.record.Lease
	}
	return control.DefaultLease
}

// readerOf returns the name by which a node knows a process that may only read. So a reader cannot
// take the place of a process with the full token that it knows the name of.
func readerOf(process string) string { return "reader " + process }

// isAttached reports whether a process is alive.
func (n *Node) isAttached(process string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.alive(process)
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

// Shutdown ends the node when its clients have gone, or when the context ends, whichever comes
// first. It takes no new connections meanwhile. The error is the context's when clients were cut
// off. It blocks until then. Connections for control alone, and peers', do not keep it up. The
// error may be Close's, too.
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

// busy reports whether some process uses the node's memory, but for the servers of other nodes,
// which stay.
func (n *Node) busy() bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	for c := range n.conns {
		if c.purpose == transport.ForVerbs && !control.IsBeside(c.process) {
			return true
		}
	}
	return false
}

// Close ends the node at once. What its memory held is gone, unless that is a Region. Clients find
// that their connections break: what they had in flight may have landed. A Region is left as a
// crash leaves it: what was answered is durable. It waits for all goroutines of the node, and so
// for what is being executed. Another call returns nil at once, and may do so before the first one
// is over. The error is that of what did not go away: the mapping, the file, or a device's
// registration.
func (n *Node) Close() error {
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return nil
	}
	// Behind it no connection is entered.
	n.closed = true
	close(n.stop)
	n.listener.Close()
	for _, g := range n.greeting {
		g.conn.Close()
	}
	for c := range n.conns {
		c.raw.Close()
	}
	// What waits for a lease gives up, and what keeps the node's own lease ends.
	if p := n.pool.Load(); p != nil {
		p.end()
	}
	n.mu.Unlock()
	n.group.Wait()
	// All connections from device to device have ended with the sessions that had them.
	if p := n.pool.Load(); p != nil {
		if err := p.unregister(); err != nil { // what a device may still write to stays mapped
			return errors.Join(err, n.leaveFile())
		}
	}
	return errors.Join(n.memory.close(), n.leaveFile())
}
