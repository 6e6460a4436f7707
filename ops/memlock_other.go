//go:build !linux

package ops

import "errors"

func memlockLimit() (uint64, error) { return 0, errors.ErrUnsupported }
