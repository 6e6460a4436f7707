//go:build !linux

package doctor

import "errors"

func memlockLimit() (uint64, error) { return 0, errors.ErrUnsupported }
