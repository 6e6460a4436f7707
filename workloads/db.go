package workloads

import (
	"errors"
	"math/rand/v2"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/telemetry"
)

// Env is what a worker needs of the world; every rdma.Env is one.
type Env interface {
	Now() time.Duration
	Sleep(d time.Duration)
	Rand() *rand.Rand // the worker's own, derived from the run's seed
}

// AllFields stands for every field of a record.
const AllFields = -1

// Record is what an operation reads or writes.
type Record struct {
	Field  int      // the only one meant, or AllFields
	Values [][]byte // by field number; nil: not there
}

// DB is one worker's connection to a database. It is not safe for concurrent use. An operation's
// error wraps client.ErrNotFound when the record is not there.
type DB interface {
	// Read points r.Values at the fields of key that r.Field asks for (more do no harm), valid
	// until the next call.
	Read(key []byte, r *Record) error
	// Update writes the fields that r.Field names, and keeps the others.
	Update(key []byte, r *Record) error
	// Insert writes all fields. A record that is there already is replaced, as in YCSB's bindings.
	Insert(key []byte, r *Record) error
	// Delete removes a record.
	Delete(key []byte) error
	// Scan reads n records in the order of their keys, from start on, or what there is of them.
	// After each it calls yield, unless that is nil, with r.Values pointing at the record's fields.
	Scan(start []byte, n int, r *Record, yield func()) error
	// Counters are those of the verbs posted for this worker, or nil where there are none.
	Counters() *rdma.Counters
	// Close gives the connection back.
	Close() error
}

// Collector is a DB that knows what its store counts of itself, and which nodes its verbs go to.
type Collector interface {
	// Collect adds to p what was counted since it was collected last. Only the worker may call it.
	Collect(p *telemetry.Process)
}

// Collect asks a DB that is a Collector.
func Collect(db DB, p *telemetry.Process) {
	if c, ok := db.(Collector); ok {
		c.Collect(p)
	}
}

// What DBs and workers fail with, besides a store's own errors.
var (
	ErrNoScan    = errors.New("this database has no scans")
	ErrIntegrity = errors.New("a read returned another value than was written")
	ErrWindow    = errors.New("too many inserts are unfinished")
)
