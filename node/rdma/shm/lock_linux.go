package shm

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/farkv/farkv/node/rdma"
)

// fileLives are locks on the bytes of the clients' slots. They belong to an open file description, so that the kernel
// drops them when the last thread of the process has ended, whatever killed it; and so that probing needs a second
// description, since locks of the same one never conflict.
type fileLives struct {
	own   ownLives
	file  *os.File // holds the locks
	probe *os.File // looks at them
}

// lockRange tries to lock n bytes at off for f's description; false: somebody else has one of them.
func lockRange(f *os.File, off, n int64) (bool, error) {
	l := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart, Start: off, Len: n}
	switch err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &l); {
	case err == nil:
		return true, nil
	case errors.Is(err, unix.EAGAIN) || errors.Is(err, unix.EACCES):
		return false, nil
	default:
		return false, fmt.Errorf("lock: %w", err)
	}
}

func unlockRange(f *os.File, off, n int64) error {
	l := unix.Flock_t{Type: unix.F_UNLCK, Whence: io.SeekStart, Start: off, Len: n}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &l); err != nil {
		return fmt.Errorf("unlock: %w", err)
	}
	return nil
}

// rangeLocked tells whether a description other than f's has locked one of n bytes at off.
func rangeLocked(f *os.File, off, n int64) (bool, error) {
	l := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart, Start: off, Len: n}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &l); err != nil {
		return false, fmt.Errorf("look at locks: %w", err)
	}
	return l.Type != unix.F_UNLCK, nil
}

func (l *fileLives) take(c rdma.ClientID) (bool, error) {
	if ok, _ := l.own.take(c); !ok {
		return false, nil
	}
	ok, err := lockRange(l.file, slotOffset(c), 1)
	if !ok {
		_ = l.own.drop(c)
	}
	return ok, err
}

// drop gives the lock back first: it is the description's, and behind own's end the slot's next holder in this process would lose
// it.
func (l *fileLives) drop(c rdma.ClientID) error {
	err := unlockRange(l.file, slotOffset(c), 1)
	_ = l.own.drop(c)
	return err
}

func (l *fileLives) held(c rdma.ClientID) (bool, error) {
	return rangeLocked(l.probe, slotOffset(c), 1)
}

func (l *fileLives) close() error { return errors.Join(l.file.Close(), l.probe.Close()) }
