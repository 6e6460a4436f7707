// Package client is what a compute node links: the interfaces that every store implements, the
// errors that they answer with, and DB, a handle that applications share between goroutines.
// Package stores opens pools; see the example.
package client

import (
	"errors"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/telemetry"
)

// Store is one worker's view of a store; workers open their own. It is not safe for concurrent use.
// Operations on single keys are linearizable, with ErrNotFound and ErrExists as part of the answer,
// unless a baseline says otherwise.
//
// Any operation may also fail with an error wrapping ErrUncertain, rdma.ErrNodeDown, ErrFull or
// ErrTooLarge. One that wraps rdma.ErrTimeout and not ErrUncertain gave up without having changed
// anything.
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
	// Close gives back what the worker holds in the pool. The Endpoint stays open.
	Close() error
}

// Scanner is a Store whose keys are ordered.
type Scanner interface {
	// Scan yields up to n pairs with keys from start on, in order, until yield returns false. Key and
	// value are valid only inside yield.
	Scan(start []byte, n int, yield func(key, value []byte) bool) error
}

// Countable is a Store that counts what its protocol does.
type Countable interface {
	// Counts appends the store's own counters, named as in its paper: always the same ones in the same
	// order. They only grow.
	Counts(to []telemetry.Counter) []telemetry.Counter
}

// What callers branch on.
var (
	ErrNotFound = errors.New("key not found")
	ErrExists   = errors.New("key exists")
	// ErrUncertain ends a write whose outcome cannot be known: it may have taken effect, or may still
	// do so.
	ErrUncertain = errors.New("outcome unknown")
	// ErrTooLarge ends an operation whose key or value exceeds what the pool was made for.
	ErrTooLarge = errors.New("key or value too large")
	// ErrFull is rdma.ErrFull: the pool has no memory, or its index no place, for one more pair.
	ErrFull = rdma.ErrFull
	// ErrDamaged ends an operation that met bytes which no correct client can have written.
	ErrDamaged = errors.New("pool is damaged")
)
