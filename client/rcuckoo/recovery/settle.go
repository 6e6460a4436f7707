package recovery

import (
	"errors"
	"fmt"
	"slices"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/rcuckoo/locks"
	"github.com/farkv/farkv/client/rcuckoo/session"
	"github.com/farkv/farkv/client/rcuckoo/steps"
	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node/rdma"
)

// An operation may fail before its end: a node does not answer, or the pool's view changes and
// fences off what was in flight. Then the worker's own intent stays as it is, and the shard is
// dirty. The worker repairs what it left, as other clients would (see repair.go), before any
// other operation in the shard. It need not be fenced off: it waits for all batches that are in
// flight, as a later verb may pass a CAS, and WRITEs to one node land in order. Then the redo
// decides the outcome: if it is whole the operation took effect, else it did not begin.

// Settler settles what the worker's own operations left when they failed.
//
// What is left is in the shards' states (session.ShardState), and in the pool in the worker's
// intents and leases.
type Settler struct {
	detector *locks.Detector
	repairer *Repairer
}

// NewSettler returns a settler. The detector gives up by it what earlier operations left, before
// it asks the pool.
func NewSettler(d *locks.Detector, r *Repairer) *Settler {
	e := &Settler{d, r}
	d.GiveUp = e.abandonPending
	return e
}

// RunCleanup settles what earlier operations left, if it is due. The worker may have no other
// intent: it waits for nodes and repairs here, and would not send heartbeats for that intent.
// What cannot be settled stays pending.
func (e *Settler) RunCleanup(o *session.Op) {
	if !o.CleanupDue() {
		return
	}
	// First all shards are given up, as settling one may take long, and others wait meanwhile.
	e.abandonPending(o)
	o = o.Briefly()
	for _, shard := range slices.Clone(o.PendingCleanup) {
		if e.Settled(o, shard) == nil {
			o.PendingCleanup = slices.DeleteFunc(o.PendingCleanup, func(other int) bool { return other == shard })
		}
	}
	o.NextCleanup = o.EP.Now() + o.Opt.Failure/session.LookShares
}

// abandonPending gives up what earlier operations left, in all shards, so that other clients need
// not wait while the worker settles one shard after the other. A shard where that fails stays
// pending, and is tried again.
func (e *Settler) abandonPending(o *session.Op) {
	if !o.CleanupDue() {
		return
	}
	o = o.Briefly()
	for _, shard := range o.PendingCleanup {
		if st := &o.Shards[shard]; st.Dirty && !st.Given {
			_, _ = e.abandon(o, shard)
		}
	}
}

// Outcome settles an operation that failed, and so decides its outcome. sent: it may have written
// rows. done: it took effect. again: it did not, and may begin again. Neither: the error is the
// operation's result. It wraps client.ErrUncertain only if rows may have been written and the shard
// cannot be settled in time.
//
// An answer such as client.ErrNotFound stands: the operation has released its locks. Without rows
// written the shard is settled all the same if an intent may have landed, as other clients would
// wait for it. It has not taken effect then, even if a redo is whole: that is of rows which the
// operation has divided on its way, and a division is no change that a reader sees.
func (e *Settler) Outcome(o *session.Op, shard int, sent bool, err error) (done, again bool, _ error) {
	switch {
	case errors.Is(err, session.ErrAgain):
		return false, true, err
	case errors.Is(err, client.ErrNotFound), errors.Is(err, client.ErrExists), errors.Is(err, client.ErrFull):
		return false, false, err // the operation itself has written no row
	case !sent && !o.Shards[shard].Dirty:
		return false, o.Retryable(shard, err), err
	}
	// With or without rows written: an intent may have landed, and other clients may wait for it.
	failed := err
	for first := true; (first || o.Left() > 0) && o.Retryable(shard, failed); first = false {
		var begun bool
		if begun, failed = e.settle(o, shard); failed == nil {
			// The error counts only if no time is left.
			return begun && sent, o.Left() > 0, fmt.Errorf("write not applied: %w: %w", rdma.ErrTimeout, err)
		}
	}
	if sent {
		return false, false, fmt.Errorf("%w: %w", client.ErrUncertain, err)
	}
	switch { // nothing was changed
	case o.Left() == 0 && !errors.Is(err, rdma.ErrTimeout):
		err = fmt.Errorf("%w: %w", errLate, err)
	case errors.Is(failed, rdma.ErrTimeout) && !errors.Is(err, rdma.ErrTimeout):
		err = fmt.Errorf("%w: %w", failed, err)
	}
	return false, false, err
}

// errLate is the error of an operation that changed nothing, and could not be settled in its time.
var errLate = fmt.Errorf("it could not be settled: %w", rdma.ErrTimeout)

// Settled returns when nothing of an earlier operation is left in a shard, so that a new one may
// begin there.
func (e *Settler) Settled(o *session.Op, shard int) error {
	st := &o.Shards[shard]
	if err := o.AwaitIdleView(); err != nil {
		return err
	}
	if !st.Dirty && len(st.Leased) == 0 && len(st.Flying) == 0 {
		return nil
	}
	// The outcome of that operation was reported as uncertain, or no caller waits for it.
	if _, err := e.settle(o, shard); err != nil {
		return fmt.Errorf("settle what an earlier operation left in shard %d: %w", shard, err)
	}
	return nil
}

