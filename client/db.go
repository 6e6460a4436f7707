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

// Workers is the source of a DB's workers. Several goroutines call it at a time.
type Workers interface {
	// Open returns the Store of one more worker, and the Endpoint that this Store alone uses.
	Open() (Store, rdma.Endpoint, error)
	// RevokeLife fences off a worker that could not be closed: see Leave.
	RevokeLife(c rdma.Client) error
	// Close releases what is left after the DB has closed all its workers. It is called once, when
	// no other method is running and none will be called.
	Close() error
}

// Options parameterize a DB. Zero values mean defaults.
type Options struct {
	// Workers bounds the operations at a time; each has a client of the pool of its own. The
	// default is 2 a CPU.
	Workers int
	// Pool is where the DB publishes what it does: see Publish. nil: it publishes nothing, and
	// counts nothing. It must stay open until the DB calls Workers.Close, which may close it.
	Pool rdma.Fabric
	// Name is the name by which it publishes.
	Name string
}

// DB is a store for applications. It is safe for concurrent use, and each call has a context. It
// owns a bounded set of workers, which it opens as they are needed. The one used last is used again
// first. So an application with few operations at a time uses few workers, and their caches stay
// warm. An operation that needs one worker more than the pool has places for ends in an error that
// wraps ErrFull. A worker with a write of unknown outcome is given up: it keeps its place in the
// pool until it has left, and does not count against Options.Workers.
//
// The context bounds the wait for a worker. Once an operation has begun it is bounded by the
// store's own timeout, and its answer is returned even if the context ends meanwhile. A verb that
// was posted may still land, so an error that says "canceled" would leave open what happened. The
// errors are those of Store. ErrUncertain is the only error of a write that leaves its outcome
// open.
type DB struct {
	workers Workers
	door    Reaper
	// Holds one element for each operation in progress, also while that waits for a worker to open.
	turns chan struct{}
	// Closed by Close.
	closing chan struct{}

	// mu guards idle and book. No verb is posted and nothing is waited for under it.
	mu sync.Mutex
	// Workers without an operation, and with nothing in flight; the one used last is at the end.
	// Between its removal from the list and its return a worker belongs to one operation, and is
	// used without the mutex.
	idle []*worker
	book book

	once   sync.Once
	closed error // the result of Close
}

// NewDB returns a DB that owns w. If it fails it closes w. It opens one worker, so that it fails if
// no work is possible in the pool.
func NewDB(w Workers, o Options) (*DB, error) {
	if o.Workers <= 0 {
		o.Workers = 2 * runtime.GOMAXPROCS(0)
	}
	store, ep, err := w.Open()
	if err != nil {
		return nil, errors.Join(err, w.Close())
	}
	db := &DB{workers: w, turns: make(chan struct{}, o.Workers), closing: make(chan struct{}), book: newBook()}
	// Publish starts a goroutine that calls Tick and Tell, maybe before the first worker is there.
	db.mu.Lock()
	defer db.mu.Unlock()
	db.book.publisher = Publish(o.Pool, o.Name, db)
	first := db.hire(store, ep)
	db.book.joined(first)
	db.idle = append(db.idle, first)
	return db, nil
}

// hire returns the worker for a store and an endpoint that were opened for it. What opening the
// store took counts for no operation.
func (db *DB) hire(s Store, ep rdma.Endpoint) *worker {
	w := &worker{store: s, ep: ep, count: new(rdma.Counters), skip: math.MaxInt}
	if db.book.publisher != nil {
		w.meter, w.count, w.skip = NewMeter(s, ep), ep.Counters(), 0
		w.trips = w.count.Trips
	}
	return w
}

// Get returns a copy of the value of key, or an error wrapping ErrNotFound. The copy is the
// caller's: the store's own value lives until the worker's next operation.
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

// putTries bounds the attempts of Put. Each one fails only if another client inserts or deletes the
// key at that moment.
const putTries = 64

// Put sets the value of key, whether or not the key exists. If other clients insert and delete the
// key all the time it gives up with an error that wraps rdma.ErrTimeout, and has changed nothing.
// Between two attempts nothing is in flight, and the end of the context ends it there. An attempt
// that ends with another error is the answer of Put: it is never repeated behind ErrUncertain.
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

// Close waits for the operations in progress, and closes the workers and their source. Operations
// that begin later, or that are still waiting for a worker, end in an error that wraps
// rdma.ErrClosed. Further calls return the same as the first.
func (db *DB) Close() error {
	db.once.Do(func() {
		close(db.closing)
		for range cap(db.turns) {
			db.turns <- struct{}{} // never taken back: no operation begins any more
		}
		// The publisher is the last other user of idle and book: the mutex is not needed below.
		db.book.publisher.Close()
		errs := make([]error, len(db.idle))
		var all sync.WaitGroup // concurrently: each takes seconds while nodes are unreachable
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

// do runs f with a worker. A worker that was idle may have been fenced off meanwhile. It finds that
// out by an operation without effect, and another worker repeats the operation. This ends: such
// workers are closed, and a worker that was just opened is the last one tried.
//
// A worker goes back to the list only if its operation is over for certain and its connection is
// up. ErrAccess and ErrClosed say that the connection is down, and behind ErrUncertain a verb may
// be in flight that still lands: such a worker leaves. See Leave for what becomes of its identity.
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
		// Either its connection is down, or other clients may wait for what it left. Leaving closes
		// it, or fences it off so that it is recovered at once.
		db.door.CloseAsync(w.store, w.ep, db.workers)
		if !again {
			return err
		}
	}
}

// enter waits for a turn. With a turn a caller finds an idle worker or may open one, since there
// are at most as many workers as turns.
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
	// A select with several ready cases picks any: the turn may have come after Close.
	select {
	case <-db.closing:
		<-db.turns
		return errClosed
	default:
		return nil
	}
}

// worker returns an idle worker, or opens one. The caller has a turn. A worker that is opened
// counts against the pool's places beside those that are leaving.
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
