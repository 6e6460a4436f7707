package memnode

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/farkv/farkv/node/rdma"
)

// Go's runtime preempts goroutines by signals, each of which may interrupt fallocate, and have it
// begin anew.
const (
	stretch = 16 << 20 // bytes reserved by one system call: a signal undoes all of it
	retries = 1000     // signals that one stretch may suffer
)

// reserve backs n bytes of a file at off with real memory; what is there keeps its content. The
// error wraps rdma.ErrFull and the system's. What was backed before the error stays so. It blocks
// for as long as the file system takes.
func reserve(f *os.File, off, n uint64) error {
	for end := off + n; off < end; off += stretch {
		err := error(unix.EINTR)
		for i := 0; errors.Is(err, unix.EINTR) && i < retries; i++ {
			err = unix.Fallocate(int(f.Fd()), 0, int64(off), int64(min(stretch, end-off)))
		}
		if err != nil {
			return fmt.Errorf("back %d bytes of %s: %w: %w", n, f.Name(), rdma.ErrFull, err)
		}
	}
	return nil
}
