package local

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"golang.org/x/sys/unix"
)

// A process acts on what a run folder holds: it dials addresses and signals processes. In /tmp
// another user can make a folder with the expected name first. So each folder and file is opened
// without following a link, and its owner and mode are checked on the open descriptor. Between the
// check and the use no name is resolved that another user could change.

const (
	// Mode bits that let other users look into a folder or change it.
	othersUse = 0o077
	// Mode bits that let other users change a file or a folder.
	othersWrite = 0o022
	// Bound of a record in bytes: that of a pool with the most nodes is far shorter.
	mostRecord = 1 << 20
)

// Root returns the folder that contains all run folders. It need not exist.
func Root() string {
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		return filepath.Join(dir, "farkv")
	}
	return filepath.Join(os.TempDir(), "farkv-"+strconv.Itoa(os.Getuid()))
}

// makeRoot makes the root if it does not exist.
func makeRoot() error {
	err := os.Mkdir(Root(), 0o700)
	if err != nil && !errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%w: %w", ErrFolder, err)
	}
	root, err := openRoot()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrFolder, err)
	}
	return root.Close()
}

// openRoot opens the root. Errors wrap fs.ErrNotExist or ErrFolder. Afterwards this process may
// name files in it by their paths: no other user can rename or remove the root, since its parent is
// sticky or not writable for them.
func openRoot() (*os.File, error) {
	path := Root()
	parent, err := os.OpenFile(filepath.Dir(path), unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return nil, foreign(err, filepath.Dir(path))
	}
	defer parent.Close()
	info, err := parent.Stat()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFolder, err)
	}
	stable := info.Mode()&fs.ModeSticky != 0 || info.Mode().Perm()&othersWrite == 0
	if by := owner(info); !stable || by != os.Getuid() && by != 0 {
		return nil, fmt.Errorf(
			"%w: other users may replace %s: %s is theirs, or they may write to it and it is not sticky",
			ErrFolder, path, parent.Name())
	}
	return openFolder(parent, path, othersUse)
}

// openFolder opens a folder by the last part of its path, in parent. It must belong to this user,
// with none of the mode bits in without. Errors wrap fs.ErrNotExist or ErrFolder.
func openFolder(parent *os.File, path string, without fs.FileMode) (*os.File, error) {
	f, err := openAt(parent, path, unix.O_DIRECTORY)
	if err != nil {
		return nil, foreign(err, path)
	}
	info, err := f.Stat()
	switch {
	case err != nil:
		err = fmt.Errorf("%w: %w", ErrFolder, err)
	case owner(info) != os.Getuid():
		err = fmt.Errorf("%w: %s is not a folder of this user: its owner is user %d", ErrFolder, path, owner(info))
	case info.Mode().Perm()&without != 0:
		err = fmt.Errorf("%w: others may use %s: its mode is %v", ErrFolder, path, info.Mode().Perm())
	}
	if err != nil {
		f.Close()
		return nil, err
	}
	return f, nil
}

// openAt opens the last part of path in parent for reading. It does not follow a link, and does not
// wait for a writer of a pipe.
func openAt(parent *os.File, path string, flags int) (*os.File, error) {
	flags |= unix.O_RDONLY | unix.O_NOFOLLOW | unix.O_NONBLOCK | unix.O_CLOEXEC
	err := error(unix.EINTR)
	for errors.Is(err, unix.EINTR) { // it ends: signals interrupt an open now and then
		var fd int
		if fd, err = unix.Openat(int(parent.Fd()), filepath.Base(path), flags, 0); err == nil {
			return os.NewFile(uintptr(fd), path), nil
		}
	}
	return nil, &fs.PathError{Op: "open", Path: path, Err: err}
}

// foreign turns an error of opening a folder into one that callers branch on.
func foreign(err error, path string) error {
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return err
	case errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ELOOP):
		return fmt.Errorf("%w: %s is not a folder of this user, but a link or a file", ErrFolder, path)
	}
	return fmt.Errorf("%w: %w", ErrFolder, err)
}

// readOwn reads a regular file in a folder. It must belong to this user, with none of the mode bits
// in without. Errors wrap fs.ErrNotExist or ErrRecord.
func readOwn(folder *os.File, name string, without fs.FileMode) ([]byte, error) {
	path := filepath.Join(folder.Name(), name)
	f, err := openAt(folder, path, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRecord, err)
	}
	defer f.Close()
	info, err := f.Stat()
	switch {
	case err != nil:
		return nil, fmt.Errorf("%w: %w", ErrRecord, err)
	case !info.Mode().IsRegular(), owner(info) != os.Getuid():
		return nil, fmt.Errorf("%w: %s is not a file of this user", ErrRecord, path)
	case info.Mode().Perm()&without != 0:
		return nil, fmt.Errorf("%w: others may change %s: its mode is %v", ErrRecord, path, info.Mode().Perm())
	}
	text, err := io.ReadAll(io.LimitReader(f, mostRecord))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRecord, err)
	}
	return text, nil
}

// List returns the sorted names of all pools, also those with a damaged record. The error wraps
// ErrFolder.
func List() ([]string, error) {
	root, err := openRoot()
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer root.Close()
	entries, err := root.ReadDir(-1)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFolder, err)
	}
	var names []string
	for _, e := range entries {
		if e.IsDir() && CheckName(e.Name()) == nil {
			names = append(names, e.Name())
		}
	}
	slices.Sort(names)
	return names, nil
}
