package child

import (
	"errors"
	"net"
	"net/netip"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

// TestAddress: an address is refused while none listens at it, those that ask for it listen at it
// one after the other, and no port of it is given to one that asks for any.
func TestAddress(t *testing.T) {
	addr := Address(t)
	at := netip.MustParseAddrPort(addr)
	onlyThat := func(_, _ string, c syscall.RawConn) (err error) { // the free ports are that one
		err2 := c.Control(func(fd uintptr) {
			port := int(at.Port())
			err = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_LOCAL_PORT_RANGE, port<<16|port)
		})
		return errors.Join(err, err2)
	}
	other, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	unheld := func(when string) {
		t.Helper()
		if c, err := net.Dial("tcp", addr); !errors.Is(err, syscall.ECONNREFUSED) {
			t.Errorf("%s: a call: %v, %v", when, c, err)
		}
		any := net.ListenConfig{Control: onlyThat}
		l, err := any.Listen(t.Context(), "tcp", "127.0.0.1:0")
		if errors.Is(err, syscall.ENOPROTOOPT) {
			t.Skip("this kernel cannot be asked for a port of a range")
		}
		if !errors.Is(err, syscall.EADDRINUSE) {
			t.Errorf("%s: another one listens: %v, %v", when, l, err)
		}
		caller := net.Dialer{Control: onlyThat}
		if c, err := caller.Dial("tcp", other.Addr().String()); !errors.Is(err, syscall.EADDRNOTAVAIL) {
			t.Errorf("%s: another one calls from it: %v, %v", when, c, err)
		}
	}
	unheld("at first")
	for range 2 {
		l, err := net.Listen("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		c, err := net.Dial("tcp", addr)
		if err != nil {
			t.Fatal(err)
		}
		served, err := l.Accept()
		if err != nil {
			t.Fatal(err)
		}
		served.Close() // first: its port waits for the last bytes of its peer
		c.Close()
		l.Close()
		unheld("one has listened")
	}
}
