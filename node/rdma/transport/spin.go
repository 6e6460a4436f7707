package transport

import (
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/farkv/farkv/node/rdma/realtime"
)

const (
	// spinFor is for how long a goroutine that waits for a message looks for it before it sleeps:
	// some round trips between processes of one machine. To sleep and be woken costs each of the
	// two ends as much as the rest of a small verb.
	spinFor = 80 * time.Microsecond
	// glance is what a look takes at most, unless another thread is given the processor. The
	// spinner then stops, so that a thread that needs the processor gets it.
	glance = 10 * time.Microsecond
	// mostSpared bounds how many messages are waited for asleep before it is tried again.
	mostSpared = 1 << 12
)

// spinner looks for input on a connection without sleeping, as long as that pays. Each vain
// attempt doubles how many messages are waited for asleep. So it pays while messages follow each
// other closely, and there is a processor that no other thread needs. Where there is none, the
// other end does not come to answer in time. Only the reader uses it. look is made once, so that
// a look allocates nothing. polls is its argument. found is true, too, for a connection in error:
// the read that follows says so.
type spinner struct {
	raw   syscall.RawConn // nil: it never spins
	look  func(fd uintptr)
	polls [1]unix.PollFd
	found bool
	vain  int // how many messages are left to others once more
	spare int // and how many of them are to come
}

// newSpinner returns one for a connection. One without a descriptor, as under TLS or beside a
// node of this process, is never looked at.
func newSpinner(c any) *spinner {
	s := &spinner{}
	if t, ok := c.(syscall.Conn); ok {
		s.raw, _ = t.SyscallConn()
	}
	s.look = func(fd uintptr) {
		s.polls[0] = unix.PollFd{Fd: int32(fd), Events: unix.POLLIN}
		n, err := unix.Poll(s.polls[:], 0)
		s.found = n > 0 || err != nil && err != unix.EINTR
	}
	return s
}

// spin returns when there is something to read, or the moment is over. It takes no byte from the
// connection. spinFor bounds it: after that the caller's read sleeps.
func (s *spinner) spin() {
	switch {
	case s.raw == nil:
		return
	case s.spare > 0:
		s.spare--
		return
	}
	began := realtime.Now()
	for last, now := began, began; now-began < spinFor && now-last < glance; last, now = now, realtime.Now() {
		if s.raw.Control(s.look) != nil {
			return // it was closed, as the next read finds
		}
		if s.found {
			s.vain = 0
			return
		}
	}
	s.vain = min(2*s.vain+1, mostSpared)
	s.spare = s.vain
}
