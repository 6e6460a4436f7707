package client

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// Fencer is the part of a fabric that fences clients off: see rdma.Fabric.
type Fencer interface {
	RevokeLife(c rdma.Client) error
}

// errOpen is wrapped when an endpoint stays open because the membership cannot be told that what it
// leaves has to be recovered.
var errOpen = errors.New("the worker's identity is kept")

// Leave closes a worker's store and then its endpoint, which gives the identity back. A store that
// cannot be closed still owns memory under that identity, and may have left a write half done for
// which others wait. Such a worker is fenced off, so that the pool's master recovers it at once and
// not only when its process ends. Fencing may fail halfway, when nodes do not answer; the master
// completes it.
//
// Without a fencer the endpoint of such a worker is left open, and its identity is recovered when
// the process ends. The same holds when the pool's board is out of reach: an identity that is given
// back has no holder and is never recovered. A Door tries again.
func Leave(s Store, ep rdma.Endpoint, f Fencer) error {
	err := s.Close()
	if err != nil && !errors.Is(err, rdma.ErrAccess) && !errors.Is(err, rdma.ErrClosed) {
		if f == nil {
			return err
		}
		return errors.Join(err, fenceOff(ep, f))
	}
	return errors.Join(err, ep.Close())
}

// fenceOff fences a worker off and gives its identity to the process that recovers it. A worker
// that was cut off may have been recovered already, and its identity may have a new holder: that
// holder is not fenced off.
func fenceOff(ep rdma.Endpoint, f Fencer) error {
	err := f.RevokeLife(rdma.Client{ID: ep.Client(), Life: ep.Life()})
	if errors.Is(err, rdma.ErrUnreachable) {
		return fmt.Errorf("fence client %d off: %w: %w", ep.Client(), errOpen, err)
	}
	return errors.Join(err, ep.Close())
}

const (
	// headStart bounds how long a caller of Dismiss waits; by then the worker's place is usually free
	// again.
	headStart = 100 * time.Millisecond
	// mostDismissed bounds the workers that leave at a time without a caller that waits for them. It
	// is the default number of places for clients in a pool, and each of these workers keeps one.
	mostDismissed = 1024

	firstKnock = 20 * time.Millisecond // the pause of a Door before it tries again
	lastKnock  = time.Second           // and the longest, later
)

// Door is where the workers of a process leave a pool. Those that cannot be fenced off, because the
// pool's board is out of reach, it fences off when the board is back: until then others may wait
// for what they left half done. The zero Door is ready, and is closed before the pool is; it is
// safe for concurrent use.
type Door struct {
	tasks sync.WaitGroup

	mu        sync.Mutex
	dismissed int           // that have not left yet
	shut      chan struct{} // see closing
	left      []error       // of workers that could not be fenced off
}

// Leave is the function Leave, with further tries where they help.
func (d *Door) Leave(s Store, ep rdma.Endpoint, f Fencer) error {
	err := Leave(s, ep, f)
	if errors.Is(err, errOpen) {
		d.tasks.Go(func() { d.knock(ep, f) })
	}
	return err
}

// Dismiss has a worker leave in the background. The caller waits for headStart at most: while nodes
// and the board are out of reach, leaving takes seconds, and no operation is to wait for that. The
// caller does not learn the outcome. When mostDismissed workers are leaving already, Dismiss is
// Leave.
func (d *Door) Dismiss(s Store, ep rdma.Endpoint, f Fencer) {
	if !d.admit() {
		_ = d.Leave(s, ep, f)
		return
	}
	left := make(chan struct{})
	d.tasks.Go(func() {
		defer close(left)
		_ = d.Leave(s, ep, f)
		d.mu.Lock()
		defer d.mu.Unlock()
		d.dismissed--
	})
	late := time.NewTimer(headStart)
	defer late.Stop()
	select {
	case <-left:
	case <-late.C:
	}
}

func (d *Door) admit() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.dismissed == mostDismissed {
		return false
	}
	d.dismissed++
	return true
}

// knock fences a worker off once the board is back, or tries for the last time when the door is
// closed. What fails otherwise the pool's master makes up for.
func (d *Door) knock(ep rdma.Endpoint, f Fencer) {
	for pause, last := firstKnock, false; !last; pause = min(2*pause, lastKnock) {
		select {
		case <-d.closing():
			last = true
		case <-time.After(pause):
		}
		err := fenceOff(ep, f)
		if !errors.Is(err, errOpen) {
			return
		}
		if last {
			d.mu.Lock()
			d.left = append(d.left, err)
			d.mu.Unlock()
		}
	}
}

// closing returns a channel that Close closes.
func (d *Door) closing() chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.shut == nil {
		d.shut = make(chan struct{})
	}
	return d.shut
}

// Close waits for the workers that are about to leave, and tries for the last time; no worker
// leaves after it. A worker that cannot be fenced off is recovered once this process has ended.
func (d *Door) Close() error {
	close(d.closing())
	d.tasks.Wait()
	return errors.Join(d.left...)
}
