package memnode

import (
	"errors"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/farkv/farkv/node/rdma/realtime"
	"github.com/farkv/farkv/node/rdma/transport"
)

// outlet writes to a connection: the answers to its requests, and the mail that other connections'
// goroutines leave for its process. There is one for each connection. It is found by sessions of
// others as the way to a mailbox or a sender, also for a moment behind the connection's end: then
// what is written fails.
type outlet struct {
	// All up to patience are set by conn.begin, and never change. pool is nil of connections for
	// control, which have no mail.
	node     *Node
	pool     *pool
	nc       net.Conn
	raw      net.Conn
	patience time.Duration // for how long the peer may take nothing
	mail     mail
	// writing is locked before mail.mu, and may be held while the peer takes nothing. So a
	// goroutine that must not wait for the peer only tries to lock it. A goroutine that has
	// unlocked it looks for mail once more: what came while another one failed to lock it is not
	// left behind.
	writing sync.Mutex // held to write to the connection
	// writeBy is under writing, on realtime.Now.
	writeBy time.Duration // when the deadline was set
	slow    atomic.Bool   // it was ended because its peer did not take its answers
}

// vouch returns once what the node's memory held when it was called may be told: it is durable, and
// the node serves. The fence comes first. It may take longer than a lease, and what counts is that
// the node serves behind it. It blocks for as long as the medium takes to flush, and pool.await
// then waits. The error wraps rdma.ErrNodeDown: nothing may be told any more, and the connection is
// closed by the caller.
func (o *outlet) vouch() error {
	if err := o.node.fence(); err != nil {
		return err
	}
	return o.pool.await()
}

// write writes the connection's mail, and then p. No part of the mail is on the wire: a goroutine
// that has begun to write some holds writing until it has written the rest. It blocks until the
// peer has taken all of it, for as long as the connection's patience allows. The caller has vouched
// for what p tells. Behind an error the connection has to end: a part of a frame may have been
// written.
func (o *outlet) write(p []byte) error {
	o.writing.Lock()
	_, err := o.carry(nil, true)
	if err == nil {
		err = o.put(p)
	}
	o.forwarded(err)
	o.forward() // what came meanwhile
	return err
}

// put writes p. The caller holds writing. It has between three quarters of the patience and all of
// it, since a deadline is not renewed for each write. A transport.Blocking has bounds of its own.
// An error wraps os.ErrDeadlineExceeded when the peer did not take p in time.
func (o *outlet) put(p []byte) error {
	if now := realtime.Now(); now-o.writeBy > o.patience/4 {
		o.writeBy = now
		o.raw.SetWriteDeadline(time.Now().Add(o.patience)) // a peer that does not read is as good as gone
	}
	_, err := o.nc.Write(p)
	return err
}

// mostTurns bounds how often a goroutine that forwards mail looks for more that came meanwhile. The
// goroutine is that of a sender, which has its own answers to send.
const mostTurns = 8

// forward writes the connection's mail, unless another goroutine is writing, which comes here then.
// It waits neither for the peer nor for senders of more: a goroutine of its own does. The caller's
// is one of the node's group. No mail is left behind. A goroutine that adds mail calls this later.
// Either it locks writing, or it fails to, and then the one that holds writing unlocks it later and
// looks again. It does wait for vouch.
func (o *outlet) forward() {
	for turn := 0; o.mail.waits.Load(); turn++ {
		if turn == mostTurns {
			o.node.group.Go(o.forward)
			return
		}
		// Its holder looks at waits behind its unlock.
		if !o.writing.TryLock() {
			return
		}
		rest, err := o.carry(nil, false)
		if err != nil || len(rest) == 0 {
			o.forwarded(err)
			continue
		}
		// It keeps writing locked until the rest is written, or the frame would be cut by another
		// one.
		o.node.group.Go(func() {
			_, err := o.carry(rest, true)
			o.forwarded(err)
			o.forward()
		})
		return
	}
}

// forwarded ends a turn at writing. An error breaks the connection: what was written of a frame
// cannot be taken back. The caller holds writing. The connection's own goroutine finds it closed,
// and ends it.
func (o *outlet) forwarded(err error) {
	if errors.Is(err, os.ErrDeadlineExceeded) {
		o.isSlow()
	}
	if err != nil {
		o.raw.Close() // ahead of the next frame
	}
	o.writing.Unlock()
}

// trier is a connection that can write without waiting for the peer: as much of p as that takes. An
// error means that the connection is broken. A connection that has no Try, such as one with TLS, is
// written to by a goroutine that may wait.
type trier interface {
	Try(p []byte) (int, error)
}

var _, _ trier = (*transport.Blocking)(nil), nodeEnd{}

// carry writes p, the rest of what was taken of the mail, or else the mail: to its end, or what
// does not have to wait for the peer; then it returns what is left. The caller holds writing. The
// rest stays the mail's buffer until it is written: see mail.take. wait: it blocks as put does.
func (o *outlet) carry(p []byte, wait bool) (rest []byte, err error) {
	if len(p) == 0 {
		if !o.mail.waits.Load() {
			return nil, nil
		}
		// What is taken is vouched for once, before any of it is written. The rest is written
		// without another look at the lease, as the rest of a long answer is.
		p = o.mail.take()
		if err := o.vouch(); err != nil {
			return nil, err
		}
	}
	n := 0
	if wait {
		n, err = len(p), o.put(p)
	} else if b, ok := o.nc.(trier); ok {
		n, err = b.Try(p)
	}
	if rest = p[n:]; err != nil || len(rest) > 0 {
		return rest, err
	}
	o.mail.wrote()
	return nil, nil
}

// isSlow notes that c's peer does not take its answers. It is counted once, whichever bound found
// it. A reader's place stays taken for a while then: see Node.leave.
func (o *outlet) isSlow() {
	if !o.slow.Swap(true) {
		o.node.stats.slow.Add(1)
	}
}
