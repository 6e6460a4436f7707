package memnode

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"runtime"
	"runtime/debug"
	"sync/atomic"
	"time"

	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/realtime"
	"github.com/farkv/farkv/node/rdma/transport"
)

const (
	// A batch stops when so many bytes of answers wait. What its last frame adds still fits a large
	// buffer: see hasRoom.
	flushBytes = 256 << 10 // of answers that are sent before further requests are executed
	// silence is after how long without a word from its peer a connection ends. Links ping each
	// transport.PingEvery, so that an end that lives is heard many times in it.
	silence = 3 * time.Second
	// WritePatience is for how long a writer may take none of its answers.
	WritePatience = 10 * time.Second

	// readerPatience is that of connections with the read token. It is shorter, since there may be
	// many that take nothing, each with answers in the node's memory and in the kernel's.
	readerPatience = time.Second

	maxControl  = 128 << 10 // bytes of a control message: the longest has a store's configuration, as base64 of base64
	mostThreads = 1024      // of connections that wait in the kernel: a Go process may have 10,000

	// yieldEvery is how often a goroutine that waits in the kernel lets others run. From 10 ms on
	// the runtime would take its processor away. Having found something to do, the runtime would
	// then look after all processors every 20 us for a while.
	yieldEvery = 5 * time.Millisecond
)

// conn is a connection that was welcomed. One goroutine serves it: requests are executed in the
// order in which they came, and those that came together are answered together.
type conn struct {
	node *Node
	// admit sets it, under Node.mu, before the connection can be found. It stays when the node
	// gives the pool up: the connection ends then, and serves no other pool.
	pool *pool // of verbs and peers; nil for control
	// nc is what is read and written: with TLS the session of it, and else raw. raw is closed to
	// end the connection, which wakes a goroutine that waits in nc.
	nc  net.Conn
	raw net.Conn
	// What the caller said in its transport.Hello, and proved with it. process is readerOf its name
	// for callers with the read token. peer is the number of the calling node, of connections for
	// peers.
	purpose  transport.Purpose
	process  string
	readOnly bool
	admin    bool // an administrator's, for control
	peer     int
	about    string // the pool that the caller said it is about, and the node of it that it wants
	index    int

	// Both are made by begin, under Node.mu: a fence that finds the connection finds them.
	session *session
	outlet  *outlet

	// in is what was read and is not executed yet. Requests, and blocks of entries, point into it:
	// none is used any more when batch returns. Only the goroutine of serve uses it, and readBy. Of
	// a connection that a fabric has beside the node both are unused: consume gets what the link
	// writes.
	in []byte
	// large, small and starved are of the goroutine that executes. sending is stored by it, and
	// loaded by outputs.endSlow.
	large   *largeBuffer  // that session.out is in; nil: it is the connection's own
	small   []byte        // the connection's own, while it has a large one
	starved bool          // the next frame needs a large buffer
	sending atomic.Int64  // since when a large buffer is being sent, on realtime.Now; 0: it is not
	readBy  time.Duration // when the deadline was set
}

// begin makes what the connection executes and writes by. It is of a pool from now on, or of none.
// It captures nc and raw: block may replace them only before. The caller holds Node.mu, under which
// the connection then becomes one of the node's.
func (c *conn) begin() {
	c.outlet = &outlet{node: c.node, pool: c.pool, nc: c.nc, raw: c.raw, patience: c.limits().patience}
	c.session = &session{node: c.node, pool: c.pool, readOnly: c.readOnly, number: c.node.numbers.Add(1),
		outlet: c.outlet}
}

// end makes sure that nothing that came over c is executed any more. The connection is closed
// first. So the goroutine that serves it wakes up, and finds that ended is set. drain waits for
// what is being executed. It may be called several times, by any goroutine that does not hold
// session.executing. A control message that is being executed is not waited for: it may have its
// effect later.
func (c *conn) end() {
	c.raw.Close()
	c.session.drain(true)
}

// block has a plain connection for verbs wait in the kernel; nil: it is none, or there are many, or
// it cannot. Over a blocking connection reads and writes have their bounds from the kernel, set
// here. A write ends when the peer took nothing for twice the bound, so that half of the patience
// is passed. The place among the threads is given back when the connection is closed.
func (c *conn) block() *transport.Blocking {
	t, ok := c.nc.(*net.TCPConn)
	if !ok || c.purpose != transport.ForVerbs {
		return nil
	}
	threads := &c.node.threads
	if threads.Add(1) > mostThreads {
		threads.Add(-1)
		return nil
	}
	b, err := transport.NewBlocking(t, silence, c.limits().patience/2, func() { threads.Add(-1) })
	if err != nil {
		threads.Add(-1)
		return nil
	}
	c.nc, c.raw = b, b
	return b
}

