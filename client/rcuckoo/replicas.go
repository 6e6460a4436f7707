package rcuckoo

import (
	"fmt"
	"slices"

	"github.com/farkv/farkv/client/rcuckoo/session"
	"github.com/farkv/farkv/client/rcuckoo/steps"
	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node/rdma"
)

// Clients replicate, which is beyond the paper: each shard has copies on several nodes, so that
// no data is lost when a node dies.
//
// One copy of a shard leads. Reads, claims and all that belongs to locks use the leader alone,
// and cost what they cost without replicas. The other copies, its backups, have the rows, redos
// and contents of extents. The pool's view decides which copy leads: the one that has been in it
// longest, and of several such copies the first. So the leader changes only when its node dies,
// and a copy that leads goes on leading as long as its node lives. All clients agree on the
// leader, since no verb of an epoch lands in the next one.
//
// A change takes one trip more:
//
//	1. on the leader: intent, lock, rows, as without backups; the value on all copies
//	2. on each backup, in this order: redo, rows
//	3. on the leader, after all of 2 has completed: redo, rows, mark, release
//
// What is relied on:
//
//	C1  On each copy a redo is whole before anything of its rows is written there.
//	C2  What a reader can see, at the leader, is whole on all backups.
//	C3  Locks are released when all copies have all rows. So the next change finds equal rows on
//	    all copies, and no WRITE of the change before can land behind its own.
//	C4  An operation has begun when its redo is whole on some copy in the view. A client that
//	    completes it writes that redo to each copy, before the rows (C1), and to the leader
//	    last. Later all clients look for the operation's outcome there.
//	C5  Under a busy view no client changes anything, or reads a shard that another copy led
//	    before.
//
// What a crash leaves: between 2 and 3, copies that differ. Repair looks for the redo on all
// copies. A copy that does not answer, and is in the view, may have the only whole redo: nothing
// is decided until it answers, or the view says that it is gone. For the death of a leader's node
// see takeover.go of package recovery; for how a spare takes a place, restore.go of package
// recovery.

// applyView makes a view the worker's. In a shard that another copy leads now, the worker owns
// nothing any more: it forgets its extents, leases and what it knows of growth, and the shard is
// dirty. See takeover.go of package recovery.
func (s *Store) applyView(v *rdma.View) {
	before, epoch := slices.Clone(s.session.Table.Leads), s.session.View.Epoch
	s.session.Table.ApplyView(v)
	for shard, lead := range s.session.Table.Leads {
		if lead == before[shard] { // the leader goes on, and so does all that the worker has there
			continue
		}
		s.session.TakeoverPending[shard] = true
		st := &s.session.Shards[shard]
		// Flying stays: settling the shard waits for these batches, and releases them.
		st.Dirty, st.Given, st.Leased = true, false, nil
		s.extents.Forget(shard)
		s.levels.Forget(shard)
		if s.takenIn == shard {
			// The operation at work takes another extent when it begins again.
			s.taken = table.Ref{}
		}
	}
	if !v.Busy { // a view becomes idle only when all takeovers are complete
		clear(s.session.TakeoverPending)
	}
	if s.session.Table.Replicas > 1 && v.Epoch != epoch {
		s.detector.Restart() // no client made progress while the view changed, so the timers start again
	}
}

// writeBackups carries out changes on all backups, and returns when they are whole there: trip 2.
// If the batch fails, the redo may be whole on some of them: then the operation has begun (C4).
func (s *Store) writeBackups(o *session.Op, changes []table.Change, freed table.Ref) error {
	l := s.locks
	backups := o.Table.Backups(l.Shard)
	if len(backups) == 0 {
		return nil
	}
	b := o.EP.Batch()
	s.addChanges(o, b, changes, freed, backups)
	if err := o.Do(steps.WriteBackups, b); err != nil {
		return l.Lost(o, b, fmt.Errorf("write %d rows of shard %d to its backups: %w", len(changes), l.Shard, err))
	}
	b.Release()
	return nil
}
