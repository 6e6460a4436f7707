package consul

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/farkv/farkv/node/membership"
)

// mostFailures is the number of failures in a row after which the pause before the next query does
// not grow any more. It is 4 paces then.
const mostFailures = 6

// Watch calls fn with the record as it is, again whenever it has another version, and when it
// cannot be read (with an error that wraps membership.ErrUnreachable; more calls follow), until ctx
// ends. It may skip versions, and always reaches the latest. fn is called by the caller's
// goroutine. Watch returns when ctx ends.
//
// It uses blocking queries, at most one a pace (1 s). So a record that changes all the time costs
// each watch one query a second, and one that does not change costs one in ten seconds. The first
// change after a rest is seen at once.
func (s *Store) Watch(ctx context.Context, key string, fn func(membership.Record, error)) {
	w := watch{Store: s, key: key, fn: fn}
	for ctx.Err() == nil {
		began := time.Now()
		err := w.turn(ctx)
		if ctx.Err() != nil {
			return
		}
		// Watches that woke up together should not query together next time.
		rest := s.agent.pace*7/8 + rand.N(s.agent.pace/4) - time.Since(began)
		if err != nil {
			fn(membership.Record{Key: key}, err)
			w.failures = min(w.failures+1, mostFailures)
			rest = s.agent.pace/16<<w.failures + rand.N(s.agent.pace/8)
		}
		sleep(ctx, rest)
	}
}

// Await implements membership.Store: it returns as soon as Consul reports a later version.
func (s *Store) Await(ctx context.Context, key string, version uint64) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	s.Watch(ctx, key, func(r membership.Record, err error) {
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
	key string
	fn  func(membership.Record, error)
	// The index that the next query waits to be exceeded; 0: it waits for nothing.
	index uint64
	// A version was seen, which was the last.
	seen    bool
	version uint64
	// Failures in a row. The pause after the first is an eighth of the pace, and doubles with each.
	failures int
}

// turn makes one query.
func (w *watch) turn(ctx context.Context) error {
	a := w.agent
	bound := a.timeout
	if w.index > 0 {
		bound += a.wait + a.wait/8 // Consul adds up to a sixteenth of the wait
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
		w.index = 0 // the next answer may come from a Consul with another history
		return a.failed(err, "watch %s", w.prefix+w.key)
	}
	// A lower index is that of a Consul that was restored. Waiting for the old one could last for
	// ever.
	w.index = max(w.index, meta.LastIndex)
	if meta.LastIndex < w.index {
		w.index = 0
	}
	r := membership.Record{Key: w.key}
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
