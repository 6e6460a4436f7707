package memnode

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/realtime"
	"github.com/farkv/farkv/node/rdma/transport"
)

// DefaultConns is how many connections of clients a node has at most. Connections with the read
// token have half of them at most, so that readers cannot lock writers out. Peers, which keep each
// other's leases, are not counted.
const DefaultConns = 1024

// The bounds below are not a part of the protocol: nodes of a pool may differ in them.
const (
	// adminConns is how many connections of administrators there may be beyond the others: a
	// command needs three at a time.
	adminConns = 16
	// mostGreeting bounds the connections that have not said yet what they want. When there are
	// more, the oldest has to go: those that say nothing cannot keep out those that have something
	// to say. It has had greetGrace, so that those that do say something do not push out each other
	// when many come at once: the kernel keeps the next ones waiting meanwhile, a full queue of
	// 4096 for half a second.
	mostGreeting = 1024
	greetGrace   = 100 * time.Millisecond
	// ownFiles is how many files a process needs beside its clients' connections: the log, the
	// memory, the poller, metrics, an agent of Consul, a device, connections to and from six peers,
	// each twice while it is made again. plentyOfFiles stands for a limit that is not known.
	ownFiles      = 96
	plentyOfFiles = 1 << 20
	// SlowPenalty is for how long the place of a reader that took no answers stays taken: so an
	// attacker that comes back at once costs little.
	SlowPenalty = 5 * time.Second
	// maxProcess bounds the name of a process, in bytes. The names that processes draw are shorter.
	maxProcess = 64
)

// reason is why a connection was not let in.
type reason int

// Each reason has a counter in the node's stats, and is logged by itself.
const (
	refusedRoom    reason = iota // too many connections
	refusedSilent                // it did not say in time what it wants
	refusedVersion               // it speaks another version
	refusedRules                 // anything else, such as a pool that the node does not serve
	refusedAuth                  // a wrong token, or no trust between the two ends of TLS
	reasons
)

func (r reason) String() string {
	return [...]string{refusedRoom: "room", refusedSilent: "silent", refusedVersion: "version", refusedRules: "rules",
		refusedAuth: "auth"}[r]
}

// errHandshake is wrapped when TLS does not come about. It tells an end that does not trust the
// other from one that only went away.
var errHandshake = errors.New("TLS handshake")

// reasonOf is the reason that err says. An end that resets the connection, or ends it early, counts
// as one that said nothing in time. refusedRules is for what is none of the others.
func reasonOf(err error) reason {
	var other *transport.VersionError
	switch {
	case errors.Is(err, transport.ErrToken), errors.Is(err, errHandshake):
		return refusedAuth
	case errors.As(err, &other):
		return refusedVersion
	case errors.Is(err, transport.ErrConnections):
		return refusedRoom
	case errors.Is(err, os.ErrDeadlineExceeded), errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF),
		errors.Is(err, unix.ECONNRESET):
		return refusedSilent
	}
	return refusedRules
}

// errSilent is why the oldest of too many connections that say nothing has to go.
var errSilent = fmt.Errorf("too many connections say nothing: %w", os.ErrDeadlineExceeded)

// refuse ends a connection, counts it, and logs it once a minute for each reason. The caller holds
// mu. It does not send a reason: that was sent before, if the caller had got so far. It is called
// once for a connection: receive finds that one was refused to make room, since it is among
// greeting no more.
func (n *Node) refuse(c net.Conn, err error) {
	// A silent connection must not be refused again by makeRoom.
	n.forgetGreeting(c)
	why := reasonOf(err)
	n.stats.refused[why].Add(1)
	c.Close()
	if now := realtime.Now(); n.refusedAt[why] == 0 || now-n.refusedAt[why] > time.Minute {
		n.refusedAt[why] = now
		n.log.Warn("refused a connection (logged once a minute)", "from", c.RemoteAddr().String(), "reason",
			why.String(), "why", err.Error(), "refused", n.stats.refused[why].Load())
	}
}

