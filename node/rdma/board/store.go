package board

import (
	"context"

	"github.com/farkv/farkv/node/rdma"
)

// Store keeps small named records where no single memory node's death reaches them. What it does
// with one record is linearizable. It is safe for concurrent use.
type Store interface {
	// Load returns a record and its version; version 0: it was never written. The value is the
	// caller's.
	Load(key string) (value []byte, version uint64, err error)
	// Swap replaces a record if it still has the given version; false: it has another one. Versions
	// of a record only grow. An error leaves open whether it was replaced, or will be.
	Swap(key string, version uint64, value []byte) (swapped bool, err error)
	// Look returns a record, as Load does, unless key is "", and all records whose keys begin with
	// prefix, sorted by key. Each is as it was at some moment of the call; they are no snapshot,
	// since those moments may differ. But none of those listed is from before the first: what was
	// written before the first one was is seen with it.
	Look(key, prefix string) (first Record, all []Record, err error)
	// Await returns nil when a record may have a later version than that, and ctx's error when ctx
	// ends before. It looks from time to time: a caller that loads the record behind it, and calls
	// again, does that a few times a second at most.
	Await(ctx context.Context, key string, version uint64) error
}

// Record is one entry of a Store.
type Record struct {
	Key     string
	Value   []byte
	Version uint64
}

// ErrUnreachable is wrapped when a Store cannot be read or written now: too few of its nodes or
// servers answer.
var ErrUnreachable = rdma.ErrUnreachable
