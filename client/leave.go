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

// errOpen is wrapped when an endpoint stays open, since nobody could be told that what it leaves has to be recovered.
var errOpen = errors.New("the worker's identity is kept")

// Leave closes a worker's store and then its endpoint, which gives the identity back. A store that cannot be closed still
// owns memory under that identity, and may have left a write half done for which others wait: then the worker is fenced
// off, so that the pool's master recovers it at once, and not when its process ends. That may fail halfway, when nodes do
// not answer; the master makes up for it.
//
// Without a fencer the endpoint of such a worker is left open, and its identity waits for the end of the process; so it is
// when the pool's board is out of reach. Given back it would be nobody's, and never recovered. A Door tries again.
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

// fenceOff fences a worker off and gives its identity to whoever recovers it. A worker that was cut off may have been
// recovered, and its identity may be another's by now: that one is left alone.
func fenceOff(ep rdma.Endpoint, f Fencer) error {
	err := f.RevokeLife(rdma.Client{ID: ep.Client(), Life: ep.Life()})
	if errors.Is(err, rdma.ErrUnreachable) {
		return fmt.Errorf("fence client %d off: %w: %w", ep.Client(), errOpen, err)
	}
	return errors.Join(err, ep.Close())
}

const (
	// headStart is for how long somebody waits for a worker that he dismisses: usually its place is free again by then.
	headStart = 100 * time.Millisecond
	// mostDismissed bounds the workers that leave at a time without anybody who waits for them: a pool has as many places for
	// clients by default, and each keeps one.
	mostDismissed = 1024

	firstKnock = 20 * time.Millisecond // the pause of a Door before it tries again
	lastKnock  = time.Second           // and the longest, later
)

// Door is where the workers of a process leave a pool. Those that cannot be fenced off, because the pool's board is out of
// reach, it fences off when the board is back: until then others may wait for what they left half done. The zero Door is
// ready, and is closed before the pool is; it is safe for concurrent use.
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

// Dismiss has a worker leave beside its caller, who waits for a moment only: while nodes and board are out of reach to leave
// takes seconds, by which no operation is to be held up. What comes of it he is not told. When too many are about to leave it
// is Leave.
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

// knock fences a worker off once the board is back, or tries for the last time when the door is closed. What fails otherwise
// the pool's master makes up for.
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

// Close waits for those who are about to leave and tries for the last time; nobody leaves behind it. Who cannot be fenced off
// is recovered once this process ended.
func (d *Door) Close() error {
	close(d.closing())
	d.tasks.Wait()
	return errors.Join(d.left...)
}
