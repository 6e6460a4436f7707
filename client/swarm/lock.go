package swarm

import (
	"github.com/farkv/farkv/client/quorum"
	"github.com/farkv/farkv/node/rdma"
)

// A timestamp lock (Algorithms 4 and 9) decides what becomes of a tuple with a guessed timestamp:
// locked for readers it stays where it is, locked for its writer it was never read, and may be
// written again. There is one for each writer that guesses and each key: one for all keys of a
// writer would let it fail for reasons that this key's readers never see, and they could go on for
// ever. Its word at each replica is the i of the last one that was tried, and below it the mode; 0:
// none was. i only rises, and the mode of one i never changes.
const (
	readMode  uint64 = 0
	writeMode uint64 = 1
)

// tryLock locks s in a mode at a majority. Of the two modes of one stamp at most one is ever
// locked. On false, a client tried the other mode, or a later stamp of the same writer.
//
// What a crash here leaves: words that make the other side fail, which is right for both: a writer
// whose lock fails has been read twice, a reader whose lock fails reads again.
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
			op := b.Op(ch.First)
			if op.Swapped() {
				found[r] = want
				return quorum.Done
			}
			found[r] = op.Result
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