// greeter is a connection that has not said yet what it wants, since a time on realtime.Now. The
// node knows it in Node.greeting, so that Close and makeRoom can end it. accept adds it, and
// register or refuse takes it out.
type greeter struct {
	conn  net.Conn
	since time.Duration
}

// makeRoom returns when there is room for another connection that has not said what it wants. The
// caller holds mu, which is free meanwhile. mu may have been free, so that the caller looks at
// closed behind it. It takes greetGrace at most from when it has found no room, and a bit for each
// sleep. Only accept calls it, so that room which it finds stays until its caller has used it. The
// oldest is ended from here: its goroutine finds the connection closed.
func (n *Node) makeRoom() {
	for len(n.greeting) >= n.mostGreeting && !n.closed { // bounded, since the oldest gets older
		if realtime.Now()-n.greeting[0].since >= greetGrace {
			n.refuse(n.greeting[0].conn, errSilent)
			return
		}
		n.mu.Unlock()
		time.Sleep(time.Millisecond)
		n.mu.Lock()
	}
}

// isGreeting reports whether a connection is among those that have not said what they want. The
// caller holds mu.
func (n *Node) isGreeting(c net.Conn) bool {
	return slices.ContainsFunc(n.greeting, func(g greeter) bool { return g.conn == c })
}

// forgetGreeting notes that a connection has said what it wants, or was refused. The caller holds
// mu.
func (n *Node) forgetGreeting(c net.Conn) {
	n.greeting = slices.DeleteFunc(n.greeting, func(g greeter) bool { return g.conn == c })
}

// welcome lets a caller in. It has transport.GreetPatience to prove that it knows a token. The
// connection is entered before the answer is sent. So a caller that has been let in is known to be
// alive, and what its process had for the same purpose is over. Rights to act are not given here:
// each message and each frame is checked by itself. The order: TLS, if the node has it; the
// greeting, by which the caller proves a token and says what it wants; a wait, if a fault cuts the
// caller off; enter; the answer. A caller that is refused in enter gets a status and a text, and
// has proved a token before. The error says why the connection was not let in, and then c is nil,
// and raw is the caller's to close.
//
// A connection that breaks before the answer was let in for a moment. It has replaced the last one
// of its process all the same.
func (n *Node) welcome(raw net.Conn) (*conn, error) {
	// It bounds the handshake, the greeting and the answer together.
	raw.SetDeadline(time.Now().Add(transport.GreetPatience))
	nc, err := n.secure(raw)
	if err != nil {
		return nil, err
	}
	// Greeted checks versions, and that the caller knows a token. Everything in h is covered by its
	// proof.
	h, readOnly, answer, err := transport.Greeted(nc, n.cfg.Security)
	if err != nil {
		return nil, err
	}
	if readOnly {
		h.Process = readerOf(h.Process) // so that a reader takes no other process's place, and says no goodbye for it
	}
	c := &conn{node: n, nc: nc, raw: raw, purpose: h.Purpose, process: h.Process, readOnly: readOnly, peer: h.Peer,
		about: h.Pool, index: h.Node, admin: h.Admin && !readOnly && h.Purpose == transport.ForControl}
	if err := n.holdBack(&h, c.admin); err != nil {
		return nil, err
	}
	// It is before enter, since the connection's writer is made there.
	b := c.block()
	w := transport.Welcome{Incarnation: n.incarnation.Load(), ReadOnly: readOnly}
	if why := n.enter(c, raw, h, &w); why != nil {
		w.Text = why.Text
		defer c.raw.Close()
		return nil, errors.Join(why, answer(w, why.Status))
	}
	if err := answer(w, transport.StatusOK); err != nil {
		n.leave(c)
		return nil, err
	}
	// From here on conn.deadlines and outlet.put set deadlines.
	raw.SetDeadline(time.Time{})
	if t, ok := raw.(*net.TCPConn); ok {
		t.SetNoDelay(true)
		t.SetWriteBuffer(c.limits().send)
	}
	// It is the last use of the poller: the handshake and the answer were bounded by its deadlines.
	if b != nil {
		b.LeavePoller()
	}
	return c, nil
}

