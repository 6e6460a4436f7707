package transport

import (
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/farkv/farkv/node/rdma/realtime"
)

// Blocking is a plain connection. Its reads and writes wait in the kernel, in a thread of their
// own. Through Go's poller a message takes twice as many system calls and wakes two threads,
// which is most of what a node does for a frame. Nodes have it for verbs without TLS. One
// goroutine reads at a time, and one writes: send, hurry, out, sent and err are the writer's. The
// functions are made once, so that a write allocates nothing.
type Blocking struct {
	net.Conn // tells the addresses; nothing else is done over it
	file     *os.File
	raw      syscall.RawConn
	spin     *spinner
	patience time.Duration // of a write
	closed   sync.Once
	freed    func() // called when it is closed
	send     func(fd uintptr) bool
	hurry    func(fd uintptr) bool // send that does not wait
	out      []byte                // what send sends; there is one writer
	sent     int
	err      error
}

// NewBlocking takes a connection over. A read that gets nothing for so long ends in an error, and
// so does a write that the peer takes nothing of. What was begun through the poller can be ended
// so, until LeavePoller. read and write are those times. The descriptor is a copy; that the
// socket blocks holds for c's own, too. Close calls freed, once. When NewBlocking fails it does
// not, and c is the caller's still.
func NewBlocking(c *net.TCPConn, read, write time.Duration, freed func()) (*Blocking, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	fd := -1
	wrong := raw.Control(func(own uintptr) { fd, err = unix.FcntlInt(own, unix.F_DUPFD_CLOEXEC, 0) })
	if err := errors.Join(wrong, err); err != nil {
		return nil, fmt.Errorf("duplicate a connection: %w", err)
	}
	in, out := unix.NsecToTimeval(read.Nanoseconds()), unix.NsecToTimeval(write.Nanoseconds())
	err = errors.Join(unix.SetNonblock(fd, false), // before NewFile, which would give it to the poller otherwise
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &in),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &out))
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("have a connection wait in the kernel: %w", err)
	}
	b := &Blocking{Conn: c, file: os.NewFile(uintptr(fd), c.RemoteAddr().String()), patience: write, freed: freed}
	b.send = func(fd uintptr) bool {
		b.sent, b.err = unix.Write(int(fd), b.out)
		return true
	}
	b.hurry = func(fd uintptr) bool {
		b.sent, b.err = unix.SendmsgN(int(fd), b.out, nil, nil, unix.MSG_DONTWAIT)
		return true
	}
	if b.raw, err = b.file.SyscallConn(); err != nil {
		b.file.Close()
		return nil, err
	}
	b.spin = newSpinner(b.file)
	return b, nil
}

// LeavePoller takes the connection out of the poller, which would wake a thread for each message
// still. The copy of the descriptor keeps the connection open.
func (b *Blocking) LeavePoller() { b.Conn.Close() }

// Read waits in the kernel. It blocks a thread until something came, the peer ended, or the time
// is over (EAGAIN).
func (b *Blocking) Read(p []byte) (int, error) { return b.file.Read(p) }

// Write ends early when the peer takes nothing for twice its patience, or all of it takes
// writeShare times as long. The kernel lets a write wait until a good part of its buffer is free,
// so only what the peer has acknowledged says what it takes. n bytes were handed to the kernel
// before the error: the caller cannot take them back, and ends the connection. When the time is
// over the error is os.ErrDeadlineExceeded.
func (b *Blocking) Write(p []byte) (n int, err error) {
	waited, acked := false, uint64(0)
	// A short write, and one that a signal cut, goes on with the rest.
	for until := realtime.Now() + writeShare*b.patience; n < len(p); n += max(b.sent, 0) {
		b.out = p[n:]
		if err := b.raw.Write(b.send); err != nil {
			return n, err
		}
		switch {
		case b.err == nil && n+b.sent == len(p) || b.err == unix.EINTR:
		case b.err != nil && b.err != unix.EAGAIN:
			return n, b.err
		case realtime.Now() > until:
			return n, os.ErrDeadlineExceeded
		// Nothing was taken for b.patience. The first time only notes how much it had
		// acknowledged by then: a peer that is slow has acknowledged more at the second.
		case b.err == unix.EAGAIN:
			now, ok := acknowledged(b.raw)
			if !ok || waited && now == acked {
				return n, os.ErrDeadlineExceeded
			}
			waited, acked = true, now
		}
	}
	return n, nil
}

// Try writes what the peer's machine takes at once. The rest is the caller's to write: until then
// nothing else may be. It never blocks. A kernel that takes nothing now is no error: n is 0.
func (b *Blocking) Try(p []byte) (n int, err error) {
	b.out = p
	if err := b.raw.Write(b.hurry); err != nil {
		return 0, err
	}
	switch b.err {
	case nil:
		return b.sent, nil
	case unix.EAGAIN, unix.EINTR:
		return 0, nil
	}
	return 0, b.err
}

// writeShare bounds a write to a peer that takes a little all the time: it keeps a place from
// others.
const writeShare = 8

// SetReadDeadline does nothing: the kernel has its own.
func (b *Blocking) SetReadDeadline(time.Time) error { return nil }

// SetWriteDeadline does nothing, likewise.
func (b *Blocking) SetWriteDeadline(time.Time) error { return nil }

// Close ends the connection at once. It wakes the goroutines that wait in the kernel. The last
// user of the descriptor gives it back. Later calls return nil, and do nothing.
func (b *Blocking) Close() (err error) {
	b.closed.Do(func() {
		b.raw.Control(func(fd uintptr) { unix.Shutdown(int(fd), unix.SHUT_RDWR) }) // an error: the peer did it
		err = errors.Join(b.Conn.Close(), b.file.Close())
		b.freed()
	})
	return err
}
