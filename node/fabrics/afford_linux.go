package fabrics

import (
	"golang.org/x/sys/unix"
)

// roomOf returns the bytes that are free in a folder, and whether they are main memory; false: the
// system does not tell.
func roomOf(folder string) (free uint64, inMemory, ok bool) {
	var st unix.Statfs_t
	if err := unix.Statfs(folder, &st); err != nil {
		return 0, false, false
	}
	inMemory = st.Type == unix.TMPFS_MAGIC || st.Type == unix.RAMFS_MAGIC
	return st.Bavail * uint64(st.Bsize), inMemory, st.Blocks > 0 // a tmpfs without a limit counts no blocks
}

// heldBy returns the bytes that a file takes; 0 where it is not there.
func heldBy(file string) uint64 {
	const block = 512 // of Stat_t, whatever the file system's is
	var st unix.Stat_t
	if err := unix.Stat(file, &st); err != nil {
		return 0
	}
	return uint64(st.Blocks) * block
}
