package tcp_test

import (
	"testing"
	"time"

	"github.com/farkv/farkv/node/rdma/rdmatest/child"
	"github.com/farkv/farkv/node/rdma/tcp"
)

// TestStoodStill stops a client's process for longer than a node may be silent, while a ping of it is not answered yet. The
// answer comes meanwhile. A client that counted the time would take the node for dead, by chance: so it is stopped twice.
func TestStoodStill(t *testing.T) {
	t.Parallel()
	_, addrs := start(t, 1, 1<<20, nil)
	p := newProxy(t, addrs[0])
	o := tcp.Options{Addresses: []string{p.addr()}, Lease: lease}
	f := created(t, o, geometry(1))
	ep := attach(t, f, "onlooker")
	client := child.Start(t, "add", p.addr())
	client.Line(t)
	theirs := func(verbs fate) {
		p.rule(func(c caller) fate {
			if c.verbs() && c.Process != f.Process() {
				return verbs
			}
			return through
		})
	}
	goesOn := func() {
		t.Helper()
		before, err := load(ep, 0, 0)
		eventually(t, "the client goes on", func() bool {
			var now uint64
			if err == nil {
				now, err = load(ep, 0, 0)
			}
			return err != nil || now > before
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		goesOn()
		theirs(stuck)
		time.Sleep(450 * time.Millisecond) // it pings behind 200 to 300 ms
		client.Stop(t)
		theirs(through)
		time.Sleep(1200 * time.Millisecond)
		client.GoOn(t)
		goesOn()
	}
}
