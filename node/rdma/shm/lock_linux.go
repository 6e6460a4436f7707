package shm

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/farkv/farkv/node/rdma"
)

// fileLives are locks on the bytes of the clients' slots. They belong to an open file
// description, so that the kernel drops them when the last thread of the process has ended,
// whatever killed it; and so that probing needs a second description, since locks of the same one
// never conflict. The mapping, too, refers to the description of file. So a lock lasts until no
// thread is left that could store to the mapping. The files are closed on exec: a child that had
// the description would keep the locks of its parent when that dies.
type fileLives struct {
	own   ownLives
	file  *os.File // holds the locks
	probe *os.File // looks at them
}

// lockRange tries to lock n bytes at off for f's description; false: another description has one
// of them. It does not wait. Locks are on numbers of bytes: nothing is written there.
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

// unlockRange gives back what lockRange got. Bytes that are not locked are no error.
func unlockRange(f *os.File, off, n int64) error {
	l := unix.Flock_t{Type: unix.F_UNLCK, Whence: io.SeekStart, Start: off, Len: n}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_SETLK, &l); err != nil {
		return fmt.Errorf("unlock: %w", err)
	}
	return nil
}

// rangeLocked reports whether a description other than f's has locked one of n bytes at off. It
// takes no lock, and so disturbs no process that tries to.
func rangeLocked(f *os.File, off, n int64) (bool, error) {
	l := unix.Flock_t{Type: unix.F_WRLCK, Whence: io.SeekStart, Start: off, Len: n}
	if err := unix.FcntlFlock(f.Fd(), unix.F_OFD_GETLK, &l); err != nil {
		return false, fmt.Errorf("look at locks: %w", err)
	}
	return l.Type != unix.F_UNLCK, nil
}

// Locks of one description never conflict, so that own keeps apart the workers of this process.
// take begins c's life if neither a worker of this process nor another description has the lock.
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

// drop gives the lock back first: it is the description's, and behind own's end the slot's next
// holder in this process would lose it.
func (l *fileLives) drop(c rdma.ClientID) error {
	err := unlockRange(l.file, slotOffset(c), 1)
	_ = l.own.drop(c)
	return err
}

// It looks through the other description, which sees locks of this process's own workers, too.
// held reports whether any process has the lock. An error leaves that open.
func (l *fileLives) held(c rdma.ClientID) (bool, error) {
	return rangeLocked(l.probe, slotOffset(c), 1)
}

// mustHold returns an error wrapping ErrForeign unless a process has an open file that holds the
// lock of client c. The number in the slot is what some process wrote; this is what the kernel
// says. It reads the descriptors of the process one by one, and so is no snapshot: the caller
// looks at the lock once more behind it. It needs the right to look at that process: that of the
// same user, or root's.
func (l *fileLives) mustHold(pid int, c rdma.ClientID) error {
	folder := fmt.Sprintf("/proc/%d/fd", pid)
	entries, err := os.ReadDir(folder)
	if err != nil {
		return fmt.Errorf("look at the files of process %d: %w", pid, err)
	}
	mine, err := l.file.Stat()
	if err != nil {
		return err
	}
	// A client's lock is on one byte: first and last are the same.
	at := strconv.FormatInt(slotOffset(c), 10)
	for _, e := range entries {
		if st, err := os.Stat(filepath.Join(folder, e.Name())); err != nil || !os.SameFile(st, mine) {
			continue // closed meanwhile, or another file
		}
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/fdinfo/%s", pid, e.Name()))
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			// lock: NUMBER OFDLCK ADVISORY WRITE PID DEVICE:INODE FIRST LAST
			if f := strings.Fields(line); len(f) == 9 && f[0] == "lock:" && f[2] == "OFDLCK" &&
				f[7] == at && f[8] == at {
				return nil
			}
		}
	}
	return fmt.Errorf("process %d does not hold the lock of client %d: %w, and another process wrote that number", pid,
		c, ErrForeign)
}

// close drops all locks that are left, with the files.
func (l *fileLives) close() error { return errors.Join(l.file.Close(), l.probe.Close()) }
