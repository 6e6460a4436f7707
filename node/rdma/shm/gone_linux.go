package shm

import "syscall"

// removed reports whether the file has lost its name. One that cannot be asked, because it is
// closed, has not. The number of links is the file's own, so that a new pool of the same name
// does not mislead it.
func (s sparse) removed() bool {
	st, err := s.file.Stat()
	if err != nil {
		return false
	}
	sys, ok := st.Sys().(*syscall.Stat_t)
	return ok && sys.Nlink == 0
}
