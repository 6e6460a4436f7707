package realtime

import (
	"time"

	"golang.org/x/sys/unix"
)

// calibrate reads both clocks as close together as a few tries get it: being descheduled between
// the two readings would set this process's clock apart from the others'.
func calibrate() (started time.Time, booted time.Duration) {
	best := time.Hour
	for range 8 {
		var ts unix.Timespec
		before := time.Now()
		if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts); err != nil {
			panic("shm: no monotonic clock: " + err.Error())
		}
		if gap := time.Since(before); gap < best {
			best, started, booted = gap, before.Add(gap/2), time.Duration(ts.Nano())
		}
	}
	return started, booted
}
