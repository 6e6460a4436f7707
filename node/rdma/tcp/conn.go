package tcp

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"runtime"
	"runtime/debug"
	"sync"
	"sync/atomic"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/realtime"
)

const (
	socketBytes   = 1 << 20   // of the send buffer of a connection to a node
	inBytes       = 64 << 10  // of a connection's input, unless a frame needs more
	flushBytes    = 256 << 10 // of answers that are sent before further requests are executed
	silence       = 3 * time.Second
	writePatience = 10 * time.Second

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
	node     *Node
	pool     *pool // of verbs and peers; nil for control
	nc       net.Conn
	raw      net.Conn
	purpose  purpose
	process  string
	readOnly bool
	admin    bool // an administrator's, for control
	peer     int
	about    string // the pool that the caller said it is about, and the node of it that it wants
	index    int

	// executing is held while requests are executed. A goroutine that takes it, and finds ended
	// true or sets it, knows that no request that came over the connection is executed any more.
	executing sync.Mutex
	ended     bool
	// connections of the process's workers to the node's memory and rings, past this one
	attached map[target]attachment
	ringed   int            // of these, to rings
	boxes    map[owner]*box // of the process's workers, under executing
	entries  []entry        // that have begun, and have no other block in flight; empty between two batches
	mailed   []*conn        // those that got messages which have not been forwarded yet
	number   uint64         // by which answers to its offers find it
	meets    bool           // it has made offers
	hosts    atomic.Bool    // it has mailboxes to which messages come from device to device
	parted   atomic.Uint64  // the last fence of which it has ended the connections concerned

	mail    mail
	writing sync.Mutex // held to write to the connection

	in       []byte
	out      []byte
	large    *largeBuffer             // that out is in; nil: it is the connection's own
	small    []byte                   // the connection's own, while it has a large one
	starved  bool                     // the next frame needs a large buffer
	slow     atomic.Bool              // it was ended because its peer did not take its answers
	sending  atomic.Int64             // since when a large buffer is being sent, on realtime.Now; 0: it is not
	broken   map[rdma.ClientID]uint64 // lives that strayed: their connection is down
	readBy   time.Duration            // when the deadlines were set
	writeBy  time.Duration
	view     view
	request  rdma.Request // that is being executed
	counters tally
	own      uint64 // for barriers; its cache line is not shared
}

// end makes sure that nothing that came over c is executed any more.
func (c *conn) end() {
	c.raw.Close()
	c.drain(true)
}

// drain waits until the requests being executed are over, including those that a device executes
// for workers that may post no more. With end, the connection executes no requests from then on.
func (c *conn) drain(end bool) {
	c.executing.Lock()
	defer c.executing.Unlock()
	c.ended = c.ended || end
	c.detach()
	c.unlisten()
	if c.pool != nil {
		c.unring()
	}
}

// block has a plain connection for verbs wait in the kernel; nil: it is none, or there are many, or
// it cannot.
func (c *conn) block() *blocking {
	t, ok := c.nc.(*net.TCPConn)
	if !ok || c.purpose != forVerbs {
		return nil
	}
	threads := &c.node.threads
	if threads.Add(1) > mostThreads {
		threads.Add(-1)
		return nil
	}
	b, err := newBlocking(t, silence, c.limits().patience/2, func() { threads.Add(-1) })
	if err != nil {
		threads.Add(-1)
		return nil
	}
	c.nc, c.raw = b, b
	return b
}

var errEnded = errors.New("connection was ended")

// serve reads requests, executes and answers them, until the connection ends.
func (c *conn) serve() error {
	c.look()
	debug.SetPanicOnFault(true) // a file's page may turn out to be missing when it is touched
	defer c.settle()
	defer c.forwardAll()
	c.in = make([]byte, c.limits().in)
	have := 0
	for {
		c.deadlines()
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
		if have >= headerBytes {
			h, err := parseHeader(c.in, c.limits().body)
			if err != nil {
				return err
			}
			if whole := headerBytes + h.body; whole > len(c.in) {
				c.in = append(c.in, make([]byte, whole-len(c.in))...)
			}
		}
	}
}

// look lets procedures look at the pool's memory.
func (c *conn) look() {
	if c.pool != nil {
		c.view = view{c.pool.memory, c.pool.record.Index, c.pool.record.Memory, c.pool.region}
	}
}

// consume executes the whole frames at the beginning of p, answers them, and returns how many bytes
// they were.
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
// gone: it pings.
func (c *conn) deadlines() {
	now := realtime.Now()
	switch _, ok := c.raw.(*blocking); {
	case ok && now-c.readBy > yieldEvery:
		c.readBy = now
		runtime.Gosched()
	case !ok && now-c.readBy > silence/4:
		c.readBy = now
		c.raw.SetReadDeadline(time.Now().Add(silence))
	}
}

