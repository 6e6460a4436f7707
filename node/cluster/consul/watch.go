package consul

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/farkv/farkv/node/rdma/board"
)

// mostFailures is after how many failures in a row a watch waits no longer for the next query: 4
// paces.
const mostFailures = 6

// Watch calls fn with the record as it is and again whenever it has another version, or when it
// cannot be told (the error wraps board.ErrUnreachable, and more calls follow), until ctx ends. It
// sees the latest state, not every one between. It returns when ctx ends; fn is called by one
// goroutine at a time, the caller's.
//
// It waits by blocking queries, at most one a pace (1 s), so that a record that changes all the
// time costs each watch one query a second, and one that rests one in ten seconds; a change after a
// rest is seen at once.
func (s *Store) Watch(ctx context.Context, key string, fn func(board.Record, error)) {
	w := watch{Store: s, key: key, fn: fn}
	for ctx.Err() == nil {
		began := time.Now()
		err := w.turn(ctx)
		if ctx.Err() != nil {
			return
		}
		// Watches that woke together do not come back together.
		rest := s.agent.pace*7/8 + rand.N(s.agent.pace/4) - time.Since(began)
		if err != nil {
			fn(board.Record{Key: key}, err)
			w.failures = min(w.failures+1, mostFailures)
			rest = s.agent.pace/16<<w.failures + rand.N(s.agent.pace/8)
		}
		sleep(ctx, rest)
	}
}

// Await implements board.Store: it returns as soon as Consul tells of another version.
func (s *Store) Await(ctx context.Context, key string, version uint64) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s.Watch(ctx, key, func(r board.Record, err error) {
		if err == nil && r.Version > version {
			cancel(errSeen)
		}
	})
	if err := context.Cause(ctx); err != errSeen {
		return err
	}
	return nil
}

var errSeen = errors.New("another version was seen")

// watch is the state of one Watch.
type watch struct {
	*Store
	key     string
	fn      func(board.Record, error)
	index   uint64 // that the next query waits to be passed; 0: it waits for nothing
	seen    bool
	version uint64
	// failures in a row. After the first the next query waits for an eighth of the pace, then twice as
	// long each time.
	failures int
}

// turn is one query.
func (w *watch) turn(ctx context.Context) error {
	a := w.agent
	bound := a.timeout
	if w.index > 0 {
		bound += a.wait + a.wait/8 // Consul adds up to a sixteenth
	}
	limited, cancel := context.WithTimeout(ctx, bound)
	defer cancel()
	o := consistent(limited)
	o.WaitIndex, o.WaitTime = w.index, a.wait
	p, meta, err := a.client.KV().Get(w.prefix+w.key, o)
	if err == nil {
		err = indexed(meta)
	}
	if err != nil {
		w.index = 0 // the next may be answered by a Consul with another past
		return a.failed(err, "watch %s", w.prefix+w.key)
	}
	// An index that went back belongs to a Consul that was restored: to wait for the old one could
	// take for ever.
	w.index = max(w.index, meta.LastIndex)
	if meta.LastIndex < w.index {
		w.index = 0
	}
	r := board.Record{Key: w.key}
	if p != nil {
		r = w.record(p)
	}
	if !w.seen || r.Version != w.version || w.failures > 0 {
		w.seen, w.version, w.failures = true, r.Version, 0
		w.fn(r, nil)
	}
	return nil
}

// sleep returns after d, or when ctx ends.
func sleep(ctx context.Context, d time.Duration) {
	if d <= 0 {
		return
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
