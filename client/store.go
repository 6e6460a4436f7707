// Package client is what a compute node links: the interfaces that each store implements, their
// errors, and DB, a handle that goroutines of an application share. Package stores opens pools; see
// the example.
package client

import (
	"errors"
	"fmt"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/telemetry"
)

// Store is one worker's view of a store. Each worker opens its own; it is not safe for concurrent
// use. Operations on single keys are linearizable, with ErrNotFound and ErrExists as part of the
// answer, unless a baseline says otherwise.
//
// Any operation may also fail with an error that wraps ErrUncertain, rdma.ErrNodeDown, ErrFull or
// ErrTooLarge. An error that wraps rdma.ErrTimeout and not ErrUncertain means that nothing was
// changed.
type Store interface {
	// Get returns the value of key, valid until the next call on this Store, or an error wrapping
	// ErrNotFound.
	Get(key []byte) ([]byte, error)
	// Insert adds a key that is not there; otherwise the error wraps ErrExists.
	Insert(key, value []byte) error
	// Update replaces the value of a key that is there; otherwise the error wraps ErrNotFound.
	Update(key, value []byte) error
	// Delete removes a key that is there; otherwise the error wraps ErrNotFound.
	Delete(key []byte) error
	// Close releases what the worker holds in the pool. The Endpoint stays open. If it fails the
	// worker may still own memory, or have a write half done: see Leave.
	Close() error
}

// Scanner is a Store with ordered keys.
type Scanner interface {
	// Scan yields up to n pairs with keys from start on, in order, until yield returns false. Key
	// and value are valid only inside yield.
	Scan(start []byte, n int, yield func(key, value []byte) bool) error
}

// Countable is a Store that counts what its protocol does.
type Countable interface {
	// Counts appends the store's own counters, named as in its paper: always the same ones in the
	// same order. They never fall.
	Counts(to []telemetry.Counter) []telemetry.Counter
}

// Errors that callers branch on.
var (
	ErrNotFound = errors.New("key not found")
	ErrExists   = errors.New("key exists")
	// ErrUncertain is wrapped when the outcome of a write is unknown: it may have taken effect, or
	// may still do so.
	ErrUncertain = errors.New("outcome unknown")
	// ErrTooLarge is wrapped when a key or value exceeds what the pool was made for.
	ErrTooLarge = errors.New("key or value too large")
	// ErrFull is rdma.ErrFull: the pool has no memory, or its index no slot, for one more pair.
	ErrFull = rdma.ErrFull
	// ErrBucketFull wraps ErrFull: the index, which does not grow, has no place for this key. It
	// may have one for another key, and more memory does not help.
	ErrBucketFull = fmt.Errorf("the bucket has no room: %w", ErrFull)
	// ErrDamaged is wrapped when an operation met bytes that no correct client can have written.
	ErrDamaged = errors.New("pool is damaged")
)
