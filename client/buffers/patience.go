package buffers

import (
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

const (
	// patient is how many times as long as ever a node that hands out buffers may take. A machine that is loaded is slow by
	// as much now and then, and what a node hands out behind that is nobody's.
	patient = 1000
	// leastPatience is for fabrics on which a call takes no time now and then.
	leastPatience = time.Millisecond
	// silence is for how long a node is not asked again that did not answer, in units of the time that it was waited for: so
	// operations that can do without it are slower by a hundredth.
	silence = 100
)

// Patience returns for how long a node is asked for buffers: the timeout, before one has answered.
func (w *Worker) Patience() time.Duration {
	if w.longest == 0 {
		return w.timeout
	}
	return min(max(patient*w.longest, leastPatience), w.timeout)
}

// supply fills an empty list, unless its node is silent.
func (w *Worker) supply(l *list, busy bool) error {
	until := &w.silent[l.node]
	if *until != 0 && w.ep.Now() < *until {
		return fmt.Errorf("the node was silent: %w", rdma.ErrTimeout)
	}
	began := w.ep.Now()
	err := w.refill(l, busy)
	if *until = 0; errors.Is(err, rdma.ErrTimeout) {
		now := w.ep.Now()
		*until = now + silence*(now-began)
	}
	return err
}
