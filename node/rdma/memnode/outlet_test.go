package memnode

import (
	"bytes"
	"net"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma/transport"
	"github.com/farkv/farkv/workloads/check/wait"
)

// stuckConn takes half of what is written to it first, and fails when it is let go on.
type stuckConn struct {
	net.Conn
	o            *outlet
	t            testing.TB
	stuck, letGo chan struct{}
	took         []byte // under o.writing
	closed       atomic.Bool
}

func (c *stuckConn) Write(p []byte) (int, error) {
	if c.closed.Load() {
		return 0, net.ErrClosed
	}
	if len(c.took) > 0 {
		c.took = append(c.took, p...)
		return len(p), nil
	}
	c.took = append(c.took, p[:len(p)/2]...)
	close(c.stuck)
	<-c.letGo
	return len(p) / 2, os.ErrDeadlineExceeded
}

func (c *stuckConn) Close() error {
	if c.o.writing.TryLock() {
		c.o.writing.Unlock()
		c.t.Error("a connection is closed when another goroutine may write to it")
	}
	c.closed.Store(true)
	return nil
}

func (c *stuckConn) SetWriteDeadline(time.Time) error { return nil }

// TestPartOfFrame: nothing follows a frame of which the peer did not take all in time.
func TestPartOfFrame(t *testing.T) {
	n := newRawNode(t, Config{})
	c := &stuckConn{t: t, stuck: make(chan struct{}), letGo: make(chan struct{})}
	o := &outlet{node: n.Node, pool: n.pool.Load(), nc: c, raw: c, patience: rawPatience}
	c.o = o
	first, second := bytes.Repeat([]byte{1}, 64), bytes.Repeat([]byte{2}, 64)
	o.mail.post(transport.Header{Kind: transport.KindMessage}, first, nil)
	o.forward()
	<-c.stuck
	o.mail.post(transport.Header{Kind: transport.KindMessage}, second, nil)
	o.forward()
	close(c.letGo)
	wait.Until(t, "nothing is left to write", func() bool {
		if o.mail.waits.Load() || !o.writing.TryLock() {
			return false
		}
		o.writing.Unlock()
		return true
	})
	half := (transport.HeaderBytes + len(first)) / 2
	if !c.closed.Load() || len(c.took) != half || n.stats.slow.Load() != 1 {
		t.Errorf("closed %t, with %d bytes taken, want %d; %d connections were slow",
			c.closed.Load(), len(c.took), half, n.stats.slow.Load())
	}
}
