package client

import (
	"context"
	"errors"
	"fmt"
	"math"
	"runtime"
	"sync"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/telemetry"
)

// Workers is where a DB gets its workers from. It is called by many goroutines at a time.
type Workers interface {
	// Open returns the Store of one more worker, and the Endpoint of its own that it stands on.
	Open() (Store, rdma.Endpoint, error)
	// RevokeLife fences a worker off that could not be closed: see Leave.
	RevokeLife(c rdma.Client) error
	// Close gives back what is left once the DB has closed all its workers.
	Close() error
}

// Options shape a DB. Zero values mean defaults.
type Options struct {
	Workers int // operations at a time, each with a client of the pool of its own; default 2 a CPU
	// Pool is where the DB tells what it does, so that others may watch: see Publish. nil: it tells
	// nothing, and counts nothing.
	Pool rdma.Fabric
	Name string // by which it tells of itself
}

// DB is a store for applications: safe for concurrent use, with a context a call. It owns a bounded
// set of workers, which it opens as they are needed. The one used last is used again first, so that
// an application with few operations at a time keeps to few workers, whose caches stay warm. An
// operation that needs a worker more than the pool has places for ends in an error wrapping
// ErrFull; one that was given up, since a write of it has no known outcome, keeps its place until
// it has left, beside the operations.
//
// The context bounds the wait for a worker. An operation that has begun is bounded by the store's
// own timeout instead, and its answer is returned even when the context ends meanwhile: a verb that
// was posted may still land, so an error that says "cancelled" would leave open what happened. The
// errors are those of Store; ErrUncertain is the only answer to a write that leaves its outcome
// open.
type DB struct {
	workers Workers
	door    Door
	turns   chan struct{} // one for each operation in progress
	closing chan struct{} // closed when Close is called

	mu   sync.Mutex
	idle []*worker // the one used last is at the end
	book book

	once   sync.Once
	closed error // what Close returns
}

// NewDB returns a DB that owns w from now on; when it fails, w is closed. It opens one worker, so
// that a pool that cannot be worked with is an error here.
func NewDB(w Workers, o Options) (*DB, error) {
	if o.Workers <= 0 {
		o.Workers = 2 * runtime.GOMAXPROCS(0)
	}
	store, ep, err := w.Open()
	if err != nil {
		return nil, errors.Join(err, w.Close())
	}
	db := &DB{workers: w, turns: make(chan struct{}, o.Workers), closing: make(chan struct{}), book: newBook()}
	db.mu.Lock()
	defer db.mu.Unlock()
	db.book.publisher = Publish(o.Pool, o.Name, db)
	first := db.hire(store, ep)
	db.book.joined(first)
	db.idle = append(db.idle, first)
	return db, nil
}

// hire returns a worker with a store and an endpoint that were opened for it.
func (db *DB) hire(s Store, ep rdma.Endpoint) *worker {
	w := &worker{store: s, ep: ep, count: new(rdma.Counters), skip: math.MaxInt}
	if db.book.publisher != nil {
		w.meter, w.count, w.skip = NewMeter(s, ep), ep.Counters(), 0
		w.trips = w.count.Trips
	}
	return w
}

// Get returns a copy of the value of key, or an error wrapping ErrNotFound.
func (db *DB) Get(ctx context.Context, key []byte) ([]byte, error) {
	var value []byte
	err := db.do(ctx, func(s Store) (telemetry.Kind, error) {
		v, err := s.Get(key)
		if err == nil {
			value = append(make([]byte, 0, len(v)), v...)
		}
		return telemetry.Get, err
	})
	return value, err
}

// Insert adds a key that is not there; otherwise the error wraps ErrExists.
func (db *DB) Insert(ctx context.Context, key, value []byte) error {
	return db.do(ctx, func(s Store) (telemetry.Kind, error) { return telemetry.Insert, s.Insert(key, value) })
}

// Update replaces the value of a key that is there; otherwise the error wraps ErrNotFound.
func (db *DB) Update(ctx context.Context, key, value []byte) error {
	return db.do(ctx, func(s Store) (telemetry.Kind, error) { return telemetry.Update, s.Update(key, value) })
}

// Delete removes a key that is there; otherwise the error wraps ErrNotFound.
func (db *DB) Delete(ctx context.Context, key []byte) error {
	return db.do(ctx, func(s Store) (telemetry.Kind, error) { return telemetry.Delete, s.Delete(key) })
}

