//go:build !linux

package local

import (
	"errors"
	"fmt"
	"runtime"
)

// errUnknown: without knowing when a process started, another one might be killed in its place.
var errUnknown = fmt.Errorf("node processes are started on Linux only, and this is %s: %w", runtime.GOOS,
	errors.ErrUnsupported)

func startOf(int) (uint64, error) { return 0, errUnknown }

func bootID() (string, error) { return "", errUnknown }
