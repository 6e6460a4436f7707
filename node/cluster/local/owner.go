package local

import (
	"io/fs"
	"syscall"
)

// owner returns who owns a file; -1: nobody knows.
func owner(info fs.FileInfo) int {
	if s, ok := info.Sys().(*syscall.Stat_t); ok {
		return int(s.Uid)
	}
	return -1
}