// errEnded is why a connection executes no more: conn.end was called, or the node closes.
var errEnded = errors.New("connection was ended")

// serve reads requests, executes and answers them, until the connection ends. It returns nil when
// the caller closed the connection between two frames. Errors that wrap transport.ErrProtocol are
// breaches of the caller. What was executed and not answered stays executed: to its sender it is of
// unknown outcome.
//
// Frames are parsed where they were read. Behind each read all whole frames are executed, and what
// is left of the last one moves to the front of the buffer. The buffer grows to the longest frame
// that came, and stays so.
func (c *conn) serve() error {
	c.session.look()
	debug.SetPanicOnFault(true) // a file's page may turn out to be missing when it is touched
	defer c.settle()
	defer c.session.forwardAll()
	// A panic of a page that cannot be backed becomes a status in execute, land and add.
	c.in = make([]byte, c.limits().in)
	have := 0
	for {
		c.deadlines()
		// in has room here: a frame that is not whole is shorter than in, as is made sure below.
		n, err := c.nc.Read(c.in[have:])
		if err != nil {
			if errors.Is(err, io.EOF) && have == 0 {
				return nil
			}
			return err
		}
		have += n
		used, err := c.consume(c.in[:have])
		if err != nil {
			return err
		}
		have = copy(c.in, c.in[used:have])
		if have >= transport.HeaderBytes {
			h, err := transport.ParseHeader(c.in, c.limits().body)
			if err != nil {
				return err
			}
			// A frame that is longer than the buffer is bounded by limits.body, which ParseHeader
			// has checked.
			if whole := transport.HeaderBytes + h.Body; whole > len(c.in) {
				c.in = append(c.in, make([]byte, whole-len(c.in))...)
			}
		}
	}
}

// consume executes the whole frames at the beginning of p, answers them, and returns how many bytes
// they were. Answers are sent before more is executed, so that what waits to be sent is bounded. A
// frame is executed at most once: an error ends the connection, and nothing reads what is left of
// p. One batch ends when p has no other whole frame, when flushBytes of answers wait, or when the
// next answer has no room behind those that are there. In the last two cases the next turn goes on
// behind the flush. A frame that alone needs more than the connection's own buffer is starved: with
// nothing to flush, and with nothing locked, it waits for a large buffer.
func (c *conn) consume(p []byte) (used int, err error) {
	for {
		n, err := c.batch(p[used:])
		if err != nil {
			return used, err
		}
		if err := c.flush(); err != nil {
			return used, err
		}
		if n == 0 && !c.starved {
			return used, nil
		}
		used += n
		if c.starved {
			if err := c.outputs().wait(c); err != nil {
				return used, err
			}
		}
	}
}

// deadlines renews those of the connection now and then. A caller that says nothing for so long is
// gone: it pings. Each renewal costs a change of a timer, so that it is not done for each read. So
// a silent caller is ended after three quarters of silence at the earliest.
func (c *conn) deadlines() {
	now := realtime.Now()
	switch _, ok := c.raw.(*transport.Blocking); {
	case ok && now-c.readBy > yieldEvery:
		c.readBy = now
		runtime.Gosched()
	case !ok && now-c.readBy > silence/4:
		c.readBy = now
		c.raw.SetReadDeadline(time.Now().Add(silence))
	}
}

// batch executes the whole frames at the beginning of p, as many as there are and have room for
// their answers, and returns how many bytes they were. For verbs it holds session.executing from
// the first frame to the last. Before that it waits for the node's lease, as long as pool.await
// does, and for the end of a fault that an administrator began. The error ends the connection.
// Control messages are executed without the lock and without a lease: a node without one has to
// take fences and promises.
func (c *conn) batch(p []byte) (used int, err error) {
	if len(p) < transport.HeaderBytes {
		return 0, nil
	}
	if err := c.delay(); err != nil {
		return 0, err
	}
	if c.purpose == transport.ForVerbs {
		if err := c.pool.await(); err != nil {
			return 0, err
		}
		// A fence that was raised before this lock was taken is seen by session.barred. One that is
		// raised later is answered when the lock is free again.
		c.session.executing.Lock()
		defer c.session.executing.Unlock()
		if c.session.ended {
			return 0, errEnded
		}
		// What is stored until memory.end is covered by a fence of the region that begins behind
		// it: see outlet.vouch.
		c.pool.memory.begin()
		defer c.pool.memory.end()
	}
	// It is deferred last, and so runs first: before memory.end, and before in is used again.
	defer c.session.landRest() // while executing is held
	for c.starved = false; len(p)-used >= transport.HeaderBytes && len(c.session.out) < flushBytes; {
		h, err := transport.ParseHeader(p[used:], c.limits().body)
		if err != nil {
			return used, err
		}
		// ParseHeader has bounded Body, so that end does not wrap.
		end := used + transport.HeaderBytes + h.Body
		if end > len(p) {
			break
		}
		// No large buffer is waited for here, since session.executing is held: consume does.
		if !c.hasRoom(h, p[used+transport.HeaderBytes:end]) {
			c.starved = len(c.session.out) == 0
			break
		}
		if err := c.handle(h, p[used+transport.HeaderBytes:end]); err != nil {
			return used, err
		}
		used = end
	}
	return used, nil
}

