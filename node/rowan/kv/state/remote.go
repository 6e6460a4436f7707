package state

import (
	"errors"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
)

// NewRemote returns the writer's end of a log at a node.
func (s *Server) NewRemote(node, log int) *rowan.Remote {
	return rowan.NewRemote(s.Opt.LogOf(node), log, s.Opt.UrgentSegments())
}

// Asking is the state of a worker's question for segments of one remote log.
type Asking struct {
	batch *rdma.Batch // nil: none is in flight
	// When the question may be asked again.
	again time.Duration
}

// Step takes the answer to a question, and asks another one if needed. It calls again with the time
// at which to come back.
func (a *Asking) Step(ep rdma.Endpoint, log *rowan.Remote, again func(time.Duration)) (err error) {
	if a.batch != nil {
		// The worker is woken when it has.
		if !a.batch.Finished() {
			return nil
		}
		failed := a.batch.Err()
		// It takes the segments that were lent, and releases the batch.
		useful := log.Answered(a.batch)
		if a.batch = nil; !useful {
			a.again = ep.Now() + RetryPause
		}
		if errors.Is(failed, rdma.ErrStale) {
			if _, err := ep.Join(); err != nil {
				return err
			}
		}
	}
	if ep.Now() < a.again {
		again(a.again)
		return nil
	}
	// nil if there is nothing to tell or to ask for.
	a.batch, err = log.Ask(ep)
	return err
}

// Fatal reports whether an error of a verb at another server ends the task itself. Other errors are
// repeated.
func Fatal(err error) bool {
	return errors.Is(err, rdma.ErrClosed) || errors.Is(err, rdma.ErrRevoked) ||
		errors.Is(err, rdma.ErrMessageSize) || errors.Is(err, rdma.ErrNotSupported)
}

// RetryPause is that before an action at another server is tried again.
const RetryPause = 20 * time.Microsecond
