package client

import (
	"context"
	"errors"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

const (
	// reopenFor bounds how long an operation waits for a worker that replaces a lost one: as long
	// as an operation may take in a pool with the default timeout.
	reopenFor   = 2 * time.Second
	reopenPause = 10 * time.Millisecond
)

// Reopen calls open again while it fails because nodes or the pool's registry are unreachable:
// usually that is why an operation lost its worker, and it is over soon. It returns when open
// succeeds or fails otherwise, after two seconds, or when ctx ends. open must leave nothing open
// when it fails.
func Reopen(ctx context.Context, open func() error) error {
	until := time.Now().Add(reopenFor)
	for {
		err := open()
		if !errors.Is(err, rdma.ErrUnreachable) && !errors.Is(err, rdma.ErrNodeDown) || !time.Now().Before(until) {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(reopenPause):
		}
	}
}
