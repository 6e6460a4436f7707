package consul

import (
	"context"
	"sync"
	"time"

	"github.com/farkv/farkv/node/membership"
)

// Mirror is a record as this process saw it last. One watch serves all callers, so that Look costs
// Consul nothing.
//
// It may be stale. So it can put off a decision, and must never make one. A candidate for the
// master's role that finds, by Since, that the master's record changed less than a lease ago need
// not ask Consul. If it finds the record old, it reads it from the Store before it revokes the
// master, and takes over by a Swap on the version that Since belongs to.
type Mirror struct {
	cancel  context.CancelFunc
	stopped chan struct{}
	// Closed by the first answer or failure.
	first chan struct{}

	// mu guards state.
	mu    sync.Mutex
	state Reflection
}

// Reflection is the state of a Mirror.
type Reflection struct {
	membership.Record
	// Since is when this process first saw this version; it was written before that. Zero: no
	// version was seen.
	Since time.Time
	// Err is why changes may be missing: Consul could not be asked. It wraps
	// membership.ErrUnreachable.
	Err error
}

// Mirror starts to watch a record. The caller closes the Mirror.
func (s *Store) Mirror(key string) *Mirror {
	ctx, cancel := context.WithCancel(context.Background())
	m := &Mirror{cancel: cancel, stopped: make(chan struct{}), first: make(chan struct{})}
	go func() {
		defer close(m.stopped)
		s.Watch(ctx, key, m.take)
	}()
	return m
}

// take is called by the watch. An error does not clear what was seen.
func (m *Mirror) take(r membership.Record, err error) {
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

// Look returns what was seen last. It waits for the first answer or failure, at most as long as a
// call takes. It may be called after Close. The value is shared: the caller must not change it.
func (m *Mirror) Look() Reflection {
	select {
	case <-m.first:
	case <-m.stopped:
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.state
}

// Close ends the watch and waits for its goroutine.
func (m *Mirror) Close() {
	m.cancel()
	<-m.stopped
}
