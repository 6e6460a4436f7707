package failover

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/node/rowan/kv/state"
	"github.com/farkv/farkv/node/rowan/shards"
	"github.com/farkv/farkv/node/rowan/shards/cm"
)

// Adopt implements cm.Store. After it no worker begins anything in an earlier term, and none begins
// anything in this term before it is committed.
//
// The order matters. Marks of shards are durable before the term's word, and both are durable
// before the server says that it knows the term: an entry of the term can exist only behind them. A
// crash between the two leaves marks of a term in which nothing was done.
func (c *control) Adopt(config *shards.Config) error {
	s := c.s
	if len(config.Shards) != s.Opt.Shards {
		return fmt.Errorf("adopt a configuration of %d shards in a pool of %d: %w", len(config.Shards), s.Opt.Shards,
			rowan.ErrDamaged)
	}
	// The marks, and then the term, are durable before workers see the term.
	t, before := state.NewTerm(config, s.Node), s.Known.Last()
	// The word of a shard is never ahead of what the server does: a shard that is marked as its
	// own, with nothing in it, has no entry that counts.
	if err := c.mark(t, before); err != nil {
		return fmt.Errorf("note which shards there are in term %d: %w", t.Term, err)
	}
	// A server that is no member notes nothing: a cold start by its word would count it as one.
	if t.Member(s.Node) != nil {
		if err := c.write("note the term", s.Opt.TermAt(s.Node), kv.Seal(t.Term)); err != nil {
			return fmt.Errorf("note term %d: %w", t.Term, err)
		}
	}
	// Workers serve no shard while this goes on: in the last term they see that none is served, in
	// this one that it is not committed.
	for i, sh := range s.Shards {
		if !t.Leads(i) {
			// It serves again when it is promoted in a term in which it is the primary.
			sh.Follow()
		}
		if t.Differed(before, i) {
			// What the index names is garbage, which the exchanger removes when all workers are in
			// this term.
			sh.Lose(t.Term)
		}
		if t.Shards[i].Has(s.Node) {
			sh.Gain(t.Term, s.Opt.Keys/s.Opt.Shards)
		} else {
			sh.Lose(t.Term)
		}
	}
	c.adoptedAt = c.ep.Now()
	// CommitVers that were read in an earlier term may lack versions that were given since.
	c.commits.Hear()
	// From here on tasks work in the term. It is the last step, so that they find all of the above.
	s.Known.Adopt(t)
	return nil
}

// mark notes durably since which term the server has the shards that it gains, and clears the mark
// of those that it loses.
func (c *control) mark(t, before *state.Term) error {
	b := c.ep.Batch()
	defer b.Release()
	for i, sh := range c.s.Shards {
		switch has, had := t.Shards[i].Has(t.Node), sh.Index() != nil; {
		case has && (!had || t.Differed(before, i)):
			b.WriteWord(c.s.Opt.SinceAt(t.Node, i), kv.Seal(t.Term))
		case had && !has:
			b.WriteWord(c.s.Opt.SinceAt(t.Node, i), 0)
		}
	}
	if b.Len() == 0 {
		return nil
	}
	// The READ behind the WRITEs makes them durable.
	b.Read(c.s.Opt.SinceAt(t.Node, 0), 8)
	return rdma.Do(c.ep, b.As("mark shards"), kv.LocalTimeout)
}

// write writes one word of the server's own, durably.
func (c *control) write(step rdma.Step, at rdma.Addr, word uint64) error {
	b := c.ep.Batch()
	defer b.Release()
	b.WriteWord(at, word)
	b.Read(at, 8)
	return rdma.Do(c.ep, b.As(step), kv.LocalTimeout)
}

// Quiet implements cm.Store. It reports whether no task has anything of earlier terms under way. It
// then publishes the CommitVers: these cover all that the server has written, so that a shard that
// stays with its primary needs no gift.
func (c *control) Quiet() bool {
	if !c.s.Known.AllSaw(c.s.Known.Last().Term) {
		return false
	}
	// The words are in the node's memory before the manager may commit the term, so that all
	// members read them in it.
	if err := c.commits.Publish(); err != nil {
		c.err = errors.Join(c.err, err)
		return false
	}
	return true
}

// Report implements cm.Store. It reports which shards the server has copied, as their primaries
// told it, and which have migrated to it, the loads of the shards that it serves, damage, and
// whether it is full. In a term in which replicas are compared it reports their digests and nothing
// else.
func (c *control) Report() (r cm.Report) {
	t := c.s.Known.Last()
	if t.Compare {
		// nil until the exchanger has compared all of its replicas.
		r.Digests = c.s.Exchange.Told(t.Term)
		return r
	}
	r.Full, r.Damaged = c.s.IsFull(), c.s.Damage.In(t.Term)
	// Other servers write these words behind what they have copied. One of an earlier term does not
	// count.
	words, err := rdma.ReadBytes(c.ep, "read copies", c.s.Opt.CopiedAt(t.Node, 0), 8*len(t.Shards), kv.LocalTimeout)
	if err != nil {
		c.err = errors.Join(c.err, err)
		return r
	}
	for i := range t.Shards {
		stamp := binary.LittleEndian.Uint64(words[8*i:])
		switch told := stamp>>32 == t.Term; {
		// Its primary has written the term there behind the last entry of the copy.
		case told && slices.Contains(t.Shards[i].Copying, t.Node):
			r.Copied = append(r.Copied, i)
		// The source has written the stamp of the copy's last entry, which must be digested first.
		case told && t.Arriving(i) && c.arrived(t, t.Shards[i].Source, stamp):
			r.Migrated = append(r.Migrated, i)
		}
		if c.s.Shards[i].Serving() {
			r.Loads = append(r.Loads, cm.Load{Shard: i, Load: c.s.Shards[i].Load()})
		}
	}
	return r
}

// arrived digests what a source has copied, up to a stamp, and reports whether the indexes name all
// of it now.
func (c *control) arrived(t *state.Term, source int, stamp uint64) bool {
	// What members give comes first: its stamps are lower.
	if c.promoted != t.Term {
		return false
	}
	// Of the source's exchanger nothing is in flight up to the stamp: it writes the word when all
	// that it copied is acknowledged. Of others only earlier terms are at rest for certain.
	err := c.d.Settle(func(s uint16) uint64 {
		if s == c.s.Opt.ExchangeSource(source) {
			return stamp
		}
		return t.Stamps()
	})
	c.err = errors.Join(c.err, err)
	return err == nil
}
