package memnode

import (
	"sync"
	"time"

	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/realtime"
	"github.com/farkv/farkv/node/rdma/transport"
)

const (
	// outBytes is the capacity of a connection's own buffer for answers. Answers beyond it take a
	// large buffer, where there is one at once: see hasRoom.
	outBytes = 16 << 10
	// largeBytes holds the longest answer to a frame of verbs.
	largeBytes = transport.HeaderBytes + transport.MaxItems*(transport.ResultBytes+8) + transport.MaxData
	// outputBudget bounds the memory of all large buffers of a node. Readers have one half of it,
	// and the others the other, so that readers that take no answers keep no answers of others
	// back.
	outputBudget = 32 << 20
	// Readers, and all others.
	classes = 2
	// LargeBuffers is how many connections of one kind may have long answers at a time.
	LargeBuffers = outputBudget / classes / largeBytes

	// While others wait for a large buffer, a connection to a peer that has not taken its answers
	// for so long is ended. Both are far below the patience of a connection, which counts where no
	// other one waits. They are looked at each pressEvery, so that they are exceeded by that at
	// most.
	slowUnderPressure, slowReaderUnderPressure = time.Second, 250 * time.Millisecond
	pressEvery                                 = 50 * time.Millisecond
)

// largeBuffer is memory for answers that do not fit a connection's own buffer. It holds one answer
// that is as long as any to a frame of verbs, or many that are shorter.
type largeBuffer [largeBytes]byte

// outputs are the large buffers of a node for one class of connections: readers, or all others. A
// connection has one from before it executes what it has to answer until it has sent that. It must
// not wait for one while it holds session.executing: a fence would wait, too. The number of slots
// bounds the memory. A connection that gets no slot executes nothing meanwhile, and its requests
// wait in the kernel's buffers, and then at its peer: that is the back pressure.
type outputs struct {
	// It has room for LargeBuffers. A connection takes a slot by sending to it.
	slots chan struct{} // holds one for each buffer that is in use
	slow  time.Duration // see slowUnderPressure
	pool  sync.Pool     // of *largeBuffer, so that those that are not needed any more are freed

	mu sync.Mutex
	// holders are the connections that have a large buffer. All below is under mu.
	holders map[*conn]struct{}
	// waiting counts connections in wait.
	waiting int
	timer   *time.Timer // runs endSlow while connections wait
}

// newOutputs returns outputs of which no buffer is in use. None is allocated before it is needed.
func newOutputs(slow time.Duration) *outputs {
	return &outputs{slots: make(chan struct{}, LargeBuffers), slow: slow, holders: map[*conn]struct{}{}}
}

// try gives c a large buffer, unless all are in use. It never blocks, so that it may be called
// while session.executing is held.
func (o *outputs) try(c *conn) bool {
	select {
	case o.slots <- struct{}{}:
		o.give(c)
		return true
	default:
		return false
	}
}

// wait waits until there is a large buffer for c, or the node closes. Its peer learns meanwhile
// that the node is alive. It blocks until another connection gives a buffer back. One that has a
// buffer, and a peer that does not take its answers, is ended by endSlow. The error is errEnded.
// The caller holds no lock.
func (o *outputs) wait(c *conn) error {
	if o.try(c) {
		return nil
	}
	o.press(1)
	defer o.press(-1)
	end := c.sendKeepalives()
	select {
	case o.slots <- struct{}{}:
		o.give(c)
		// What end waits for is a keepalive that is being written: see sendKeepalives.
		c.sending.Store(int64(realtime.Now())) // end may have to wait until the peer takes something: then c is slow
		end()
		c.sending.Store(0)
		return nil
	case <-c.node.stop:
		end()
		return errEnded
	}
}

// give hands c a large buffer. The caller has a slot. What the connection's own buffer held moves
// into the large one: nothing else points into either.
func (o *outputs) give(c *conn) {
	b, ok := o.pool.Get().(*largeBuffer)
	if !ok {
		b = new(largeBuffer)
	}
	c.large, c.small = b, c.session.out[:0]
	c.session.out = append(b[:0], c.session.out...)
	o.mu.Lock()
	o.holders[c] = struct{}{}
	o.mu.Unlock()
}

