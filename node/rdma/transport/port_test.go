package transport

import (
	"errors"
	"net"
	"syscall"
	"testing"
)

// TestPortIsKept: the port of a node that comes back is one that the system gives to no other
// program, the port of another node is the system's.
func TestPortIsKept(t *testing.T) {
	system := firstOfSystem()
	if system <= lastPort {
		t.Skipf("the system gives away ports from %d on", system)
	}
	for _, comesBack := range []bool{true, false} {
		l, err := Listen("127.0.0.1:0", comesBack)
		if err != nil {
			t.Fatal(err)
		}
		defer l.Close()
		port := l.Addr().(*net.TCPAddr).Port
		if kept := port >= firstPort && port <= lastPort; kept != comesBack || kept == (port >= system) {
			t.Errorf("comes back %v: port %d, and the system gives away those from %d on", comesBack, port, system)
		}
	}
}

// TestPortsThatAreTaken: a port that another listener has is drawn again, a bounded number of
// times.
func TestPortsThatAreTaken(t *testing.T) {
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	taken, drawn := other.Addr().(*net.TCPAddr).Port, 0
	l, err := listenAtDrawn("127.0.0.1", func() int {
		if drawn++; drawn < portTries {
			return taken
		}
		return 0
	})
	if err != nil || drawn != portTries {
		t.Fatalf("after %d draws: %v", drawn, err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	drawn = 0
	if _, err := listenAtDrawn("127.0.0.1", func() int { drawn++; return taken }); drawn != portTries ||
		!errors.Is(err, syscall.EADDRINUSE) {
		t.Errorf("after %d draws of a port that is taken: %v", drawn, err)
	}
}
