//go:build !linux

package pmem

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// mapShared maps a file.
func mapShared(f *os.File, size uint64, _ bool) (m []byte, dax bool, err error) {
	m, err = unix.Mmap(int(f.Fd()), 0, int(size), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	return m, false, err
}

// reserve leaves it to the file system: a store there may find no room.
func reserve(*os.File, uint64) error { return nil }

// Zero implements Medium.
func (m *mapped) Zero(uint64, uint64) (bool, error) { return false, nil }

func dataSync(f *os.File) error { return f.Sync() }

func inMainMemory(*os.File) bool { return false }

func cachesSurvive() bool { return false }

func daxDevice(*os.File, uint64) error {
	return fmt.Errorf("%w: DAX devices need Linux", ErrForeign)
}
