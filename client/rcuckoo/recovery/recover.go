package recovery

import (
	"fmt"

	"github.com/farkv/farkv/client/rcuckoo/session"
	"github.com/farkv/farkv/client/rcuckoo/steps"
	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node/rdma"
)

// Recover is one try to recover a client in a shard: it repairs all words that the client's
// intent names, and those of its leases, and makes sure that its intent is idle then. The error
// wraps ErrAgain when another try is needed.
//
// The client is fenced off, so nothing of it lands any more. Its redo is behind its intent: the
// repair of the words that the intent names carries it out. A crash of the master leaves leases
// that name the master, which the next repairer fences off, and an intent that is idle or still
// names the words. So the next try finds what is left to do, but in one case: the client died
// while it cleared lock words, and the repair of them waited for too long. It leaves locks and
// repair bits that no lease and no intent names. A client that wants one of the words repairs it
// after a failure timer (locks.Detector.Stuck).
func (e *Settler) Recover(o *session.Op, shard int, c rdma.ClientID) error {
	// First comes what an earlier repair of the master left, or the last holder of its identity.
	if err := e.Settled(o, shard); err != nil {
		return err
	}
	// A repair that the client was at is done again: its leases name the words.
	words, err := leasesOf(o, shard, c)
	if err != nil {
		return err
	}
	t, err := o.ReadIntent(shard, c)
	if err != nil {
		return err
	}
	if !table.Idle(t.State) && !t.Torn {
		words = t.AddWords(words)
	}
	if len(words) > 0 {
		// The client is condemned, so it is a suspect at once.
		if err := e.repairer.Repair(o, shard, words); err != nil {
			return err
		}
		if t, err = o.ReadIntent(shard, c); err != nil {
			return err
		}
	}
	switch {
	case table.Idle(t.State):
		return nil
	case !t.Torn: // the repair has not completed its operation
		return session.ErrAgain
	}
	// Only the master ends a torn intent. Repair ends intents under the leases of their words,
	// and a torn intent does not say which words these are. Without leases a slow client could
	// end the intent of the identity's next holder.
	return o.EndIntent(shard, c, t.State)
}

// leasesOf returns the words with leases that a client holds, in ascending order. The client is
// fenced off, so a lease of it changes only when another client takes it, which then repairs the
// word.
func leasesOf(o *session.Op, shard int, c rdma.ClientID) (words []uint32, err error) {
	for from := 0; from < o.Table.LockWords; from += table.WalkBytes / 8 {
		n := min(table.WalkBytes/8, o.Table.LockWords-from)
		b := o.EP.Batch()
		op := b.Read(o.Table.LeaseAt(shard, from), 8*n)
		if err := o.Do(steps.TakeLeases, b); err != nil {
			return nil, o.Failed(shard, b, fmt.Errorf("read the repair leases: %w", err))
		}
		for i := range n {
			if table.LeaseHolder(le.Uint64(op.Buf[8*i:])) == c {
				words = append(words, uint32(from+i))
			}
		}
		b.Release()
	}
	return words, nil
}
