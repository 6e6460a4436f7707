//go:build !linux

package realtime

import "time"

// Boot is Now where no clock goes on while the machine is suspended.
func Boot() time.Duration { return Now() }
