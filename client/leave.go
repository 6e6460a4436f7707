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
	dismissed int // that have not left yet
	waiting   []leaver
	shut      chan struct{} // closed by Close; nil while nobody had to wait
	trying    bool          // a goroutine does
}

// leaver is a worker that is to be fenced off.
type leaver struct {
	ep rdma.Endpoint
	f  Fencer
}

// Leave is the function Leave, with further tries where they help.
func (d *Door) Leave(s Store, ep rdma.Endpoint, f Fencer) error {
	err := Leave(s, ep, f)
	if !errors.Is(err, errOpen) {
		return err
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	d.waiting = append(d.waiting, leaver{ep, f})
	if d.shut == nil {
		d.shut = make(chan struct{})
	}
	if !d.trying {
		d.trying = true
		d.tasks.Go(d.knock)
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

// knock tries again until nobody is left, or the door is closed.
func (d *Door) knock() {
	for pause := firstKnock; ; pause = min(2*pause, lastKnock) {
		select {
		case <-d.shut:
			return
		case <-time.After(pause):
		}
		if d.retry() == nil {
			return
		}
	}
}

// retry fences off who could not be. It returns why some still cannot.
func (d *Door) retry() error {
	for {
		d.mu.Lock()
		if len(d.waiting) == 0 {
			d.trying = false
			d.mu.Unlock()
			return nil
		}
		first := d.waiting[0]
		d.mu.Unlock() // others leave meanwhile; only this goroutine takes from the front
		if err := fenceOff(first.ep, first.f); errors.Is(err, errOpen) {
			return err // nor can the others be
		}
		d.mu.Lock()
		d.waiting = d.waiting[1:] // what else failed the pool's master makes up for
		d.mu.Unlock()
	}
}

// Close waits for those who are about to leave and tries for the last time; nobody leaves behind it. Who cannot be fenced off
// is recovered once this process ended.
func (d *Door) Close() error {
	d.mu.Lock()
	if d.shut == nil { // somebody who was dismissed may have to wait yet: not for the board to be back
		d.shut = make(chan struct{})
	}
	close(d.shut)
	d.mu.Unlock()
	d.tasks.Wait()
	return d.retry()
}