// secure wraps a connection with TLS, if the node has it. An error wraps errHandshake, unless the
// caller was only slow.
func (n *Node) secure(raw net.Conn) (net.Conn, error) {
	if n.cfg.Security.TLS == nil {
		return raw, nil
	}
	nc := tls.Server(raw, n.cfg.Security.TLS)
	err := nc.HandshakeContext(context.Background()) // the connection's deadline bounds it
	// such as a reset by an end that does not trust the other
	if err != nil && !errors.Is(err, os.ErrDeadlineExceeded) {
		err = fmt.Errorf("%w: %w", errHandshake, err)
	}
	return nc, err
}

// enter makes c one of the node's connections. What its process had for the same purpose ends
// before: no verb that came over it is executed any more. It is waited for without mu: a procedure
// may take its time, and others do not wait for it. Of two connections that a process makes at a
// time the one that is entered later stays. It blocks for as long as the old connections take to
// execute what they have begun. They end also when there is no room for c: its process has given
// them up.
func (n *Node) enter(c *conn, raw net.Conn, h transport.Hello, w *transport.Welcome) *transport.Refused {
	old, why := n.register(c, raw, h, w)
	for _, o := range old {
		o.end()
	}
	return why
}

// register returns the connections that c replaces. Those stay among the node's connections until
// their goroutines end: until then a fence drains them, too. It is one step under mu: the checks,
// the room and the entry. So no two connections get the last place, and a fence that comes behind
// lists c. w gets the key of the pool.
func (n *Node) register(c *conn, raw net.Conn, h transport.Hello, w *transport.Welcome) (replaced []*conn,
	why *transport.Refused) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.forgetGreeting(raw)
	if n.closed || n.draining {
		return nil, transport.Refuse(rdma.ErrNodeDown, "the node is about to end")
	}
	if len(h.Process) < 1 || len(h.Process) > maxProcess {
		return nil, transport.Refuse(transport.ErrProtocol, "a process with a name of %d bytes", len(h.Process))
	}
	if why := n.admit(c, &h, w); why != nil {
		return nil, why
	}
	for old := range n.conns {
		if old.purpose == c.purpose && (c.purpose == transport.ForPeer && old.peer == c.peer ||
			c.purpose != transport.ForPeer && old.process == c.process) {
			replaced = append(replaced, old)
		}
	}
	if why := n.room(c, h.Admin); why != nil {
		return replaced, why
	}
	// Before others can find c: they use its session and its outlet.
	c.begin()
	n.conns[c] = struct{}{}
	// a caller about no pool only looks, and is none of its processes
	if c.purpose != transport.ForPeer && h.Pool != "" {
		proc := n.processes[c.process]
		if proc == nil {
			proc = &process{}
			n.processes[c.process] = proc
		}
		proc.conns++
	}
	return replaced, nil
}

// admit checks what a connection is for, and ties it to the pool. The caller holds mu. It is done
// under the same lock as the pool's replacement. So a connection has the pool that the node had
// when it was let in, or is ended with it. Connections for control are about any pool or none:
// conn.mayAct checks each message. Those for verbs and for peers are about the node's pool, by the
// pool's id and the node's number in it. A witness takes peers and control, and an expelled node
// takes control alone. The refusal's status is what the caller's link makes of it: with StatusDown
// it counts the node's process as gone for the pool. See transport.Link.Gone.
func (n *Node) admit(c *conn, h *transport.Hello, w *transport.Welcome) *transport.Refused {
	p := n.pool.Load()
	switch h.Purpose {
	case transport.ForControl:
	case transport.ForVerbs, transport.ForPeer:
		if p == nil || p.record.ID != h.Pool || p.record.Index != h.Node {
			return transport.Refuse(rdma.ErrNodeDown, "the node does not serve pool %s", h.Pool)
		}
		if h.Purpose == transport.ForVerbs && h.Node >= p.record.Nodes {
			return transport.Refuse(rdma.ErrAccess, "the node is a witness of pool %s, and has no memory", h.Pool)
		}
		if p.expelled.Load() {
			return transport.Refuse(rdma.ErrNodeDown, "the node was expelled from pool %s", h.Pool)
		}
		c.pool = p
		w.Key = p.key
		if c.readOnly {
			w.Key = p.readKey
		}
	default:
		return transport.Refuse(transport.ErrProtocol, "a connection for %q: this node knows none", h.Purpose)
	}
	if h.Purpose == transport.ForPeer && (c.readOnly || h.Peer < 0 || h.Peer >= len(p.record.Addresses)) {
		return transport.Refuse(rdma.ErrAccess, "not a peer")
	}
	return nil
}