// take takes c's large buffer back. What was in it has been sent. The slot is given back last, so
// that no more buffers are in use than there are slots. The caller is the goroutine that executes
// c's requests.
func (o *outputs) take(c *conn) {
	o.mu.Lock()
	delete(o.holders, c)
	o.mu.Unlock()
	o.pool.Put(c.large)
	c.large, c.session.out, c.small = nil, c.small, nil
	<-o.slots
}

// press notes that more connections wait, or fewer. While any does, those that keep it waiting are
// ended. The timer is made by the first connection that waits, and stands still while none does.
func (o *outputs) press(more int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.waiting += more
	switch {
	case o.waiting == 0:
		o.timer.Stop()
	case o.waiting == 1 && more > 0 && o.timer == nil:
		o.timer = time.AfterFunc(pressEvery, o.endSlow)
	case o.waiting == 1 && more > 0:
		o.timer.Reset(pressEvery)
	}
}

// endSlow ends connections to peers that take no answers while others wait. It ends those that
// send, and none that executes: only the other end can be slow to take. It runs in the timer's
// goroutine, and sets the timer again as long as connections wait. The connection's own goroutine
// finds the connection closed, and gives the buffer back: see conn.settle.
func (o *outputs) endSlow() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.waiting == 0 {
		return
	}
	now := realtime.Now()
	for c := range o.holders {
		if since := time.Duration(c.sending.Load()); since > 0 && now-since > o.slow {
			c.outlet.isSlow()
			c.raw.Close()
		}
	}
	o.timer.Reset(pressEvery)
}

// outputs returns those of c's class.
func (c *conn) outputs() *outputs {
	if c.readOnly {
		return c.node.readerOutputs
	}
	return c.node.outputs
}

// hasRoom reports whether c.session.out holds the answer to a frame besides what is there, and gets
// a large buffer for it where there is one at once. Without it c.session.out has to be sent first
// or, if it is empty, c has to wait for one. It may be called while session.executing is held, and
// never blocks. Behind a batch the large buffer is given back, so that connections take turns.
func (c *conn) hasRoom(h transport.Header, body []byte) bool {
	most := outBytes
	if c.large != nil {
		most = largeBytes
	}
	return len(c.session.out)+answerBytes(h, body) <= most || c.large == nil && c.outputs().try(c)
}

// shortAnswer bounds the answer to a frame of any other kind than verbs, but for control messages
// with long answers. The longest are texts of errors and what a device answers, of control.MaxOffer
// bytes.
const shortAnswer = transport.HeaderBytes + 512

// answerBytes bounds the answer to a frame. One that breaks the protocol has none. It is exact for
// verbs that succeed, and too much for others.
func answerBytes(h transport.Header, body []byte) int {
	if h.Kind != transport.KindVerbs || len(body) < transport.RightsBytes {
		return shortAnswer
	}
	n := transport.HeaderBytes
	body = body[transport.RightsBytes:]
	for range min(h.Items, transport.MaxItems) {
		q, rest, err := transport.ParseVerb(body)
		if err != nil {
			break
		}
		body = rest
		n += transport.ResultBytes + transport.Pad(transport.ResultLen(q.Verb, q.N))
	}
	return min(n, largeBytes)
}

// limits bounds what a connection takes of its node. A reader's are lower: there may be hundreds
// that take nothing.
type limits struct {
	send     int           // bytes of the kernel's buffer for what is sent
	in       int           // bytes of the buffer for what is received, unless a frame needs more
	body     int           // bytes of a frame's body; readers have nothing to write
	patience time.Duration // for how long the peer may take none of its answers
}

func (c *conn) limits() limits {
	if c.readOnly {
		return limits{64 << 10, 8 << 10, control.ReaderBody, readerPatience}
	}
	return limits{256 << 10, transport.InBytes, transport.MaxBody, WritePatience}
}
