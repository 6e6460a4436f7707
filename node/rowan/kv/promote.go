package kv

import (
	"encoding/binary"
	"fmt"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
)

// promote goes on with the promotion of shards in a term that is committed (section 4.5, phase 2).
// All that was appended in earlier terms is at rest then. Each member digests it, and gives the
// other replicas what may not be on all of them; and once all members have, each has all that any
// replica has.
//
// A crash between any two steps is the death of a server: the next term begins with this again.
func (c *control) promote() error {
	t := c.s.adopted()
	if t == nil || c.promoted == t.Term {
		return nil
	}
	c.busy = true
	if c.ep.Now()-c.adoptedAt < c.restless() || !c.s.turnedTo(t.Term) {
		return nil
	}
	if c.settled != t.Term {
		if err := c.settle(func(uint16) uint64 { return t.stamps() }); err != nil {
			return err
		}
		if err := c.lend(t); err != nil {
			return err
		}
		c.settled = t.Term
	}
	if c.gave != t.Term {
		if c.heard != t.Term {
			return nil // others may have all of it: of shards that stay with their primary, they do
		}
		c.give(t)
		c.gave = t.Term
	}
	if ok, err := c.haveAllGiven(t); !ok {
		return err
	}
	// What exchangers have given in this term is at rest, too: they wrote their words behind it.
	err := c.settle(func(source uint16) uint64 {
		if source >= c.s.o.exchange(0) {
			return t.gifts()
		}
		return t.stamps()
	})
	if err != nil {
		return err
	}
	c.s.known.settle(t.Term)
	for i, sh := range c.s.shards {
		if t.leads(i) {
			sh.lead()
		}
	}
	c.promoted, c.resumed = t.Term, nil
	return nil
}

// restless is for how long entries of dead servers may land yet: on a fabric that counts, no longer
// than until they are fenced off.
func (c *control) restless() time.Duration {
	if c.r.Counts() {
		return 0
	}
	return rowan.SettleAfter
}

// lend has remote logs go on in the term.
func (c *control) lend(t *term) error {
	l, ok := c.r.(*rowan.Lender)
	if !ok {
		return nil
	}
	for log := range c.s.o.log(t.node).Remotes {
		if err := c.lendTo(l, log, t.writesTo(c.s.o.writer(t.node, log))); err != nil {
			return err
		}
	}
	return nil
}

// lendTo has one go on in a term, or none.
func (c *control) lendTo(l *rowan.Lender, log int, term uint64) error {
	left, err := l.Begin(log, term)
	for _, s := range left {
		u := c.takeEarly(s.Segment)
		c.left(&u, s.Behind)
	}
	return err
}

// give hands over to the exchanger what was digested of earlier terms, and may not be on all
// replicas: what is above CommitVer. Of a shard that stays with its primary nothing is: the primary
// has said so before it said that it is quiet.
func (c *control) give(t *term) {
	g := &gift{term: t}
	for _, list := range [][]usedSegment{c.used, c.early, c.resumed} {
		for _, u := range list {
			for _, r := range u.records {
				if sh := c.s.shards[r.shard]; sh.has() != nil && r.version > sh.committed() {
					g.records = append(g.records, r)
				}
			}
		}
	}
	c.s.mu.Lock()
	defer c.s.mu.Unlock()
	c.s.gift = g
}

// haveAllGiven reports whether all members have given the server what they have.
func (c *control) haveAllGiven(t *term) (bool, error) {
	words, err := rdma.ReadBytes(c.ep, "read which gave", c.s.o.gaveAt(t.node, 0), 8*c.s.o.Nodes, patience)
	if err != nil {
		return false, fmt.Errorf("read which servers gave what they have: %w", err)
	}
	for _, m := range t.Members {
		if binary.LittleEndian.Uint64(words[8*m.Node:]) != t.Term {
			return false, nil
		}
	}
	return true, nil
}
