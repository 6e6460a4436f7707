package tcp_test

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/rdmatest/child"
)

// TestStoodStill stops an idle client's process for longer than a node may be silent: while pings
// of it are not answered yet, and the answers come meanwhile; and before it pings, so that the
// answers come when it goes on. A client that counted the time would take the node for dead, unless
// it read, or pinged, just in time: so it is stopped twice.
func TestStoodStill(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name          string
		before, after time.Duration // for which the node is not heard, before the client is stopped and when it goes on
	}{
		{"in a ping", 400 * time.Millisecond, 0}, // it pings behind 200 to 300 ms
		{"before one", 0, 250 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			_, addrs := start(t, 1, 1<<20, nil)
			p := newProxy(t, addrs[0])
			f := created(t, control.Options{Addresses: []string{p.addr()}, Lease: lease}, geometry(1))
			client := child.Start(t, "hold", p.addr())
			client.Line(t)
			theirs := func(c caller) bool { return c.Process != f.Process() }
			var again atomic.Bool
			p.limit(func(c caller) (up, down int) { // no limit: this sees the connections that are made again
				if theirs(c) {
					again.Store(true)
				}
				return -1, -1
			})
			for range 2 {
				p.rule(func(c caller) fate {
					if theirs(c) {
						return stuck
					}
					return through
				})
				time.Sleep(c.before)
				client.Stop(t)
				if c.after == 0 {
					p.rule(nil)
				}
				time.Sleep(1200 * time.Millisecond)
				client.GoOn(t)
				time.Sleep(c.after)
				p.rule(nil)
				time.Sleep(300 * time.Millisecond)
				if again.Load() {
					t.Fatal("the client, which stood still, has given its node up")
				}
			}
			client.Release()
			client.End(t)
		})
	}
}

// TestStoodStillAsking stops a client's process for longer than a node may take to answer a
// question, while one is on its way. What the node answers comes as the process goes on.
func TestStoodStillAsking(t *testing.T) {
	t.Parallel()
	for _, question := range []string{"ask", "listen", "count"} {
		t.Run(question, func(t *testing.T) {
			t.Parallel()
			_, addrs := start(t, 1, 1<<20, nil)
			p := newProxy(t, addrs[0])
			f := created(t, control.Options{Addresses: []string{p.addr()}, Lease: lease}, geometry(1))
			client := child.Start(t, question, p.addr())
			client.Line(t)
			p.rule(func(c caller) fate {
				if c.Process != f.Process() {
					return stuck
				}
				return through
			})
			client.Release()
			time.Sleep(400 * time.Millisecond) // by then it has asked
			client.Stop(t)
			time.Sleep(1200 * time.Millisecond)
			client.GoOn(t)
			p.rule(nil)
			client.End(t)
		})
	}
}
