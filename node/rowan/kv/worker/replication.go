package worker

import (
	"errors"
	"time"

	"github.com/farkv/farkv/node/cluster/rpc"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/node/rowan/kv/state"
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
	turn(t *state.Term)
	// giveUp gives up an append that is not acknowledged, because the backup is dead.
	giveUp(o *op, a *appending)
}

// errAway is wrapped when a backup has not answered a question for leave. It may be slow, or dead
// and not expelled yet.
var errAway = errors.New("a backup does not answer")

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

// newReplication returns the replication of a worker, which has its peer already.
func (w *Worker) newReplication() replication {
	switch w.s.Opt.Kind {
	case kv.RPC:
		return newCalls(w)
	case kv.RWrite, kv.Batch, kv.Share:
		return newWrites(w)
	}
	return newRings(w)
}
