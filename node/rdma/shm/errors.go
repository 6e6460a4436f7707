package shm

import (
	"errors"
	"fmt"

	"github.com/farkv/farkv/node/rdma"
)

// What callers branch on, besides the errors of package rdma.
var (
	ErrNoPool = rdma.ErrNoPool
	ErrExists = rdma.ErrExists
	ErrName   = errors.New("bad pool name")
	ErrInUse  = rdma.ErrInUse
	ErrFormat = errors.New("not a farkv pool")
	// ErrIrregular is an ErrFormat of what has a pool's name and is a folder, a link or the like.
	ErrIrregular = fmt.Errorf("%w: no regular file", ErrFormat)
	// ErrForeign ends an attempt to open a pool that other users may change, unless it is opened as
	// Shared.
	ErrForeign = errors.New("other users may change the pool")
	// ErrTruncated ends the use of a pool that lost the end of its file. It is an ErrNoPool:
	// nothing brings the pool back.
	ErrTruncated = fmt.Errorf("the pool's file was truncated: %w", rdma.ErrNoPool)
	// ErrFolder ends the use of a folder of pools that is not there, or does not let its user in.
	ErrFolder = errors.New("folder of pools cannot be used")
)