// flush sends the answers, once what they tell of is as durable as the node's memory can make it.
// Those of a node that may not serve any more are not sent: see pool. session.executing is free
// meanwhile. So a fence may be answered earlier than requests that were executed before it: these
// have landed, and only their answers are under way. Mail for others goes first: a receiver does
// not wait until the sender has taken its answers.
func (c *conn) flush() error {
	c.session.forwardAll()
	if len(c.session.out) == 0 {
		return nil
	}
	// They are added before the answers leave, so that a client finds its own verbs counted.
	c.node.stats.add(&c.session.counters)
	if c.purpose == transport.ForVerbs {
		if err := c.outlet.vouch(); err != nil {
			return err
		}
	}
	if c.large != nil {
		c.sending.Store(int64(realtime.Now()))
	}
	// The slot of a large buffer is given back behind the write, also behind one that failed.
	err := c.outlet.write(c.session.out)
	c.session.out = c.session.out[:0]
	c.settle()
	return err
}

// settle gives up memory for answers that were long. What is in the buffers has been sent, or never
// will be.
func (c *conn) settle() {
	if c.large != nil {
		c.sending.Store(0)
		c.outputs().take(c)
	}
	if cap(c.session.out) > 2*outBytes {
		c.session.out = nil
	}
}

// What a kind's body has to be is checked here where it has one length, and else by what executes
// it. Each kind belongs to connections of one purpose. A frame of another one is a breach, since
// the caller proved a purpose when it was let in. The error ends the connection.
func (c *conn) handle(h transport.Header, body []byte) error {
	switch {
	case h.Kind == transport.KindPing && h.Body == 0:
		c.session.answer(h, transport.StatusOK, 0, len(c.session.out)+transport.HeaderBytes)
	case h.Kind == transport.KindServe && c.purpose == transport.ForVerbs && h.Body == 0:
		c.session.serves(h)
	case h.Kind == transport.KindAttach && c.purpose == transport.ForVerbs:
		return c.session.attach(h, body)
	case h.Kind == transport.KindVerbs && c.purpose == transport.ForVerbs:
		return c.session.verbs(h, body)
	case h.Kind == transport.KindListen && c.purpose == transport.ForVerbs:
		return c.session.listen(h, body)
	case h.Kind == transport.KindRing && c.purpose == transport.ForVerbs:
		return c.session.ring(h, body)
	case h.Kind == transport.KindMeet && c.purpose == transport.ForVerbs:
		return c.session.meet(h, body)
	case h.Kind == transport.KindCall && c.purpose == transport.ForVerbs && h.Body == transport.CallBytes:
		c.session.call(h, body)
	case h.Kind == transport.KindControl && c.purpose != transport.ForVerbs && h.Body <= maxControl:
		return c.control(h, body)
	default:
		return fmt.Errorf("frame of kind %d with %d bytes over a connection for %s: %w", h.Kind,
			h.Body, c.purpose, transport.ErrProtocol)
	}
	return nil
}

// control executes a control message. Connections for it execute no verbs, so that those of others
// can be waited for here. A message may be executed twice, when the connection breaks before its
// answer: see transport.Ask. Each kind does no harm then. An error of the message itself is
// answered, as a status and a text. Only what is no message ends the connection.
func (c *conn) control(h transport.Header, body []byte) error {
	var m control.Message
	if err := json.Unmarshal(body, &m); err != nil {
		return fmt.Errorf("decode a message: %w: %w", transport.ErrProtocol, err)
	}
	// With the full token a long answer says which clients live, which decides what may be
	// expelled: it must not wait for connections that take no answers.
	if c.readOnly && m.IsLong() && c.large == nil {
		if err := c.outputs().wait(c); err != nil {
			return err
		}
	}
	// It may take seconds, such as to drain all connections, or until a device's processes have
	// parted.
	end := c.sendKeepalives()
	r, err := c.node.do(c, &m)
	end()
	if err != nil {
		r.Text = err.Error()
	}
	c.session.out, err = transport.AppendMessage(c.session.out, transport.KindControl, transport.StatusOf(err),
		h.Tag, &r)
	return err
}
