package buffers

import (
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

const (
	// patient is how many times the longest answer so far a node that hands out buffers may take. A
	// loaded machine is slower by as much now and then, and what a node hands out after that has no
	// owner.
	patient = 1000
	// leastPatience is for fabrics on which a call takes no time now and then.
	leastPatience = time.Millisecond
	// silence is for how long a node is not asked again that did not answer, in units of the time that
	// it was waited for: so operations that can do without it are slower by a hundredth.
	silence = 100
)

// Patience returns for how long a node is asked for buffers: the timeout, before one has answered.
func (w *Worker) Patience() time.Duration {
	if w.longest == 0 {
		return w.timeout
	}
	return min(max(patient*w.longest, leastPatience), w.timeout)
}

// Hurry tells a worker how long others wait for a node before they ask another one, or 0 when there
// is no other: then it waits no longer for one to answer at all. Without it a node is given up
// behind Patience, which is when what it may have handed out is given up, too.
func (w *Worker) Hurry(slow func() time.Duration) { w.slow = slow }

// glance returns for how long a node is given to answer a READ, of which nothing is lost. One node
// at a time is given up so soon: when several are slow the machine is, or the network.
func (w *Worker) glance(node int) time.Duration {
	if w.slow != nil && !w.othersSilent(node) {
		if slow := w.slow(); slow > 0 {
			return min(slow, w.Patience())
		}
	}
	return w.Patience()
}

// needed reports whether a silent node is asked all the same.
func (w *Worker) needed(node int) bool {
	return w.slow != nil && (w.slow() == 0 || w.othersSilent(node))
}

// othersSilent reports whether some other node is not asked for now, since it did not answer.
func (w *Worker) othersSilent(node int) bool {
	now := w.ep.Now()
	for n, until := range w.silent {
		if n != node && until != 0 && now < until {
			return true
		}
	}
	return false
}

// supply fills an empty list, unless its node is silent, and others can stand in.
func (w *Worker) supply(l *list, busy bool) error {
	until := &w.silent[l.node]
	if *until != 0 && w.ep.Now() < *until && !w.needed(l.node) {
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
