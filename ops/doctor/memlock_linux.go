package doctor

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// memlockLimit returns how many bytes this process may lock, which registering memory with an RNIC
// does.
func memlockLimit() (uint64, error) {
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &r); err != nil {
		return 0, fmt.Errorf("read the limit of locked memory: %w", err)
	}
	return r.Cur, nil
}
