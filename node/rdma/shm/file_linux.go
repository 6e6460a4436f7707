package shm

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/farkv/farkv/node/rdma"
)

// A pool is made, and ends, so:
//
//	Create  an unnamed file (O_TMPFILE), which ends with its last descriptor
//	        its length; memory for header, slots and configuration; the header
//	        mapped, formatted by the caller, and only then linked to its name
//	Open    the name to a file that is regular, and that no other user may change;
//	        the header; mapped
//	Remove  no client's lock; the name is taken away; the memory goes with the last user
//
// A crash of the creator leaves nothing at any point before the link, and a whole pool behind it.
// Nodes' memory has no pages until Commit makes them. All that is before node 0 always has: a
// word of the header or of a slot can fault only when the file is truncated.

// prefix begins the name of every pool's file: List knows pools by it, and other files in the
// folder are left alone.
const prefix = "farkv-"

// folder is where the pools' files are. It is read anew each time. /dev/shm is a tmpfs, so that
// pools there end with the machine. Another folder may keep them: words of time are bounded for
// that, see MaxLease.
func folder() string {
	if d := os.Getenv("FARKV_SHM_DIR"); d != "" {
		return d
	}
	return "/dev/shm"
}

// path is where the pool of a name is. The name has passed CheckName: it holds no separator.
func path(name string) string { return filepath.Join(folder(), prefix+name) }

// Create makes the pool shm:name and opens it; h serves calls. The pool gets its name only when
// format, which writes the first content through an Endpoint, has returned nil: no other process
// ever sees half of it, and a crash before leaves nothing. Errors wrap ErrExists, ErrFormat when
// something else has the name, ErrFolder, ErrName, rdma.ErrFull, or what format returned. Create
// with Shared makes a file that all users of the machine may open. It blocks for as long as
// format does, and as the kernel takes to find memory.
func Create(name string, g Geometry, h rdma.Handler, format func(*Fabric) error, all ...Option) (*Fabric, error) {
	o := optionsOf(all)
	f, err := create(name, g, h, format, o)
	if err != nil {
		return nil, fmt.Errorf("create %s%s: %w", o.scheme(), name, err)
	}
	return f, nil
}

func create(name string, g Geometry, h rdma.Handler, format func(*Fabric) error, o options) (*Fabric, error) {
	if err := errors.Join(CheckName(name), g.check()); err != nil {
		return nil, err
	}
	if err := vacant(name); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(folder(), unix.O_TMPFILE|os.O_RDWR|unix.O_CLOEXEC, 0o600)
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil, fmt.Errorf("%w: %w", ErrFolder, err)
	}
	if err != nil {
		return nil, cause(err)
	}
	err = provide(file, g)
	if err == nil && o.shared {
		// The mode of OpenFile would be cut by the process's umask.
		err = file.Chmod(0o666)
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	// From here on the file is f's, and f.Close closes it.
	f, err := attach(name, file, g, h, o)
	if err != nil {
		return nil, err
	}
	if err := publish(f, file, name, format); err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}

// vacant tells what has the pool's name already. It is to fail early: the link decides. nil:
// nothing has the name. The errors are ErrExists and ErrFormat.
func vacant(name string) error {
	if _, err := os.Lstat(path(name)); err != nil {
		return nil // what keeps a file from being made is found when it is
	}
	file, err := openFile(name, options{shared: true})
	if err == nil {
		_, err = identify(file)
		file.Close()
	}
	if errors.Is(err, ErrFormat) {
		return err
	}
	return ErrExists
}

// Room returns the folder of the pools, and how many bytes are free in it. What only root may use
// is not counted. On tmpfs, memory may run out earlier.
func Room() (string, uint64, error) {
	var st unix.Statfs_t
	if err := unix.Statfs(folder(), &st); err != nil {
		return folder(), 0, fmt.Errorf("%w: statfs %s: %w", ErrFolder, folder(), err)
	}
	return folder(), st.Bavail * uint64(st.Bsize), nil
}

// provide gives a new file its length, real memory for the header and the slots, and the header.
// No other process has the file. The length costs nothing: nodes' memory is a hole until it is
// committed. An error wraps rdma.ErrFull when there is no room.
func provide(file *os.File, g Geometry) error {
	if err := file.Truncate(int64(g.size())); err != nil {
		return fmt.Errorf("make room for %d bytes: %w", g.size(), cause(err))
	}
	if err := allocate(file, 0, g.first()); err != nil {
		return fmt.Errorf("allocate %d bytes in %s: %w", g.first(), folder(), err)
	}
	var p [headSize]byte
	g.encode(p[:])
	if _, err := file.WriteAt(p[:], 0); err != nil {
		return fmt.Errorf("write header: %w", cause(err))
	}
	return nil
}

