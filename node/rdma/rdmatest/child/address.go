//go:build unix

package child

import (
	"net/netip"
	"os"
	"runtime"
	"syscall"
	"testing"
)

// Address returns a TCP address of this machine at which a test may have others listen, one after
// the other, until it ends. A socket holds it that is bound to it and does not listen: while no
// other one listens, callers are refused, and Linux gives the port to no process that asks for any
// free one. Linux lets those listen at it that ask for it, since all of them set SO_REUSEADDR, as
// net.Listen does.
func Address(t testing.TB) string {
	t.Helper()
	at := netip.AddrFrom4([4]byte{127, 0, 0, 1})
	syscall.ForkLock.RLock() // no child is to have the socket
	s, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_STREAM, 0)
	if err == nil {
		syscall.CloseOnExec(s)
	}
	syscall.ForkLock.RUnlock()
	if err != nil {
		t.Fatal(os.NewSyscallError("socket", err))
	}
	if release := func() { syscall.Close(s) }; runtime.GOOS == "linux" {
		t.Cleanup(release)
	} else {
		defer release() // elsewhere none could listen beside it
	}
	if err := syscall.SetsockoptInt(s, syscall.SOL_SOCKET, syscall.SO_REUSEADDR, 1); err != nil {
		t.Fatal(os.NewSyscallError("setsockopt", err))
	}
	if err := syscall.Bind(s, &syscall.SockaddrInet4{Addr: at.As4()}); err != nil {
		t.Fatal(os.NewSyscallError("bind", err))
	}
	is, err := syscall.Getsockname(s)
	if err != nil {
		t.Fatal(os.NewSyscallError("getsockname", err))
	}
	return netip.AddrPortFrom(at, uint16(is.(*syscall.SockaddrInet4).Port)).String()
}
