package state

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/farkv/farkv/node/rdma"
)

// Tasks are the tasks of a server. They end together: once one of them has failed, or Stop was
// called, the others end as soon as they find that by stopping.
type Tasks struct {
	node int

	// Tasks end: Stop was called, or a task has failed.
	stopped atomic.Bool
	// Stop was called.
	quits atomic.Bool

	// mu guards the fields below. It is held over no wait.
	mu sync.Mutex
	// Why tasks have failed.
	err error
	// Tasks that start has started and that have not ended.
	running int
}

// Start starts a task. If it fails, the whole server ends.
func (t *Tasks) Start(ep rdma.Endpoint, name string, f func(rdma.Endpoint) error) {
	t.count(1)
	err := ep.Go(fmt.Sprintf("server %d: %s", t.node, name), func(ep rdma.Endpoint) {
		t.End(name, f(ep))
		t.count(-1)
	})
	if err != nil {
		t.End(name, err)
		t.count(-1)
	}
}

func (t *Tasks) count(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.running += n
}

// End notes the end of a task, and with which error; the other tasks end, too.
func (t *Tasks) End(name string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stopped.Store(true)
	if err != nil {
		t.err = errors.Join(t.err, fmt.Errorf("%s of server %d: %w", name, t.node, err))
	}
}

// Ended reports whether all tasks have ended that start has started.
func (t *Tasks) Ended() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.running == 0
}

// Quit ends all tasks.
func (t *Tasks) Quit() {
	t.quits.Store(true)
	t.End("", nil)
}

// Quitting reports whether quit was called.
func (t *Tasks) Quitting() bool { return t.quits.Load() }

// Failed returns why the server has ended by itself; nil: it has not failed.
func (t *Tasks) Failed() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.err
}

// Stopping reports whether tasks should end.
func (t *Tasks) Stopping() bool { return t.stopped.Load() }
