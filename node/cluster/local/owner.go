package local

import (
	"io/fs"
	"syscall"
)

// owner returns the ID of the user that owns a file; -1: it is not known.
func owner(info fs.FileInfo) int {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(s.Uid)
	}
	return -1
}
