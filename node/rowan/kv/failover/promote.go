package failover

import (
	"time"

	"github.com/farkv/farkv/node/rowan"
	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/node/rowan/kv/state"
)

// promote advances the promotion of shards in a committed term (section 4.5, phase 2). All that was
// appended in earlier terms is at rest by then. In order, each step behind the one before: the
// server digests that (settle); it hands what may not be on all replicas to its exchanger (give),
// once it has read the CommitVers of this term; it waits until all members have given theirs, and
// digests that; then each of its replicas has all that any replica had, and it serves the shards of
// which it is the primary.
//
// A crash between any two steps counts as the death of the server: the next term begins with the
// same again.
func (c *control) promote() error {
	t := c.s.Known.Adopted()
	// A term that is not committed may be replaced by another one.
	if t == nil || c.promoted == t.Term {
		return nil
	}
	c.busy = true
	// Entries of dead servers may still land, and workers may still accept calls of earlier terms.
	if c.ep.Now()-c.adoptedAt < c.restless() || !c.s.Known.TurnedTo(t.Term) {
		return nil
	}
	if c.settled != t.Term {
		// An entry that has not landed whole by now never will: its sender is fenced off, or has
		// seen it acknowledged.
		if err := c.d.Settle(func(uint16) uint64 { return t.Stamps() }); err != nil {
			return err
		}
		// Writers find segments in the new term only behind this, so none of its entries comes into
		// a log that is being settled.
		if err := c.lend(t); err != nil {
			return err
		}
		c.settled = t.Term
	}
	if c.gave != t.Term {
		if !c.commits.HeardIn(t.Term) {
			return nil // without this term's CommitVers it would give more of what all replicas have
		}
		// Once a term: the exchanger sends it until all others have it.
		c.give(t)
		c.gave = t.Term
	}
	// A member that dies here keeps the others waiting, until the term without it.
	if ok, err := c.haveAllGiven(t); !ok {
		return err
	}
	// What exchangers gave in this term is at rest, too: each wrote its word behind the last entry.
	err := c.d.Settle(func(source uint16) uint64 {
		if source >= c.s.Opt.ExchangeSource(0) {
			return t.Gifts()
		}
		return t.Stamps()
	})
	if err != nil {
		return err
	}
	// From here on the indexes of this server have all that any replica had: copies may begin, and
	// tombstones may be dropped.
	c.s.Known.Settle(t.Term)
	for i, sh := range c.s.Shards {
		if t.Leads(i) {
			sh.Lead(uint32(t.Term), t.Node)
		} else {
			sh.Settle(uint32(t.Term), t.Shards[i].Primary)
		}
	}
	c.promoted, c.resumed = t.Term, nil
	return nil
}

// restless returns for how long entries of dead servers may still land. A fabric that counts fences
// them off; on others it is the bound that package rowan relies on.
func (c *control) restless() time.Duration {
	if c.in.Counts() {
		return 0
	}
	return rowan.SettleAfter
}

// lend lets the remote logs go on in the term; with a ring there are none.
func (c *control) lend(t *state.Term) error {
	for log := range c.s.Opt.LogOf(t.Node).Remotes {
		if err := c.d.LendTo(log, t.WritesTo(c.s.Opt.WriterOf(t.Node, log))); err != nil {
			return err
		}
	}
	return nil
}

// give hands over to the exchanger what was digested of earlier terms and may not be on all
// replicas, with what an earlier server left in own logs. Of a shard that stays with its primary
// there is nothing, since the primary published its CommitVer before it said that it was quiet;
// unless this server has begun anew: it gives all that was digested and is not committed.
func (c *control) give(t *state.Term) {
	c.s.Exchange.Give(&state.Gift{Term: t, Records: c.d.Uncommitted(c.resumed)})
}

// haveAllGiven reports whether each member has written the term to its word here: all that they
// give is in this server's logs.
func (c *control) haveAllGiven(t *state.Term) (bool, error) {
	gave, err := kv.Gave(c.ep, c.s.Opt, t.Node)
	if err != nil {
		return false, err
	}
	// A server that is no member gives nothing.
	for _, m := range t.Members {
		if gave[m.Node] != t.Term {
			return false, nil
		}
	}
	return true, nil
}
