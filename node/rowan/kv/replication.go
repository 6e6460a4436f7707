package kv

import (
	"errors"
	"time"

	"github.com/farkv/farkv/node/cluster/rpc"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
)

// replication is how the records of a worker's writes come to the logs of backups.
type replication interface {
	// reserve takes leave to append a record of n bytes at a backup, which is in a. It does not wait.
	// The error wraps rdma.ErrFull when there is none now, or errAway. What makes room has leave when
	// others have none.
	reserve(a *appending, n int, makesRoom bool) error
	// unreserve gives it back: nothing was added.
	unreserve(a *appending, n int)
	// add adds the append of a write's record to the batch that the write is posted with.
	add(b *rdma.Batch, o *op, a *appending, now time.Duration) error
	// goOn goes on with an append that is not acknowledged, and reports whether it is now: whether the
	// record is in the backup's log for good. What failed, or was late, is repeated; the record is the
	// same.
	goOn(o *op, a *appending, now time.Duration) (acked bool, err error)
	// step goes on with what is of no one append. The worker calls it whenever something may have
	// happened, ahead of goOn.
	step(now time.Duration) error
	// turn is called with each term that is committed, in which nothing of earlier ones is repeated.
	turn(t *term)
	// giveUp gives an append up that is not acknowledged: the backup is dead.
	giveUp(o *op, a *appending)
}

// errAway is wrapped when a backup has not said whether it has leave: it may be behind, or about to
// be found dead.
var errAway = errors.New("a backup does not answer")

var (
	_ inbound = (*rowan.Receiver)(nil)
	_ inbound = (*rowan.Lender)(nil)
)

// inbound is the logs of a node in which the records of other servers' writes come. It belongs to
// the task that receives.
type inbound interface {
	// Step goes on: it finds segments in which nothing can land any more, frees those given back, and
	// gives the senders room.
	Step() error
	// Moved reports whether the last Step found that senders had gone on.
	Moved() bool
	// Next returns the next of these segments. Digest is called once for each, in this order, and
	// calls f for the entries that end in it.
	Next() (rowan.Segment, bool)
	Digest(s rowan.Segment, f func(*rowan.Entry) error) error
	// Free gives a segment back that was digested: none of the entries that end in it is needed, and
	// nothing reads it.
	Free(s rowan.Segment)
	Close() error
	// Recover calls f for the entries in segments of an earlier receiver, each where it ends, and
	// returns these, of which Digest is not called: see rowan.Receiver.
	Recover(f func(rowan.Segment, *rowan.Entry) error) ([]rowan.Segment, error)
	// Settle calls f for entries in segments that are not used yet, of each source up to a stamp of
	// which nothing is in flight: they do not come again. It follows a Step, and Digest of all that
	// Next returns.
	Settle(upTo func(source uint16) uint64, f func(rowan.Segment, *rowan.Entry) error) error
	// Starving reports whether what makes room has none.
	Starving() bool
	// Counts reports whether nothing lands once its sender was fenced off.
	Counts() bool
}

// appending is the append of a write to a backup.
type appending struct {
	node  int
	acked bool

	// Of rings.
	urgent int
	batch  *rdma.Batch // nil: it is to be repeated
	index  int         // of its op
	posted time.Duration
	again  time.Duration // when it is repeated; of calls, too

	// Of writes.
	place    rowan.Place
	gathered *gathered

	// Of calls.
	number uint64
	call   *rpc.Call // nil: it is to be repeated
}
