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

// hugePage is the size of the pages that mapHuge asks for, in bytes: what amd64 and arm64 have by
// default.
const hugePage = 2 << 20

// mapHuge maps size bytes or a few more in huge pages that are reserved from now on; nil: there are
// too few. They are reserved in the machine's pool of huge pages at once, so that no access fails
// later. The mapping is longer than size where that is no multiple of a huge page: close unmaps all
// of it.
func mapHuge(size uint64) []byte {
	size = (size + hugePage - 1) &^ (hugePage - 1)
	m, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_HUGETLB)
	if err != nil {
		return nil
	}
	return m
}
