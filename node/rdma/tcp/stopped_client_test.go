package tcp_test

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/rdmatest/child"
	"github.com/farkv/farkv/node/rdma/tcp"
)

// A client counts silence while it runs. Only it knows how long that is: these tests may stand
// still themselves. So a client stops itself, and says when it has run long enough.

// What a client says when it has heard its node, and when it went on.
const (
	heard  = "has heard its node"
	goesOn = "goes on"
)

// hear has a client hear its node over each of its connections.
func hear(f *tcp.Fabric, ep rdma.Endpoint) error {
	_, loaded := load(ep, 0, 0)
	_, asked := f.CPU()
	return errors.Join(loaded, asked)
}

// standStill is the client of TestStoodStill.
func standStill(when string, f *tcp.Fabric, ep rdma.Endpoint) error {
	fmt.Println(ep.Client())
	for range 2 {
		if err := hear(f, ep); err != nil {
			return err
		}
		fmt.Println(heard)
		if when == "pinging" {
			time.Sleep(400 * time.Millisecond) // it pings behind 200 to 300 ms
		}
		if err := child.StandStill(); err != nil {
			return err
		}
		if when == "idle" {
			time.Sleep(250 * time.Millisecond) // it pings, and looks for the answer behind 100 ms
		}
		fmt.Println(goesOn)
	}
	return hear(f, ep)
}

// TestStoodStill stops an idle client's process for longer than a node may be silent: while pings
// of it are not answered yet, and the answers come meanwhile; and before it pings, so that the
// answers come when it goes on. A client that counted the time would take the node for dead, unless
// it read, or pinged, just in time: so it is stopped twice.
func TestStoodStill(t *testing.T) {
	t.Parallel()
	for _, when := range []string{"pinging", "idle"} {
		t.Run(when, func(t *testing.T) {
			t.Parallel()
			_, addrs := start(t, 1, 1<<20, nil)
			p := newProxy(t, addrs[0])
			f := created(t, control.Options{Addresses: []string{p.addr()}, Lease: lease}, geometry(1))
			theirs := func(c caller) bool { return c.Process != f.Process() }
			unheard := func(c caller) fate {
				if theirs(c) {
					return stuck
				}
				return through
			}
			client := child.Start(t, "stand", p.addr(), when)
			client.Line(t)
			var again atomic.Bool
			p.limit(func(c caller) (up, down int) { // no limit: this sees the connections that are made again
				if theirs(c) {
					again.Store(true)
				}
				return -1, -1
			})
			says := func(want string) {
				t.Helper()
				if line := client.Line(t); line != want {
					t.Fatalf("the client, which stood still, says %q", line)
				}
			}
			for range 2 {
				says(heard)
				if when == "pinging" {
					p.rule(unheard)
				}
				client.AwaitStop(t)
				if when == "pinging" {
					p.rule(nil)
				} else {
					p.rule(unheard)
				}
				time.Sleep(1200 * time.Millisecond)
				client.GoOn(t)
				says(goesOn)
				p.rule(nil)
			}
			client.End(t)
			if again.Load() {
				t.Fatal("the client, which stood still, has given its node up")
			}
		})
	}
}

// standStillAsking is the client of TestStoodStillAsking.
func standStillAsking(question string, f *tcp.Fabric, ep rdma.Endpoint) error {
	var ring rdma.Ring
	if question == "count" {
		var err error
		if ring, err = rdma.OpenRing(ep, rdma.RingOptions{Node: 0, Number: 1}); err != nil {
			return err
		}
	}
	if err := hear(f, ep); err != nil {
		return err
	}
	fmt.Println(heard)
	time.Sleep(100 * time.Millisecond) // by then its node is not heard any more
	stood := make(chan error, 1)
	time.AfterFunc(200*time.Millisecond, func() { stood <- child.StandStill() }) // by then it has asked
	var err error
	switch question {
	case "ask":
		_, err = f.CPU()
	case "listen":
		_, err = rdma.Listen(ep, rdma.BoxOptions{})
	case "count":
		_, err = ring.Count()
	}
	return errors.Join(err, <-stood)
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
			client.AwaitStop(t)
			time.Sleep(1200 * time.Millisecond)
			client.GoOn(t)
			p.rule(nil)
			client.End(t)
		})
	}
}
