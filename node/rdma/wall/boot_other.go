//go:build !linux

package wall

import "time"

// Boot is Now where no clock goes on while the machine is suspended.
func Boot() time.Duration { return Now() }
