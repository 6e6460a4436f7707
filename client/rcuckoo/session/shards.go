package session

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/farkv/farkv/client/rcuckoo/steps"
	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node/rdma"
)

// ShardState is a worker's state in a shard. An operation that fails leaves the shard dirty, and
// goes through these states until the shard is clean again:
//
//	dirty           its verbs may land at any time, or have landed; an intent may name locks
//	dirty, given    nothing of it is in flight on any copy. Other clients may complete it, and
//	                need not fence the worker off for that.
//	clean           the redo has decided the outcome, the intent is idle, no lease is held
//
// A worker that crashes in any of them is recovered from its intent: see package recovery.
type ShardState struct {
	// Seq is the sequence of the last intent. It only grows, and goes on above that of the
	// identity's last holder.
	Seq uint64
	// Dirty: an operation failed, and it is not known what it left. No other operation begins in
	// the shard until that is settled.
	Dirty bool
	// Given: the failed operation is given up, so that others may complete it. See settle.go of
	// package recovery.
	Given bool
	// Flying are batches of failed operations with verbs that may still land: what an operation was
	// waiting for, and heartbeats that it sent meanwhile. The shard owns them until they have
	// landed.
	Flying []*rdma.Batch
	// Leased are the words of a repair that was interrupted. The worker may hold their leases.
	Leased []uint32
}

// LoadShardStates reads the state of the identity's intent in each shard. The worker's sequences go
// on above those of the identity's last holder, so that no record of that holder is taken for the
// worker's. A shard with an intent that is not idle is dirty: an operation was cut off there.
func (o *Op) LoadShardStates() error {
	b := o.EP.Batch()
	defer b.Release()
	for i := range o.Shards {
		b.Read(o.Table.IntentAt(i, o.ID), 8)
	}
	if err := o.EP.Post(b.As(steps.ReadIntents)); err != nil {
		return err
	}
	if err := o.EP.Wait(b, rdma.All, o.Each); err != nil {
		return err
	}
	for i := range o.Shards {
		op := b.Op(i)
		if errors.Is(op.Err, rdma.ErrNodeDown) {
			o.Shards[i].Dirty = true // it is read again before anything is done there
			continue
		}
		if op.Err != nil {
			return op.Err
		}
		// Close calls this, too: the worker's own sequence may be above the word that landed.
		word := le.Uint64(op.Buf)
		o.Shards[i].Seq = max(o.Shards[i].Seq, word>>1)
		o.Shards[i].Dirty = o.Shards[i].Dirty || !table.Idle(word)
	}
	return nil
}

// AwaitEnd takes over the batch with the WRITE that ends the worker's intent in a shard.
func (s *Session) AwaitEnd(b *rdma.Batch, shard int) {
	s.ending, s.endingIn, s.endingSeq = b, shard, s.Shards[shard].Seq
}

// Ended checks the WRITE that ended the last intent, once it has completed, or waits for it. If
// the WRITE was lost, other clients take the worker for one that holds locks, so the shard is
// dirty and is settled.
func (o *Op) Ended(wait bool) {
	if o.ending == nil || !o.ending.Finished() && !wait {
		return
	}
	// A batch that is released while a verb is in flight keeps its memory until the verb has
	// landed.
	failed := false
	if !o.ending.Finished() {
		err := o.EP.Wait(o.ending, rdma.All, o.Each)
		failed = err != nil && !o.ending.Finished()
	}
	failed = failed || o.ending.Err() != nil
	o.ending.Release()
	o.ending = nil
	if st := &o.Shards[o.endingIn]; failed && st.Seq == o.endingSeq { // else a later intent took its place
		st.Dirty = true
		o.DeferCleanup(o.endingIn)
	}
}

// DeferCleanup notes that an operation is over and left an intent or leases in a shard, so that
// other clients may wait for the worker. If the worker did not settle them in time, it would be
// fenced off, though it makes progress in other shards.
func (o *Op) DeferCleanup(shard int) {
	if st := &o.Shards[shard]; (st.Dirty || len(st.Leased) > 0) && !slices.Contains(o.PendingCleanup, shard) {
		o.PendingCleanup, o.NextCleanup = append(o.PendingCleanup, shard), 0
	}
}

// CleanupDue reports whether it is time to settle what earlier operations left: at once, and then
// a few times in a failure timer, as nodes may not answer. It is not due under a busy view of a
// pool with replicas: no client changes anything then, so what is left blocks none.
func (o *Op) CleanupDue() bool {
	o.Ended(false)
	return len(o.PendingCleanup) > 0 && o.EP.Now() >= o.NextCleanup && !o.waiting()
}

// ReadIntent reads a client's intent in a shard, into memory of its own.
func (o *Op) ReadIntent(shard int, c rdma.ClientID) (table.Intent, error) {
	b := o.EP.Batch()
	op := b.Read(o.Table.IntentAt(shard, c), table.IntentBytes)
	if err := o.Do(steps.ReadIntents, b); err != nil {
		return table.Intent{},
			o.Failed(shard, b, fmt.Errorf("read the intent of client %d in shard %d: %w", c, shard, err))
	}
	t := table.DecodeIntent(bytes.Clone(op.Buf), shard, c)
	b.Release()
	return t, nil
}

// EndIntent ends an intent by which no lock is held. state is the intent's, so its sequence stays.
func (o *Op) EndIntent(shard int, c rdma.ClientID, state uint64) error {
	b := o.EP.Batch()
	b.WriteWord(o.Table.IntentAt(shard, c), state|table.IdleBit)
	return o.Carry(steps.Done, shard, b, "end the intent of client %d in shard %d", c, shard)
}
