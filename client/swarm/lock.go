package swarm

import (
	"github.com/farkv/farkv/client/quorum"
	"github.com/farkv/farkv/node/rdma"
)

// A timestamp lock (Algorithms 4 and 9) decides the outcome of a tuple with a guessed timestamp.
// If it is locked in readMode, the tuple stays as it is. If it is locked in writeMode, no reader
// returns it, and the writer may write the value again. There is one lock for each key and each
// writer that guesses. With one lock for all keys of a writer, a lock could fail because of
// another key, which this key's readers never see: they could repeat for ever.
//
// A lock has no holder and is never released. Several readers may lock one stamp in readMode; only
// the tuple's writer locks it in writeMode.
//
// A lock is a word at each replica: the i of the last attempt, and in the lowest bit the mode; 0:
// there was none. Invariant: i only rises, and the mode of one i never changes. Only CASes change
// it.
const (
	readMode  uint64 = 0
	writeMode uint64 = 1
)

// tryLock locks s in a mode at a majority. Two majorities have a replica in common, and that has
// one mode for one i: so at most one of the two modes of a stamp is ever locked. It returns false
// if one of the replicas that answered has the other mode, or a later stamp of the same writer.
//
// What a crash here leaves: words in one mode at some replicas. They make the other mode fail,
// which is safe in both cases: a writer that fails to lock has been read twice, and a reader that
// fails to lock reads again.
func (c *Client) tryLock(k *Register, s stamp, mode uint64) (bool, error) {
	c.stats.Locks++
	tid, want := c.tidOf(s), c.iOf(s)<<1|mode
	var found [MaxReplicas]uint64
	err := c.gather(stepLock, k, c.all(), c.Majority(),
		func(b *rdma.Batch, r int) error {
			b.CompareSwap(c.lockAt(k, r, tid), found[r], want)
			return nil
		},
		func(r int, b *rdma.Batch, ch quorum.Chain) quorum.Verdict {
			found[r] = b.Op(ch.First).After()
			if found[r]>>1 >= want>>1 {
				return quorum.Done
			}
			return quorum.Again
		})
	if err != nil {
		return false, err
	}
	for r := range c.Replicas {
		if found[r]>>1 > want>>1 || found[r] == want^1 {
			return false, nil
		}
	}
	return true, nil
}
