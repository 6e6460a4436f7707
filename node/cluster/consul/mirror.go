package consul

import (
	"context"
	"sync"
	"time"

	"github.com/farkv/farkv/node/rdma/board"
)

// Mirror is a record as this process saw it last. One watch keeps it for all callers, so that a
// look costs Consul nothing.
//
// It may be stale. So it can put off a decision, never take one: a candidate for the master's role
// that finds the master's record changed less than a lease ago, by Since, need not ask Consul. One
// that finds it old reads it from the Store before it revokes the master, and takes over by Swap on
// the version that Since belongs to.
type Mirror struct {
	cancel  context.CancelFunc
	stopped chan struct{}
	first   chan struct{} // closed when there is something to tell

	mu    sync.Mutex
	state Reflection
}

// Reflection is what a Mirror shows.
type Reflection struct {
	board.Record
	// Since is when this version was first here, after it had come: it was written earlier. Zero: none
	// came.
	Since time.Time
	// Err tells why changes may be missing: Consul could not be asked. It wraps board.ErrUnreachable.
	Err error
}

// Mirror begins to watch a record. The caller closes it.
func (s *Store) Mirror(key string) *Mirror {
	ctx, cancel := context.WithCancel(context.Background())
	m := &Mirror{cancel: cancel, stopped: make(chan struct{}), first: make(chan struct{})}
	go func() {
		defer close(m.stopped)
		s.Watch(ctx, key, m.take)
	}()
	return m
}

func (m *Mirror) take(r board.Record, err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.state.Err = err
	if err == nil && (m.state.Since.IsZero() || r.Version != m.state.Version) {
		m.state.Record, m.state.Since = r, time.Now()
	}
	select {
	case <-m.first:
	default:
		close(m.first)
	}
}

// Look returns what was seen last. It waits for the first answer, or failure, at most as long as a
// call takes; after Close what was seen stays. The value is shared: it must not be changed.
func (m *Mirror) Look() Reflection {
	select {
	case <-m.first:
	case <-m.stopped:
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state
}

// Close ends the watch and waits for that.
func (m *Mirror) Close() {
	m.cancel()
	<-m.stopped
}