// room returns why there is no room for c. The caller holds mu. Half of the places are the readers'
// at most. Administrators have some beyond all places, if they know the full token. A place that c
// is about to take over from an earlier connection of its process still counts as taken, since that
// one leaves later.
func (n *Node) room(c *conn, admin bool) *transport.Refused {
	if c.purpose == transport.ForPeer { // clients must not take the peers' leases from the node
		return nil
	}
	all, readers := n.callers()
	now := realtime.Now()
	n.penalties = slices.DeleteFunc(n.penalties, func(until time.Duration) bool { return until <= now })
	readers += len(n.penalties)
	switch most := n.cfg.Conns; {
	case c.readOnly && readers >= mostReaders(most):
		return transport.Refuse(transport.ErrConnections,
			"the node has %d connections of readers, or had until they took no answers, "+
				"and takes no more", readers)
	case all >= most && (!admin || c.readOnly || all >= most+adminConns):
		return transport.Refuse(transport.ErrConnections, "the node has %d connections, and takes no more", all)
	}
	return nil
}

// fit lowers the bounds on connections to what the limit of open files allows: a node that has no
// file left for a peer's connection loses its lease. A connection takes two files while it is let
// in. The connections that may say nothing yet are an eighth of the files left at most, and take
// two files each. Clients get the rest. Each bound is 1 at least, so that a node with few files is
// slow to reach, and not out of reach. It runs once, before the node listens. The log says so when
// fewer clients fit than were asked for.
func (n *Node) fit(files uint64) {
	n.mostGreeting = mostGreeting
	if left := max(int64(files)-ownFiles-adminConns, 2); left < int64(n.cfg.Conns+2*mostGreeting) {
		n.mostGreeting = int(min(max(left/8, 1), mostGreeting))
		conns := max(int(left)-2*n.mostGreeting, 1)
		if conns < n.cfg.Conns {
			n.log.Warn("takes fewer connections, since few files may be open", "connections", conns,
				"asked for", n.cfg.Conns, "files", files, "hint", "raise the limit of open files, such as with "+
					"ulimit -n")
			n.cfg.Conns = conns
		}
	}
}

// mostReaders is how many of a node's connections may be those of readers.
func mostReaders(conns int) int { return max(conns/2, 1) }

// callers counts all connections but those of peers, and those of readers among them. The caller
// holds mu. Connections that were ended and have not left yet are among them.
func (n *Node) callers() (all, readers int) {
	for c := range n.conns {
		if c.purpose == transport.ForPeer {
			continue
		}
		all++
		if c.readOnly {
			readers++
		}
	}
	return all, readers
}

// Room is what a node has for connections. It is for tests that press a node.
type Room struct {
	Greeting    int // connections that may be open and have said nothing
	Readers     int // more connections with the read token that it takes
	LongAnswers int // connections, but those with the read token, that have a large buffer for answers now
}

// Room returns what the node has for connections now. It holds for the moment at which it is asked.
func (n *Node) Room() Room {
	n.mu.Lock()
	defer n.mu.Unlock()
	_, readers := n.callers()
	return Room{n.mostGreeting, mostReaders(n.cfg.Conns) - readers - len(n.penalties), len(n.outputs.slots)}
}
