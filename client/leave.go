package client

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/farkv/farkv/node/rdma"
)

// Fencer is the part of a fabric that fences clients off: see rdma.Fabric.RevokeLife.
type Fencer interface {
	RevokeLife(c rdma.Client) error
}

// errOpen is wrapped when an endpoint is left open because the membership could not be told to
// recover the client.
var errOpen = errors.New("the worker's identity is kept")

// Leave closes a worker's store and then its endpoint, which gives the identity back. A store that
// cannot be closed still owns memory under that identity, and may have left a write half done that
// others wait for. Such a worker is fenced off: then the pool's master recovers it at once, and not
// only when its process ends. Fencing may fail halfway if nodes do not answer; the master completes
// it.
//
// Without a fencer the endpoint of such a worker stays open, and its identity is recovered when the
// process ends. The same holds if the pool's registry is unreachable: an identity that was given
// back has no holder and would never be recovered. A Reaper tries again later.
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

// fenceOff fences a worker off and closes its endpoint, which gives the identity to the recovery. A
// worker that was cut off may have been recovered already, and the identity may have a new holder:
// the life distinguishes the two, so the new holder is not fenced off.
//
// The fence comes before Close: a closed endpoint waits for none of its verbs, and its identity
// goes to the next client. A crash between the two leaves a fenced client that is dead, which the
// master recovers as any other.
func fenceOff(ep rdma.Endpoint, f Fencer) error {
	err := f.RevokeLife(rdma.Client{ID: ep.Client(), Life: ep.Life()})
	if errors.Is(err, rdma.ErrUnreachable) {
		return fmt.Errorf("fence client %d off: %w: %w", ep.Client(), errOpen, err)
	}
	return errors.Join(err, ep.Close())
}

const (
	// closeGrace bounds how long a caller of CloseAsync waits. By then the worker's place is
	// usually free again.
	closeGrace = 100 * time.Millisecond
	// mostClosing bounds the workers that leave in the background. It is the default number of
	// places for clients in a pool, and each of these workers keeps one.
	mostClosing = 1024

	// The first and the longest pause of a Reaper before it tries again.
	firstRetry = 20 * time.Millisecond
	lastRetry  = time.Second
)

// Reaper is where the workers of a process leave a pool. If a worker cannot be fenced off because
// the pool's registry is unreachable, the Reaper tries again until the registry is back; until then
// others may wait for what the worker left half done. The zero Reaper is ready to use. It must be
// closed before the pool is. It is safe for concurrent use.
type Reaper struct {
	// The goroutines of CloseAsync and of retries.
	tasks sync.WaitGroup

	// mu guards the fields below.
	mu sync.Mutex
	// Closed workers that have not left yet, at most mostClosing. Those that retryLoop has are not
	// among them.
	pending int
	// See closing.
	shut chan struct{}
	// Errors of workers that could not be fenced off.
	left []error
}

// Leave is the function Leave, and tries again in the background if the registry is unreachable.
func (d *Reaper) Leave(s Store, ep rdma.Endpoint, f Fencer) error {
	err := Leave(s, ep, f)
	if errors.Is(err, errOpen) {
		d.tasks.Go(func() { d.retryLoop(ep, f) })
	}
	return err
}

// CloseAsync makes a worker leave in the background. The caller waits for closeGrace at most: while
// nodes or the registry are unreachable, leaving takes seconds, and no operation should wait that
// long. The caller does not learn the outcome. If mostClosing workers are leaving already,
// CloseAsync is Leave.
func (d *Reaper) CloseAsync(s Store, ep rdma.Endpoint, f Fencer) {
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
		d.pending--
	})
	late := time.NewTimer(closeGrace)
	defer late.Stop()
	select {
	case <-left:
	case <-late.C:
	}
}

// admit counts a worker that leaves in the background. It reports false if there are too many. The
// count falls again when the worker has left, or waits for a retry.
func (d *Reaper) admit() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.pending == mostClosing {
		return false
	}
	d.pending++
	return true
}

// retryLoop fences a worker off once the registry is back. When the Reaper is closed it tries for
// the last time. If it fails for another reason, the pool's master completes it. A retry may find
// that the worker has been fenced off meanwhile: RevokeLife may be repeated.
func (d *Reaper) retryLoop(ep rdma.Endpoint, f Fencer) {
	for pause, last := firstRetry, false; !last; pause = min(2*pause, lastRetry) {
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

// closing returns a channel that Close closes. It is made by the first call, so that the zero
// Reaper is ready.
func (d *Reaper) closing() chan struct{} {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.shut == nil {
		d.shut = make(chan struct{})
	}
	return d.shut
}

// Close waits for the workers that are leaving, and tries for the last time to fence off those that
// could not be. No worker may leave afterwards. A worker that could not be fenced off is recovered
// when this process has ended. It is called once.
func (d *Reaper) Close() error {
	close(d.closing())
	d.tasks.Wait()
	return errors.Join(d.left...)
}
