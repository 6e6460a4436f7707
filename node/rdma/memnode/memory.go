package memnode

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/farkv/farkv/node/hugepages"
	"github.com/farkv/farkv/node/pmem"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/memcopy"
	"github.com/farkv/farkv/node/rdma/transport"
)

// memory is what a node has registered: a mapping of anonymous memory or of a file. It is never a
// Go slice, so that the race detector neither reports legal verbs nor checks them. It outlives each
// verb on it: it is unmapped by renew, when no pool has it, or by Close. Its content is what verbs,
// procedures and devices leave there. No lock guards it.
type memory struct {
	file   *os.File     // nil: anonymous, or a region's
	region *pmem.Region // nil: what it holds ends with the process
	m      []byte       // nil of a region
	// base and size do not change. Verbs touch nothing beyond pool.registered of it, which is not
	// more.
	base unsafe.Pointer
	size uint64
}

// A file has a page in front that says what it is, so that a node takes no file for its own that is
// none. The memory begins behind the page, so that offset 0 of it is at filePage of the file.
const (
	marker   = "farkv: memory of a node process\n"
	filePage = 4096
)

// newMemory maps size bytes, all zero; huge: in huge pages, which devices find their way in faster,
// if enough of them are free. A file is cut to its first page and made longer again: what was there
// is gone, and what is new reads as zero without room being taken for it. So a page of a file may
// turn out to be missing when it is touched: see fault. Anonymous memory is overcommitted: where
// the machine has none left, the process ends. The error is the system's.
func newMemory(size uint64, file *os.File, huge bool, log *slog.Logger) (*memory, error) {
	if huge && file == nil {
		if m := hugepages.Read(os.DirFS("/")).Map(size, log); m != nil {
			return &memory{nil, nil, m, unsafe.Pointer(unsafe.SliceData(m)), size}, nil
		}
	}
	fd, off, flags := -1, int64(0), unix.MAP_ANON|unix.MAP_PRIVATE|unix.MAP_NORESERVE
	if file != nil {
		_, err := file.WriteAt([]byte(marker), 0)
		if err := errors.Join(err, file.Truncate(filePage), file.Truncate(filePage+int64(size))); err != nil {
			return nil, fmt.Errorf("make room for %d bytes: %w", size, err)
		}
		fd, off, flags = int(file.Fd()), filePage, unix.MAP_SHARED
	}
	m, err := unix.Mmap(fd, off, int(size), unix.PROT_READ|unix.PROT_WRITE, flags)
	if err != nil {
		return nil, fmt.Errorf("map %d bytes: %w", size, err)
	}
	return &memory{file, nil, m, unsafe.Pointer(unsafe.SliceData(m)), size}, nil
}

// close unmaps the memory. The caller makes sure that no verb is being executed. It is called once.
func (m *memory) close() error {
	if m.region != nil {
		return m.region.Close()
	}
	return unix.Munmap(m.m)
}

// begin and end enclose what reads or changes the memory, and mark announces a change, where it
// outlives the process. They are no-ops without a Region. A fence of the region that begins behind
// end covers what was done in between: see pmem.Region. Between begin and end the order of mark and
// the change does not matter.
func (m *memory) begin() {
	if m.region != nil {
		m.region.Begin()
	}
}

func (m *memory) mark(n int) {
	if m.region != nil {
		m.region.Mark(n)
	}
}

func (m *memory) end() {
	if m.region != nil {
		m.region.End()
	}
}

// openFile opens the file that is to back a node's memory, for this process alone. It makes it, or
// takes one that a node left; what is anything else stays as it is. The error wraps ErrFile when
// the file is something else, or another process has it. The caller owns the file, and gives it
// back with leaveFile.
func openFile(path string) (*os.File, error) {
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return nil, err
	}
	if err := claimFile(f); err != nil {
		f.Close()
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return f, nil
}

// ErrFile is wrapped when a file cannot back a node's memory.
var ErrFile = errors.New("no memory of a node")

// The lock goes with the descriptor, so that the kernel gives it back when the process dies.
// claimFile locks a file and looks what is in it. An empty one is taken: newMemory marks it.
func claimFile(f *os.File) error {
	st, err := f.Stat()
	if err != nil {
		return err
	}
	if !st.Mode().IsRegular() {
		return fmt.Errorf("it is no regular file: %w", ErrFile)
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("another node uses it: %w", ErrFile)
	}
	if st.Size() == 0 {
		return nil
	}
	p := make([]byte, len(marker))
	if _, err := f.ReadAt(p, 0); err != nil || string(p) != marker {
		return fmt.Errorf("there is something else in it (hint: name another file, or remove it): %w", ErrFile)
	}
	return nil
}

// leaveFile gives back the room of a file that no process maps any more. The file stays, with its
// first page, so that the next node takes it for a node's.
func leaveFile(f *os.File) error { return errors.Join(f.Truncate(filePage), f.Close()) }

// fault turns a panic into a status when it came from touching the mapping, and goes on panicking
// otherwise. A fault elsewhere is a bug. The panic is one of the runtime, which
// debug.SetPanicOnFault asks for on the goroutine that executes. Its address says what was touched.
// The status is StatusFull, since a page is missing where the file system has no room for it.
func (m *memory) fault(r any) transport.Status {
	if e, ok := r.(interface{ Addr() uintptr }); ok && uint64(e.Addr()-uintptr(m.base)) < m.size {
		return transport.StatusFull
	}
	panic(r)
}

// view is a pool's memory as the node's procedures see it. They are our code: an offset out of
// range is a bug, and panics.
type view struct {
	*memory
	node   int
	size   uint64
	region Registration // nil without a device
}

// Node implements rdma.Memory, as the other methods do.
func (v *view) Node() int { return v.node }

func (v *view) Size() uint64 { return v.size }

// word returns where a word is mapped. Its access may fault, which serveCall turns into an error.
func (v *view) word(off uint64) *uint64 {
	if off%8 != 0 || off >= v.size {
		panic(fmt.Sprintf("tcp: node %d has no aligned word at %#x", v.node, off))
	}
	return (*uint64)(unsafe.Add(v.base, off))
}

func (v *view) Load(off uint64) uint64 { return memcopy.LoadWord(v.word(off)) }

// With a device it is the device's: a word that its verbs change by atomics must not be changed by
// the processor's.
func (v *view) CompareSwap(off, expect, value uint64) uint64 {
	w := v.word(off)
	if v.region != nil {
		return v.region.CompareSwap(off, expect, value)
	}
	return memcopy.CompareSwap(w, expect, value)
}

func (v *view) FetchAdd(off, n uint64) uint64 {
	w := v.word(off)
	if v.region != nil {
		return v.region.FetchAdd(off, n)
	}
	return memcopy.FetchAdd(w, n)
}

// Commit backs n bytes at off with room of the file system. It is called before a block is handed
// out. So a full file system is an error of the allocation, and not a fault of a verb. The error
// wraps rdma.ErrAccess for bytes outside, and rdma.ErrFull when there is no room. Anonymous memory
// and Regions need none.
func (v *view) Commit(off, n uint64) error {
	if off > v.size || n > v.size-off {
		return fmt.Errorf("commit %d bytes at %d:%#x: %w", n, v.node, off, rdma.ErrAccess)
	}
	if v.file == nil || n == 0 {
		return nil
	}
	return reserve(v.file, filePage+off, n)
}
