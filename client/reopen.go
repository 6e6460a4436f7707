package client

import (
	"context"
	"errors"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

const (
	// reopenFor is how long an operation waits for a worker that takes the place of a lost one: as
	// long as an operation may take in a pool with the default timeout.
	reopenFor   = 2 * time.Second
	reopenPause = 10 * time.Millisecond
)

// Reopen calls open again while it fails because nodes, or the pool's board, are out of reach: what
// cost an operation its worker is mostly that, and over soon. It ends with an open that succeeds or
// fails otherwise, behind two seconds, or with ctx.
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
