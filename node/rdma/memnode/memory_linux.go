package memnode

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"

	"github.com/farkv/farkv/node/rdma"
)

const (
	stretch = 16 << 20 // bytes reserved by one system call: a signal undoes all of it
	retries = 1000     // signals that one stretch may suffer
)

// reserve backs n bytes of a file at off with real memory; what is there keeps its content.
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
// too few.
func mapHuge(size uint64) []byte {
	size = (size + hugePage - 1) &^ (hugePage - 1)
	m, err := unix.Mmap(-1, 0, int(size), unix.PROT_READ|unix.PROT_WRITE,
		unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_HUGETLB)
	if err != nil {
		return nil
	}
	return m
}
