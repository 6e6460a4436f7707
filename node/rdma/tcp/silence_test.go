package tcp_test

import (
	"log/slog"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/memnode"
	"github.com/farkv/farkv/node/rdma/tcp"
)

// descriptors counts those of this process; -1: that cannot be told here.
func descriptors() int {
	all, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return -1
	}
	return len(all)
}

// TestSilentConnections opens ten thousand connections that say nothing, as far as the limit of
// open files goes. They are refused, logged once, and cost no client anything; others still get in;
// and no descriptor stays behind.
func TestSilentConnections(t *testing.T) {
	var most syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &most); err != nil {
		t.Fatal(err)
	}
	silent := min(10_000, int(most.Cur)-500)
	if silent < 200 {
		t.Skipf("only %d files may be open (ulimit -n 11000 would do)", most.Cur)
	}
	t.Logf("%d connections", silent)
	var log journal
	node, err := memnode.Listen(memnode.Config{Listen: "127.0.0.1:0", Memory: 1 << 20,
		Log: slog.New(slog.NewTextHandler(&log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { node.Close() })
	o := control.Options{Addresses: []string{node.Addr()}}
	f := created(t, o, geometry(1))
	ep := attach(t, f, "works")
	before := descriptors()
	var over atomic.Bool
	var group sync.WaitGroup
	done := uint64(0)
	group.Go(func() {
		for ; !over.Load(); done++ {
			if _, err := add(ep, 0, 0); err != nil {
				t.Errorf("a client that works: %v", err)
				return
			}
		}
	})
	var all []net.Conn
	for range silent {
		c, err := net.Dial("tcp", node.Addr())
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, c)
	}
	eventually(t, "all but a few are refused", func() bool {
		return node.Stats().Refused >= uint64(silent-node.Room().Greeting)
	})
	another, err := tcp.Open(o)
	if err != nil {
		t.Errorf("one that has something to say is not let in: %v", err)
	} else {
		another.Close()
	}
	over.Store(true)
	group.Wait()
	if n, err := load(ep, 0, 0); n != done || err != nil {
		t.Errorf("the word is %d (%v) after %d verbs", n, err, done)
	}
	if n := log.count("refused a connection"); n != 1 {
		t.Errorf("logged %d times that connections are refused", n)
	}
	for _, c := range all {
		c.Close()
	}
	eventually(t, "descriptors come back", func() bool { return descriptors() <= before })
}