// putTries bounds the turns of Put. Each that fails takes another client that inserts or deletes
// the key just then.
const putTries = 64

// Put sets the value of key, whether it is there or not. When others insert and delete the key all
// the time it gives up with an error wrapping rdma.ErrTimeout, having changed nothing. Between two
// of its turns nothing is in flight, and the end of the context ends it there.
func (db *DB) Put(ctx context.Context, key, value []byte) error {
	return db.do(ctx, func(s Store) (telemetry.Kind, error) {
		for range putTries {
			if err := s.Update(key, value); !errors.Is(err, ErrNotFound) {
				return telemetry.Update, err
			}
			if err := s.Insert(key, value); !errors.Is(err, ErrExists) {
				return telemetry.Insert, err
			}
			if err := ctx.Err(); err != nil {
				return telemetry.Insert, err
			}
		}
		return telemetry.Insert, fmt.Errorf("put %q: the key came and went %d times: %w", key, putTries,
			rdma.ErrTimeout)
	})
}

// Close waits for the operations in progress, and closes the workers and what they came from.
// Operations that begin later, or still wait for a worker, end in an error wrapping rdma.ErrClosed.
// Further calls return what the first did.
func (db *DB) Close() error {
	db.once.Do(func() {
		close(db.closing)
		for range cap(db.turns) {
			db.turns <- struct{}{} // never given back: no operation begins any more
		}
		db.book.publisher.Close()
		errs := make([]error, len(db.idle))
		var all sync.WaitGroup // at once: while nodes are out of reach each takes seconds
		for i, w := range db.idle {
			all.Go(func() { errs[i] = db.door.Leave(w.store, w.ep, db.workers) })
		}
		all.Wait()
		db.idle = nil
		db.closed = errors.Join(append(errs, db.door.Close(), db.workers.Close())...)
	})
	return db.closed
}

var errClosed = fmt.Errorf("use the database: %w", rdma.ErrClosed)

// do runs f with a worker. A worker that was idle may have been fenced off meanwhile, and finds out
// by an operation that has no effect: another worker carries that out. This ends, since such
// workers are dismissed, and a new one is the last.
func (db *DB) do(ctx context.Context, f func(Store) (telemetry.Kind, error)) error {
	if err := db.enter(ctx); err != nil {
		return err
	}
	defer func() { <-db.turns }()
	for {
		w, opened, err := db.worker(ctx)
		if err != nil {
			return err
		}
		w.begin()
		kind, err := f(w.store)
		uncertain := errors.Is(err, ErrUncertain)
		if !uncertain && !errors.Is(err, rdma.ErrAccess) && !errors.Is(err, rdma.ErrClosed) {
			w.end(kind, err)
			db.mu.Lock()
			db.book.gave(w)
			db.idle = append(db.idle, w)
			db.mu.Unlock()
			return err
		}
		again := !opened && !uncertain && errors.Is(err, rdma.ErrRevoked) && ctx.Err() == nil
		if !again {
			w.end(kind, err)
		}
		db.mu.Lock()
		db.book.left(w)
		db.mu.Unlock()
		// Its connection is down, or others may wait for what it left: either it can be closed, or it is
		// recovered now.
		db.door.Dismiss(w.store, w.ep, db.workers)
		if !again {
			return err
		}
	}
}

// enter waits for a turn. A caller that has a turn finds an idle worker or may open another one:
// there are no more workers than turns.
func (db *DB) enter(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	select {
	case <-db.closing:
		return errClosed
	case <-ctx.Done():
		return ctx.Err()
	case db.turns <- struct{}{}:
	}
	select {
	case <-db.closing:
		<-db.turns
		return errClosed
	default:
		return nil
	}
}

// worker returns an idle worker, or opens one.
func (db *DB) worker(ctx context.Context) (w *worker, opened bool, err error) {
	db.mu.Lock()
	if n := len(db.idle); n > 0 {
		w = db.idle[n-1]
		db.idle = db.idle[:n-1]
		db.book.took(w)
		db.mu.Unlock()
		return w, false, nil
	}
	db.mu.Unlock()
	var store Store
	var ep rdma.Endpoint
	err = Reopen(ctx, func() error {
		store, ep, err = db.workers.Open()
		return err
	})
	if err != nil {
		return nil, true, err
	}
	w = db.hire(store, ep)
	db.mu.Lock()
	defer db.mu.Unlock()
	db.book.joined(w)
	db.book.took(w)
	return w, true, nil
}
