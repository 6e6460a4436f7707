//go:build !linux

package local

import (
	"errors"
	"fmt"
	"runtime"
)

// errUnknown says that the start of a process cannot be found out here. Without it another process
// could be killed instead.
var errUnknown = fmt.Errorf("node processes are started on Linux only, and this is %s: %w", runtime.GOOS,
	errors.ErrUnsupported)

func startOf(int) (uint64, error) { return 0, errUnknown }

func bootID() (string, error) { return "", errUnknown }
