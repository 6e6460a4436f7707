package memnode

import (
	"time"

	"github.com/farkv/farkv/node/rdma/transport"
)

// sendKeepalives tells the caller of a connection now and then that the node is alive, until end is
// called: answers come in turn, and while one message takes its time pings would wait behind it.
func (c *conn) sendKeepalives() (end func()) {
	over, ended := make(chan struct{}), make(chan struct{})
	var alive [transport.HeaderBytes]byte
	transport.Header{Kind: transport.KindPing}.Put(alive[:])
	first := time.AfterFunc(transport.PingEvery, func() {
		defer close(ended)
		tick := time.NewTicker(transport.PingEvery)
		defer tick.Stop()
		for c.outlet.write(alive[:]) == nil {
			select {
			case <-over:
				return
			case <-tick.C:
			}
		}
	})
	return func() {
		if !first.Stop() {
			close(over)
			<-ended // it is the connection's only writer meanwhile
		}
	}
}
