package realtime

import (
	"time"

	"golang.org/x/sys/unix"
)

// Boot is the time since the machine started, like Now, but goes on while the machine is suspended:
// for leases that others count, too.
func Boot() time.Duration {
	var ts unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_BOOTTIME, &ts); err != nil {
		panic("wall: no clock of the time since boot: " + err.Error())
	}
	return time.Duration(ts.Nano())
}
