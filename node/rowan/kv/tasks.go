package kv

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"

	"github.com/farkv/farkv/node/rdma"
)

// tasks are the tasks of a server. They end together: once one of them has failed, or Stop was
// called, the others end as soon as they find that by stopping.
type tasks struct {
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

// start starts a task. If it fails, the whole server ends.
func (t *tasks) start(ep rdma.Endpoint, name string, f func(rdma.Endpoint) error) {
	t.count(1)
	err := ep.Go(fmt.Sprintf("server %d: %s", t.node, name), func(ep rdma.Endpoint) {
		t.end(name, f(ep))
		t.count(-1)
	})
	if err != nil {
		t.end(name, err)
		t.count(-1)
	}
}

func (t *tasks) count(n int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.running += n
}

// end notes the end of a task, and with which error; the other tasks end, too.
func (t *tasks) end(name string, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stopped.Store(true)
	if err != nil {
		t.err = errors.Join(t.err, fmt.Errorf("%s of server %d: %w", name, t.node, err))
	}
}

// ended reports whether all tasks have ended that start has started.
func (t *tasks) ended() bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.running == 0
}

// quit ends all tasks.
func (t *tasks) quit() {
	t.quits.Store(true)
	t.end("", nil)
}

// quitting reports whether quit was called.
func (t *tasks) quitting() bool { return t.quits.Load() }

// failed returns why the server has ended by itself; nil: it has not failed.
func (t *tasks) failed() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.err
}

// stopping reports whether tasks should end.
func (t *tasks) stopping() bool { return t.stopped.Load() }