// publish formats the pool and gives its file a name. A file that was not linked ends with its
// last descriptor. The name is the last step, and fails when another pool has got it since.
// Before it no other process can open the file. A link cannot replace a file, as a rename would.
func publish(f *Fabric, file *os.File, name string, format func(*Fabric) error) error {
	if format != nil {
		if err := format(f); err != nil {
			return err
		}
	}
	err := unix.Linkat(unix.AT_FDCWD, descriptor(file), unix.AT_FDCWD, path(name), unix.AT_SYMLINK_FOLLOW)
	if errors.Is(err, unix.EEXIST) {
		return ErrExists
	}
	if err != nil {
		return fmt.Errorf("link %s: %w", path(name), cause(err))
	}
	return nil
}

// descriptor names an open file, so that it can be linked, and opened again as another description
// of the same file whatever its path now means.
func descriptor(f *os.File) string { return fmt.Sprintf("/proc/self/fd/%d", f.Fd()) }

// attach maps file, which it owns from here on. The second description is for looking at locks:
// see fileLives. It closes the file when it fails. The mapping refers to file, and not to probe.
func attach(name string, file *os.File, g Geometry, h rdma.Handler, o options) (*Fabric, error) {
	probe, err := os.OpenFile(descriptor(file), os.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		file.Close()
		return nil, fmt.Errorf("open a second time: %w", cause(err))
	}
	m, err := unix.Mmap(int(file.Fd()), 0, int(g.size()), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		file.Close()
		probe.Close()
		return nil, fmt.Errorf("map %d bytes: %w", g.size(), err)
	}
	lives := &fileLives{own: ownLives{of: map[rdma.ClientID]bool{}}, file: file, probe: probe}
	f := newFabric(o.scheme()+name, g, m, lives, sparse{file}, h)
	// Set before the fabric is known to any other goroutine.
	f.faults, f.shared = true, o.shared
	return f, nil
}

// Open opens the pool shm:name; h serves calls. It changes nothing in a file that is no pool.
// Errors wrap ErrNoPool, ErrName, ErrFormat, ErrForeign or fs.ErrPermission. It opens a pool
// whole, or not at all. The fabric has no endpoints, and the file none of its locks.
func Open(name string, h rdma.Handler, all ...Option) (*Fabric, error) {
	o := optionsOf(all)
	f, err := open(name, h, o)
	if err != nil {
		return nil, fmt.Errorf("open %s%s: %w", o.scheme(), name, err)
	}
	return f, nil
}

// The file is checked before it is mapped, by what is open, and not by its name again.
func open(name string, h rdma.Handler, o options) (*Fabric, error) {
	file, err := openFile(name, o)
	if err != nil {
		return nil, err
	}
	g, err := identify(file)
	if err != nil {
		file.Close()
		return nil, err
	}
	return attach(name, file, g, h, o)
}

// openFile opens the pool's file, whatever is in it. It does not hang on what is no file. Links
// are not followed: the name could be given to a file that is no pool. A pipe or a device could
// have the open wait. The owner is checked by the descriptor, so that a file that is put in its
// place later does not matter.
func openFile(name string, o options) (*os.File, error) {
	if err := CheckName(name); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(path(name), os.O_RDWR|unix.O_NOFOLLOW|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if _, err := os.Stat(folder()); err != nil {
			return nil, fmt.Errorf("%w: %w", ErrFolder, err)
		}
		return nil, fmt.Errorf("%w: %s is not there", ErrNoPool, path(name))
	case errors.Is(err, unix.ELOOP) || errors.Is(err, unix.EISDIR) || errors.Is(err, unix.ENXIO):
		return nil, fmt.Errorf("%w: %s", ErrIrregular, path(name))
	case err != nil:
		return nil, cause(err)
	}
	st, err := file.Stat()
	if err == nil && !st.Mode().IsRegular() {
		err = fmt.Errorf("%w: %s", ErrIrregular, path(name))
	}
	if err == nil && !o.shared {
		err = private(st, path(name))
	}
	if err != nil {
		file.Close()
		return nil, err
	}
	return file, nil
}

// private returns an error wrapping ErrForeign when a user other than this process's may change a
// file. Being able to read it is no right to change it. Folders above are not looked at: /dev/shm
// is sticky, so that other users cannot replace the file.
func private(st fs.FileInfo, path string) error {
	const othersWrite = 0o022
	by := int(st.Sys().(*syscall.Stat_t).Uid)
	switch {
	case by != os.Geteuid():
		return fmt.Errorf("%w: %s belongs to user %d", ErrForeign, path, by)
	case st.Mode().Perm()&othersWrite != 0:
		return fmt.Errorf("%w: the mode of %s is %v", ErrForeign, path, st.Mode().Perm())
	}
	return nil
}

// MeantShared reports whether other users may change the pool shm:name, and it belongs to this
// process's user or to root, so that those may have made it for all. It is for the
// addresses that a list shows. Open checks the file by itself: the name may mean another by then.
func MeantShared(name string) bool {
	st, err := os.Lstat(path(name))
	if CheckName(name) != nil || err != nil || !st.Mode().IsRegular() ||
		!errors.Is(private(st, path(name)), ErrForeign) {
		return false
	}
	by := int(st.Sys().(*syscall.Stat_t).Uid)
	return by == os.Geteuid() || by == 0
}

