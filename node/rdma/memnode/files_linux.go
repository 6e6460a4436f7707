package memnode

import "golang.org/x/sys/unix"

// mostFiles is how many files this process may have open.
func mostFiles() uint64 {
	var r unix.Rlimit
	if unix.Getrlimit(unix.RLIMIT_NOFILE, &r) != nil {
		return plentyOfFiles
	}
	return r.Cur
}