// batch executes the whole frames at the beginning of p, as many as there are and have room for
// their answers, and returns how many bytes they were.
func (c *conn) batch(p []byte) (used int, err error) {
	if len(p) < headerBytes {
		return 0, nil
	}
	if err := c.delay(); err != nil {
		return 0, err
	}
	if c.purpose == forVerbs {
		if err := c.pool.await(); err != nil {
			return 0, err
		}
		c.executing.Lock()
		defer c.executing.Unlock()
		if c.ended {
			return 0, errEnded
		}
		c.pool.memory.begin()
		defer c.pool.memory.end()
	}
	defer c.landRest() // while executing is held
	for c.starved = false; len(p)-used >= headerBytes && len(c.out) < flushBytes; {
		h, err := parseHeader(p[used:], c.limits().body)
		if err != nil {
			return used, err
		}
		end := used + headerBytes + h.body
		if end > len(p) {
			break
		}
		if !c.hasRoom(h, p[used+headerBytes:end]) {
			c.starved = len(c.out) == 0
			break
		}
		if err := c.handle(h, p[used+headerBytes:end]); err != nil {
			return used, err
		}
		used = end
	}
	return used, nil
}

// flush sends the answers, once what they tell of is as durable as the node's memory can make it.
// Those of a node that may not serve any more are not sent: see pool.
func (c *conn) flush() error {
	c.forwardAll()
	if len(c.out) == 0 {
		return nil
	}
	c.node.stats.add(&c.counters)
	if c.purpose == forVerbs {
		if err := c.vouch(); err != nil {
			return err
		}
	}
	if c.large != nil {
		c.sending.Store(int64(realtime.Now()))
	}
	err := c.write(c.out)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		c.isSlow()
	}
	c.out = c.out[:0]
	c.settle()
	return err
}

// settle gives up memory for answers that were long.
func (c *conn) settle() {
	if c.large != nil {
		c.sending.Store(0)
		c.outputs().take(c)
	}
	if cap(c.out) > 2*outBytes {
		c.out = nil
	}
}

// vouch returns once what the node's memory held when it was called may be told: it is durable, and
// the node serves.
func (c *conn) vouch() error {
	if err := c.node.fence(); err != nil {
		return err
	}
	return c.pool.await()
}

// write writes the connection's mail, of which a part may have been written, and then p.
func (c *conn) write(p []byte) error {
	c.writing.Lock()
	_, err := c.carry(nil, true)
	if err == nil {
		err = c.put(p)
	}
	c.writing.Unlock()
	c.forward() // what came meanwhile
	return err
}

// put writes p. The caller holds writing.
func (c *conn) put(p []byte) error {
	if now := realtime.Now(); now-c.writeBy > c.limits().patience/4 {
		c.writeBy = now
		c.raw.SetWriteDeadline(time.Now().Add(c.limits().patience)) // a peer that does not read is as good as gone
	}
	_, err := c.nc.Write(p)
	return err
}

func (c *conn) handle(h header, body []byte) error {
	switch {
	case h.kind == kindPing && h.body == 0:
		c.answer(h, statusOK, 0, len(c.out)+headerBytes)
	case h.kind == kindServe && c.purpose == forVerbs && h.body == 0:
		c.serves(h)
	case h.kind == kindAttach && c.purpose == forVerbs:
		return c.attach(h, body)
	case h.kind == kindVerbs && c.purpose == forVerbs:
		return c.verbs(h, body)
	case h.kind == kindListen && c.purpose == forVerbs:
		return c.listen(h, body)
	case h.kind == kindRing && c.purpose == forVerbs:
		return c.ring(h, body)
	case h.kind == kindMeet && c.purpose == forVerbs:
		return c.meet(h, body)
	case h.kind == kindCall && c.purpose == forVerbs && h.body == callBytes:
		c.call(h, body)
	case h.kind == kindControl && c.purpose != forVerbs && h.body <= maxControl:
		return c.control(h, body)
	default:
		return fmt.Errorf("frame of kind %d with %d bytes over a connection for %s: %w", h.kind,
			h.body, c.purpose, ErrProtocol)
	}
	return nil
}

// answer puts the header of an answer in front of the body that ends at len(c.out), and was begun
// at from.
func (c *conn) answer(h header, st status, items, from int) {
	c.counters.frames++
	if from > len(c.out) { // no body yet, nor room for the header
		c.out = append(c.out, make([]byte, headerBytes)...)
	}
	header{body: len(c.out) - from, kind: h.kind, status: st, items: items, tag: h.tag}.put(c.out[from-headerBytes:])
}

// control executes a control message. Connections for it execute no verbs, so that those of others
// can be waited for here.
func (c *conn) control(h header, body []byte) error {
	var m message
	if err := json.Unmarshal(body, &m); err != nil {
		return fmt.Errorf("decode a message: %w: %w", ErrProtocol, err)
	}
	// With the full token a long answer says which clients live, which decides what may be
	// expelled: it must not wait for connections that take no answers.
	if c.readOnly && m.isLong() && c.large == nil {
		if err := c.outputs().wait(c); err != nil {
			return err
		}
	}
	end := c.sendKeepalives()
	r, err := c.node.do(c, &m)
	end()
	if err != nil {
		r.Text = err.Error()
	}
	c.out, err = appendMessage(c.out, kindControl, statusOf(err), h.tag, &r)
	return err
}