// identify validates the file's header without changing anything. A file that is too short is no
// error of reading: parse says what is wrong with it.
func identify(file *os.File) (Geometry, error) {
	st, err := file.Stat()
	if err != nil {
		return Geometry{}, err
	}
	p := make([]byte, headSize)
	n, err := file.ReadAt(p, 0)
	if err != nil && n < len(p) && st.Size() >= headSize {
		return Geometry{}, err
	}
	return parse(p[:n], st.Size())
}

// Remove takes the pool's name away; its memory goes when the last process lets go of it. It
// refuses with ErrInUse while clients live, and what is no pool with ErrFormat, unless forced.
// Clients that died are no obstacle.
func Remove(name string, force bool, all ...Option) error {
	o := optionsOf(all)
	if err := remove(name, force, o); err != nil {
		return fmt.Errorf("remove %s%s: %w", o.scheme(), name, err)
	}
	return nil
}

// Clients that have the pool open go on with it: what they have is the memory, and not the name.
// With force, what is no pool goes, too, if it has a pool's name and is a regular file of this
// user's.
func remove(name string, force bool, o options) error {
	file, err := openFile(name, o)
	if err != nil {
		return err
	}
	defer file.Close()
	if !force {
		g, err := identify(file)
		if err != nil {
			return err
		}
		// Held until the file is closed: no process becomes a client in between.
		ok, err := lockRange(file, page, int64(g.first())-page)
		if err != nil {
			return err
		}
		if !ok {
			return ErrInUse
		}
	}
	// Between here and the removal the name may still come to mean another pool.
	if err := same(file, name); err != nil {
		return err
	}
	return cause(os.Remove(path(name)))
}

// same makes sure that the pool's name still means the file that was looked at, and not a
// successor. What is removed by name may still be a successor, in the moment between this and the
// removal.
func same(file *os.File, name string) error {
	was, err := file.Stat()
	if err != nil {
		return err
	}
	is, err := os.Lstat(path(name))
	if err != nil || !os.SameFile(was, is) {
		return fmt.Errorf("%w: another process removed it", ErrNoPool)
	}
	return nil
}

// List returns the names of the pools in the folder, sorted.
func List() ([]string, error) {
	all, err := os.ReadDir(folder())
	if err != nil {
		return nil, fmt.Errorf("list pools: %w: %w", ErrFolder, err)
	}
	var names []string
	for _, e := range all {
		if name, ok := strings.CutPrefix(e.Name(), prefix); ok && e.Type().IsRegular() && CheckName(name) == nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names, nil
}

// cause adds the sentinel that callers branch on to what the system said. Others stay as they
// are. EFBIG is a limit on the length of files.
func cause(err error) error {
	switch {
	case errors.Is(err, unix.ENOSPC) || errors.Is(err, unix.EDQUOT) || errors.Is(err, unix.EFBIG):
		return fmt.Errorf("%w: %w", rdma.ErrFull, err)
	case errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("%s cannot hold pools: %w: %w", folder(), rdma.ErrNotSupported, err)
	}
	return err
}

// sparse is the backing of a file that has pages only where they were committed. The mapping and
// the file are one: fallocate gives the mapping its pages.
type sparse struct{ file *os.File }

func (s sparse) commit(off, n uint64) error {
	if n == 0 {
		return nil
	}
	return allocate(s.file, off, n)
}

// It tells a file that was truncated from one without memory behind a page: both raise SIGBUS.
func (s sparse) whole(size uint64) bool {
	st, err := s.file.Stat()
	return err == nil && uint64(st.Size()) >= size
}

const (
	stretch = 16 << 20 // bytes allocated by one system call: a signal undoes all of it
	retries = 1000     // signals that one stretch may suffer
)

// allocate reserves real memory for n bytes at off; what is there keeps its content. It is called
// before memory is handed out, so that a full file system is an error, and not a signal. Each
// stretch is tried again when a signal cuts it, up to retries times: the Go runtime sends signals
// to its own threads. An error leaves the stretches before it allocated.
func allocate(file *os.File, off, n uint64) error {
	for end := off + n; off < end; off += stretch {
		err := error(unix.EINTR)
		for i := 0; errors.Is(err, unix.EINTR) && i < retries; i++ {
			err = fallocate(file, off, min(stretch, end-off))
		}
		if err != nil {
			return cause(err)
		}
	}
	return nil
}

// fallocate leaves a file as long as it is: one that was truncated stays so. Without that flag it
// would make a truncated file long again, with zeros where the pool was.
func fallocate(file *os.File, off, n uint64) error {
	return unix.Fallocate(int(file.Fd()), unix.FALLOC_FL_KEEP_SIZE, int64(off), int64(n))
}
