package buffers

import (
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

const (
	// timeoutFactor is how many times its longest answer so far a node may take that hands out
	// buffers. A loaded machine is that much slower now and then, and buffers that are handed out
	// after that have no owner.
	timeoutFactor = 1000
	// leastPatience is for fabrics on which a call takes no measurable time.
	leastPatience = time.Millisecond
	// retryAfterFactor is for how long a node that did not answer is not asked again, in units of
	// the time that it was waited for, Patience at most. So operations that can do without it
	// become slower by a hundredth.
	retryAfterFactor = 100
)

// Patience returns how long a node is asked for buffers. Before any node has answered it is the
// timeout. It bounds the calls and CASes, of which a lost answer costs buffers: they are abandoned
// to the next sweep.
func (w *Worker) Patience() time.Duration {
	if w.longest == 0 {
		return w.timeout
	}
	return min(max(timeoutFactor*w.longest, leastPatience), w.timeout)
}

// stepPatience is Patience for a request of a step. A step that fails without the node waits for it
// as for any other answer. All nodes that it needs have one timeout together.
func (w *Worker) stepPatience() time.Duration {
	if w.neededSince == 0 {
		return w.Patience()
	}
	return min(max(w.Patience(), w.timeout-(w.ep.Now()-w.neededSince)), w.timeout)
}

// noteNeed notes since when the step at work needs each node that it asks.
func (w *Worker) noteNeed() {
	switch {
	case w.slow == nil || w.slow() > 0:
		w.neededSince = 0
	case w.neededSince == 0:
		w.neededSince = w.ep.Now()
	}
}

// learn lets Patience adapt to the slowest node so far. What took longer than Patience was an
// outage, which a step has outlasted.
func (w *Worker) learn(took time.Duration) {
	if took <= w.Patience() {
		w.longest = max(w.longest, took)
	}
}

// SetHedgeDelay sets the function that returns how long other steps wait for a node before they
// ask another one; 0: there is no other. Then a READ waits no longer than that. Without it a node
// is given up after Patience, as are the buffers that it may have handed out.
func (w *Worker) SetHedgeDelay(slow func() time.Duration) { w.slow = slow }

// readTimeout returns how long a node may take to answer a READ, which loses nothing. Only one
// node at a time is given up so soon: if several are slow, the machine or the network is.
func (w *Worker) readTimeout(node int) time.Duration {
	if w.slow != nil && !w.othersSilent(node) {
		if slow := w.slow(); slow > 0 {
			return min(slow, w.Patience())
		}
	}
	return w.stepPatience()
}

// needed reports whether a silent node must be asked all the same. It is if the step fails without
// that node, or if others are silent, too.
func (w *Worker) needed(node int) bool {
	return w.slow != nil && (w.slow() == 0 || w.othersSilent(node))
}

// othersSilent reports whether another node is currently not asked because it did not answer.
func (w *Worker) othersSilent(node int) bool {
	now := w.ep.Now()
	for n, until := range w.silent {
		if n != node && until != 0 && now < until {
			return true
		}
	}
	return false
}

// supply fills an empty list, unless its node is silent and others can replace it. Any answer ends
// the silence, also one that there is no buffer: only a timeout costs the next operations time.
func (w *Worker) supply(l *list, busy bool) error {
	w.noteNeed()
	until := &w.silent[l.node]
	if *until != 0 && w.ep.Now() < *until && !w.needed(l.node) {
		return fmt.Errorf("the node was silent: %w", rdma.ErrTimeout)
	}
	began := w.ep.Now()
	err := w.refill(l, busy)
	if *until = 0; errors.Is(err, rdma.ErrTimeout) {
		now := w.ep.Now()
		*until = now + retryAfterFactor*min(now-began, w.Patience())
	}
	return err
}