// settle completes the worker's own operation in a shard, or makes sure that it never begins.
// begun: it took effect.
func (e *Settler) settle(o *session.Op, shard int) (begun bool, err error) {
	if err := o.AwaitIdleView(); err != nil {
		return false, err
	}
	err = o.Repeat(func() error {
		e.abandonPending(o)
		begun, err = e.settleOnce(o, shard)
		return err
	})
	return begun, err
}

// settleOnce is one try of settle. First no verb of the operation may land any more (abandon).
// Then the words that the intent names, and those of an interrupted repair, are repaired. At last
// the redo says whether the operation had begun, if the intent has its sequence. If not, not even
// the intent landed, and so no redo behind it.
func (e *Settler) settleOnce(o *session.Op, shard int) (begun bool, err error) {
	st := &o.Shards[shard]
	own, err := e.abandon(o, shard)
	if err != nil {
		return false, err
	}
	st.Seq = max(st.Seq, own.State>>1) // the intent's may be greater: the shard may have had no leader at open
	words := slices.Clone(st.Leased)
	if !table.Idle(own.State) && !own.Torn {
		words = own.AddWords(words)
	}
	// The worker is a suspect of its own repair. If another client has repaired the words, there
	// is nothing left to do.
	if len(words) > 0 {
		err = e.repairer.Repair(o, shard, words)
	}
	// The leader has the redo if any copy had: repair writes the leader's copy, too (C4).
	if err == nil && own.State>>1 == st.Seq {
		_, _, begun, err = ReadRedo(o, shard, o.Table.Leads[shard], o.ID, st.Seq)
	}
	if err != nil {
		return false, err
	}
	st.Dirty, st.Given, st.Leased = false, false, st.Leased[:0]
	return begun, nil
}

// abandon waits until nothing of the worker's own operation in a shard is in flight, and gives
// the operation up, so that other clients may complete it. The error wraps rdma.ErrTimeout while
// verbs are in flight: they may still land.
func (e *Settler) abandon(o *session.Op, shard int) (own table.Intent, err error) {
	st := &o.Shards[shard]
	for len(st.Flying) > 0 {
		b := st.Flying[0]
		if err := o.EP.Wait(b, rdma.All, o.Each); err != nil && !b.Finished() {
			return own, fmt.Errorf("verbs are in flight: %w", err)
		}
		b.Release()
		st.Flying = slices.Delete(st.Flying, 0, 1)
	}
	// WRITEs of the worker to the leader land ahead of this READ, so the intent is as it stays.
	own, err = o.ReadIntent(shard, o.ID)
	switch {
	case err != nil, table.Idle(own.State):
	case own.Torn: // no lock was taken (I2), and nothing of the WRITE lands any more
		err = o.EndIntent(shard, o.ID, own.State)
	default:
		if own.Heartbeat != table.GivenUp { // else all has landed before
			err = e.landed(o, shard)
		}
		if err == nil {
			err = e.giveUp(o, shard)
		}
	}
	st.Given = err == nil
	return own, err
}

// giveUp writes the heartbeat by which other clients may complete the worker's own operation. No
// verb of the operation may be in flight on any copy. From then on another client may have the
// leases at any time, so the worker writes no row of the operation without them.
func (e *Settler) giveUp(o *session.Op, shard int) error {
	b := o.EP.Batch()
	b.WriteWord(o.Table.IntentAt(shard, o.ID).Add(table.IntentHeartbeat), table.GivenUp)
	return o.Carry(steps.GiveUp, shard, b, "give the worker's own operation in shard %d up", shard)
}

// AwaitRepair waits until a lock word is repaired, or repairs it. The worker holds nothing and has
// no intent meanwhile.
func (e *Settler) AwaitRepair(o *session.Op, shard int, word uint32) error {
	for r := o.Pace; ; {
		if o.CleanupDue() || o.Shards[shard].Dirty { // others may wait for the worker's own intent
			return session.ErrAgain
		}
		stuck, err := e.detector.Stuck(o, shard, word)
		switch {
		case err != nil:
			return err
		case stuck:
			return e.repairer.Repair(o, shard, []uint32{word})
		}
		b := o.EP.Batch()
		op := b.Read(o.Table.LockAt(shard, int(word)), 8)
		if err := o.Do(steps.Lock, b); err != nil {
			return o.Failed(shard, b, fmt.Errorf("read lock word %d of shard %d: %w", word, shard, err))
		}
		bits := le.Uint64(op.Buf)
		b.Release()
		// Without the repair bit the operation may begin again: its next try meets whatever else
		// is there.
		switch {
		case bits&table.LockRepair == 0:
			return nil
		case !r.Again():
			return session.ErrWaited
		}
	}
}

// landed returns when no verb that the worker has posted to backups can land any more: a READ to
// each of them has completed behind those verbs. It sends heartbeats meanwhile.
func (e *Settler) landed(o *session.Op, shard int) error {
	if len(o.Table.Backups(shard)) == 0 {
		return nil
	}
	o = o.WithHeartbeat(func(o *session.Op) error { return o.SendHeartbeat(shard) })
	b := o.EP.Batch()
	o.AddHeartbeat(b, shard)
	for _, at := range o.Table.Backups(shard) {
		// Any READ would do: it is not the content that counts.
		b.Read(rdma.At(at.Node, o.Table.Areas.Redos.Of(at.Index)), 8)
	}
	return o.Carry(steps.GiveUp, shard, b, "wait for verbs to the backups of shard %d", shard)
}
