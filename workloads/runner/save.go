package runner

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
)

// Save writes a file, which appears whole or not at all, with the mode of the one that it replaces.
// What is no regular file, such as a device or a pipe, is written to and stays what it is; so does
// a link.
func Save(name string, content []byte) error {
	file, direct, err := target(name)
	if err != nil {
		return err
	}
	if direct {
		return write(os.OpenFile(file, os.O_WRONLY|os.O_CREATE, 0o644))(content)
	}
	mode := fs.FileMode(0o644)
	if info, err := os.Stat(file); err == nil {
		mode = info.Mode().Perm()
	}
	f, err := os.CreateTemp(filepath.Dir(file), filepath.Base(file)+".*")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	if err := write(f, f.Chmod(mode))(content); err != nil {
		return err
	}
	return os.Rename(f.Name(), file)
}

// write returns what writes a file's content and closes it.
func write(f *os.File, err error) func([]byte) error {
	return func(content []byte) error {
		if err == nil {
			_, err = f.Write(content)
		}
		if f != nil {
			err = errors.Join(err, f.Close())
		}
		return err
	}
}

// Savable reports whether Save can write a file, which it leaves as it is.
func Savable(name string) error {
	file, direct, err := target(name)
	if err != nil || direct {
		return err
	}
	f, err := os.CreateTemp(filepath.Dir(file), filepath.Base(file)+".*")
	if err != nil {
		return err
	}
	return errors.Join(f.Close(), os.Remove(f.Name()))
}

// target returns the file that name leads to, and whether it has to be written to as it is.
func target(name string) (file string, direct bool, err error) {
	info, err := os.Stat(name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		_, err := os.Lstat(name)
		return name, err == nil, nil // what is there is a link to what is not
	case err != nil:
		return "", false, err
	case info.IsDir():
		return "", false, &fs.PathError{Op: "write", Path: name, Err: errors.New("is a directory")}
	case !info.Mode().IsRegular():
		return name, true, nil // Stat follows links that only the kernel can, such as those of /proc
	}
	file, err = filepath.EvalSymlinks(name)
	return file, false, err
}
