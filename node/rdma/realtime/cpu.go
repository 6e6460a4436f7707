package realtime

import (
	"time"

	"golang.org/x/sys/unix"
)

// CPU is the processor time that this process has used, in user and kernel mode.
func CPU() time.Duration {
	var u unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &u) != nil {
		return 0
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}
