package memnode

import (
	"time"

	"github.com/farkv/farkv/node/rdma/transport"
)

// sendKeepalives tells the caller of a connection now and then that the node is alive, until end is
// called: answers come in turn, and while one message takes its time pings would wait behind it.
// The frames are pings, which links take out of turn and do not count as answers. The first is sent
// after transport.PingEvery: a message that takes less costs a timer and no goroutine. The caller
// writes nothing to the connection between the call and end.
//
// end returns when no ping is being written any more. It may wait until the peer takes one, for the
// connection's patience at most. A write that fails ends the pings, and the caller is not told.
func (c *conn) sendKeepalives() (end func()) {
	over, ended := make(chan struct{}), make(chan struct{})
	var alive [transport.HeaderBytes]byte
	transport.Header{Kind: transport.KindPing}.Put(alive[:])
	first := time.AfterFunc(transport.PingEvery, func() {
		defer close(ended)
		tick := time.NewTicker(transport.PingEvery)
		defer tick.Stop()
		// write sends the connection's mail, too, which would wait as long otherwise.
		for c.outlet.write(alive[:]) == nil {
			select {
			case <-over:
				return
			case <-tick.C:
			}
		}
	})
	return func() {
		// The timer has fired: the goroutine runs, or is about to, and closes ended. Otherwise
		// there is none, and never will be.
		if !first.Stop() {
			close(over)
			<-ended // it is the connection's only writer meanwhile
		}
	}
}
