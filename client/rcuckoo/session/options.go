package session

import (
	"time"

	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node/rdma"
)

// Pool lists a pool's clients, and fences them off: the part of an rdma.Fabric that repair needs.
type Pool interface {
	// Clients is asked by rdma.ListClients, as an empty list may be one that cannot be read now.
	Clients() []rdma.Client
	// RevokeLife returns when no verb that c posted can land any more. Only this life of the
	// identity is fenced off: a client that has the identity since is not.
	RevokeLife(c rdma.Client) error
}

// Options of a worker. Zero values mean defaults.
type Options struct {
	CacheBytes *int          // of the table cache (section 3.2.3), 0 for none; default 64 KiB
	Timeout    time.Duration // of an operation; default, and at most, what the pool was made for
	// Failure is the failure timer (section 4.1): a client that holds a lock and makes no progress
	// for as long is fenced off. Default 100 ms, and at most a quarter of the timeout. If the pool
	// knows that the client is dead, half of that is enough. Pools that package stores opens have
	// another default.
	Failure time.Duration
	// Ticketless: the worker tries again for a lock that it did not get, as the paper's clients do.
	Ticketless bool
	// Pool lets the worker repair what others left locked. nil: only the pool's master repairs, and
	// operations wait for it.
	Pool Pool
}

const (
	// DefaultCache is the default of Options.CacheBytes.
	DefaultCache = 64 << 10
	// defaultFailure is the default of Options.Failure. failureShare bounds it to a quarter of
	// the timeout: an operation that waits for a failed client still has time to repair and to go
	// on.
	defaultFailure = 100 * time.Millisecond
	failureShare   = 4
)

// Stats count what leaves the common case. They only grow.
type Stats struct {
	// Torn counts reads of rows that were being written.
	Torn uint64
	// Waits counts tries for a lock that another client held, and looks at its queue.
	Waits uint64
	// Repairs counts the repairs that this worker completed.
	Repairs uint64
	// Fenced counts the clients that it fenced off for repairs.
	Fenced uint64
	// Rolled counts the rows that it wrote to complete operations of other clients, or its own.
	Rolled uint64
	// Searches counts the paths that INSERTs tried after a first one had failed.
	Searches uint64
	// Divided counts the rows that it divided.
	Divided uint64
	// Paths counts the cuckoo paths that were written: element i those of i+1 rows.
	Paths [table.MaxSteps]uint64
}
