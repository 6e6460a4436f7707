package membership

import (
	"context"

	"github.com/farkv/farkv/node/rdma"
)

// Store keeps small named records that survive the death of any single memory node. Its operations
// on one record are linearizable. There are no operations that change several records. It is safe
// for concurrent use.
//
// Its implementations are Quorum, Memory, and the one over Consul in node/cluster/consul.
type Store interface {
	// Load returns a record and its version. Version 0 is that of a record that was never written.
	// The caller owns the value.
	Load(key string) (value []byte, version uint64, err error)
	// Swap replaces a record if it still has the given version. It reports false if the record has
	// another version. Versions of a record only grow. An error leaves open whether the record was
	// replaced, or will be later. The caller owns value, and may change it when Swap has returned.
	Swap(key string, version uint64, value []byte) (swapped bool, err error)
	// Look returns the record first, as Load does, unless key is "", and all records of which the
	// keys begin with prefix, sorted by key. Each record is as it was at some moment of the call.
	// They are no snapshot, since those moments may differ. But no listed record is older than
	// first: a record that was written before first's version was is seen. The values are shared:
	// no caller changes them.
	Look(key, prefix string) (first Record, all []Record, err error)
	// Await returns nil when the record may have a later version than the given one, and ctx's
	// error when ctx ends before. It may return nil in vain. It polls, with pauses: a caller that
	// loads the record after each Await, and calls Await again, does so a few times a second at
	// most.
	Await(ctx context.Context, key string, version uint64) error
}

// Record is one entry of a Store. Version 0 is that of a record that was never written.
type Record struct {
	Key     string
	Value   []byte
	Version uint64
}

// ErrUnreachable is wrapped when a Store cannot be read or written now: too few of its nodes or
// servers answer.
var ErrUnreachable = rdma.ErrUnreachable
