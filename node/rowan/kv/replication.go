package kv

import (
	"errors"
	"time"

	"github.com/farkv/farkv/node/cluster/rpc"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
)

// replication brings the records of a worker's writes to the logs of backups. It belongs to the
// worker and does not wait.
type replication interface {
	// reserve takes leave to append a record of n bytes at the backup of a. The error wraps
	// rdma.ErrFull when there is none now, or errAway. An append that makes room has leave when
	// others have none.
	reserve(a *appending, n int, makesRoom bool) error
	// unreserve gives the leave back, for a record that was not added.
	unreserve(a *appending, n int)
	// add adds the append of a write's record to the batch with which the write is posted, or
	// starts it otherwise. It is called once for each reserve.
	add(b *rdma.Batch, o *op, a *appending, now time.Duration) error
	// goOn advances an append that is not acknowledged, and reports whether it is now: the record
	// is in the backup's log for good. An append that failed or was late is repeated, with the same
	// record.
	goOn(o *op, a *appending, now time.Duration) (acked bool, err error)
	// step advances what belongs to no single append. The worker calls it before goOn, whenever
	// something may have happened.
	step(now time.Duration) error
	// turn is called with each committed term. From then on nothing of earlier terms is repeated.
	turn(t *term)
	// giveUp gives up an append that is not acknowledged, because the backup is dead.
	giveUp(o *op, a *appending)
}

// errAway is wrapped when a backup has not answered a question for leave. It may be slow, or dead
// and not expelled yet.
var errAway = errors.New("a backup does not answer")

var (
	_ inbound = (*rowan.Receiver)(nil)
	_ inbound = (*rowan.Lender)(nil)
)

// inbound is the logs of a node in which other servers' records arrive. It belongs to the task that
// receives.
type inbound interface {
	// Step finds segments in which nothing can land any more, frees those that were given back, and
	// gives the senders room.
	Step() error
	// Moved reports whether the last Step found that senders have made progress.
	Moved() bool
	// Next returns the next of the segments that Step found. Digest is called once for each, in
	// this order, and calls f for the entries that end in it.
	Next() (rowan.Segment, bool)
	Digest(s rowan.Segment, f func(*rowan.Entry) error) error
	// Free gives back a segment that was digested. None of the entries that end in it is needed,
	// and nothing reads it.
	Free(s rowan.Segment)
	Close() error
	// Recover calls f for the entries that an earlier receiver left, each with the segment where it
	// ends, and returns these segments. Digest is not called for them. See rowan.Receiver.
	Recover(f func(rowan.Segment, *rowan.Entry) error) ([]rowan.Segment, error)
	// Settle calls f for entries in segments that are not used yet, of each source up to a stamp up
	// to which nothing is in flight. They are not repeated later. It follows a Step, and Digest of
	// all that Next returns.
	Settle(upTo func(source uint16) uint64, f func(rowan.Segment, *rowan.Entry) error) error
	// Starving reports whether appends that make room find none.
	Starving() bool
	// Counts reports whether nothing can land once its sender was fenced off.
	Counts() bool
}

// appending is the append of one write to one backup. Each kind of replication uses its own fields.
type appending struct {
	node  int
	acked bool

	// Of rings: which of the two sources the append uses, 1 if the urgent one.
	urgent int
	// The batch with the append, which the append owns unless it is the write's own; nil: the
	// append is to be repeated.
	batch *rdma.Batch
	// Index of its op in the batch.
	index  int
	posted time.Duration
	// When it is repeated, also with calls.
	again time.Duration

	// Of writes: the entry's place, and the WRITE that takes it there.
	place    rowan.Place
	gathered *gathered

	// Of calls: its number, and the call in flight; nil: it is to be repeated.
	number uint64
	call   *rpc.Call
}
