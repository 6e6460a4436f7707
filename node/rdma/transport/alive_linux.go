package transport

import (
	"crypto/tls"
	"net"
	"syscall"

	"golang.org/x/sys/unix"
)

// acknowledged returns how many bytes the other end's machine has acknowledged; false: it cannot be
// told.
func acknowledged(raw syscall.RawConn) (bytes uint64, ok bool) {
	err := raw.Control(func(fd uintptr) {
		info, err := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		if ok = err == nil; ok {
			bytes = info.Bytes_acked
		}
	})
	return bytes, ok && err == nil
}

// sentOver tells how many bytes were handed to the kernel for a connection, and how many of them
// the other end's machine has acknowledged; false: it cannot be told. Both count bytes of the
// socket, below TLS. A connection that is no socket, such as that to a node of this process,
// cannot be asked. SIOCOUTQ counts what was written and is not acknowledged, whether it was sent
// or not.
func sentOver(nc net.Conn) (sent, acked uint64, ok bool) {
	if t, wrapped := nc.(*tls.Conn); wrapped {
		nc = t.NetConn()
	}
	s, ok := nc.(syscall.Conn)
	if !ok {
		return 0, 0, false
	}
	raw, err := s.SyscallConn()
	if err != nil {
		return 0, 0, false
	}
	ok = false
	err = raw.Control(func(fd uintptr) {
		// first: what is acknowledged in between counts twice, not never
		queued, err := unix.IoctlGetInt(int(fd), unix.SIOCOUTQ)
		info, failed := unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO)
		if ok = err == nil && failed == nil; ok {
			sent, acked = info.Bytes_acked+uint64(queued), info.Bytes_acked
		}
	})
	return sent, acked, ok && err == nil
}
