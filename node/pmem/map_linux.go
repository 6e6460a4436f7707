package pmem

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// mapShared maps a file, with MAP_SYNC where it is on DAX: then no page needs the file system's
// care behind a store.
func mapShared(f *os.File, size uint64, device bool) (m []byte, dax bool, err error) {
	const prot = unix.PROT_READ | unix.PROT_WRITE
	if !device {
		m, err = unix.Mmap(int(f.Fd()), 0, int(size), prot, unix.MAP_SHARED_VALIDATE|unix.MAP_SYNC)
		if err == nil {
			return m, true, nil
		}
	}
	if m, err = unix.Mmap(int(f.Fd()), 0, int(size), prot, unix.MAP_SHARED); err != nil {
		return nil, false, fmt.Errorf("map %d bytes: %w", size, err)
	}
	return m, device, nil
}

// retries bounds the signals that one system call may suffer.
const retries = 1000

func again(call func() error) (err error) {
	for range retries {
		if err = call(); !errors.Is(err, unix.EINTR) {
			break
		}
	}
	return err
}

// reserve gives a file real room for its first n bytes; what is there keeps its content.
func reserve(f *os.File, n uint64) error {
	return again(func() error { return unix.Fallocate(int(f.Fd()), 0, 0, int64(n)) })
}

// Zero implements Medium: it frees the file's room there, and takes it anew.
func (m *mapped) Zero(off, n uint64) (done bool, err error) {
	if m.device {
		return false, nil
	}
	const punch = unix.FALLOC_FL_PUNCH_HOLE | unix.FALLOC_FL_KEEP_SIZE
	err = again(func() error { return unix.Fallocate(int(m.f.Fd()), punch, int64(off), int64(n)) })
	if errors.Is(err, unix.EOPNOTSUPP) {
		return false, nil
	}
	if err == nil {
		err = again(func() error { return unix.Fallocate(int(m.f.Fd()), 0, int64(off), int64(n)) })
	}
	return err == nil, err
}

func dataSync(f *os.File) error {
	return again(func() error { return unix.Fdatasync(int(f.Fd())) })
}

// inMainMemory reports whether a file ends with the machine.
func inMainMemory(f *os.File) bool {
	var st unix.Statfs_t
	return unix.Fstatfs(int(f.Fd()), &st) == nil && (st.Type == unix.TMPFS_MAGIC || st.Type == unix.RAMFS_MAGIC)
}

// cachesSurvive reports whether all persistent memory of the machine is in eADR mode.
func cachesSurvive() bool {
	all, _ := filepath.Glob("/sys/bus/nd/devices/region*/persistence_domain")
	for _, name := range all {
		if p, err := os.ReadFile(name); err != nil || strings.TrimSpace(string(p)) != "cpu_cache" {
			return false
		}
	}
	return len(all) > 0
}

// daxDevice returns why a character device is no DAX device of that size.
func daxDevice(f *os.File, size uint64) error {
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return err
	}
	at := fmt.Sprintf("/sys/dev/char/%d:%d", unix.Major(uint64(st.Rdev)), unix.Minor(uint64(st.Rdev)))
	if sub, err := os.Readlink(at + "/subsystem"); err != nil || filepath.Base(sub) != "dax" {
		return fmt.Errorf("%w: it is no DAX device", ErrForeign)
	}
	text, err := os.ReadFile(at + "/size")
	if err != nil {
		return plain(err)
	}
	has, err := strconv.ParseUint(strings.TrimSpace(string(text)), 10, 64)
	const huge = 2 << 20 // a DAX device is mapped in units of this
	if err != nil || has < size || size%huge != 0 {
		return fmt.Errorf("%w: the device has %d bytes, and %d are wanted, which has to be a multiple of 2 MiB",
			ErrSize, has, size)
	}
	return nil
}
