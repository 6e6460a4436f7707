package kv

import (
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
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
	if len(config.Shards) != s.o.Shards {
		return fmt.Errorf("adopt a configuration of %d shards in a pool of %d: %w", len(config.Shards), s.o.Shards,
			rowan.ErrDamaged)
	}
	// The marks, and then the term, are durable before workers see the term.
	t, before := newTerm(config, s.node), s.known.last()
	if err := c.mark(t, before); err != nil {
		return fmt.Errorf("note which shards there are in term %d: %w", t.Term, err)
	}
	if t.Member(s.node) != nil {
		if err := c.write("note the term", s.o.termAt(s.node), seal(t.Term)); err != nil {
			return fmt.Errorf("note term %d: %w", t.Term, err)
		}
	}
	for i, sh := range s.shards {
		if !t.leads(i) {
			sh.follow()
		}
		if t.differed(before, i) {
			sh.lose(t.Term)
		}
		if t.Shards[i].Has(s.node) {
			sh.gain(t.Term, s.o.Keys/s.o.Shards)
		} else {
			sh.lose(t.Term)
		}
	}
	c.adoptedAt = c.ep.Now()
	c.commits.hear()
	s.known.adopt(t)
	return nil
}

// mark notes durably since which term the server has the shards that it gains, and clears the mark
// of those that it loses.
func (c *control) mark(t, before *term) error {
	b := c.ep.Batch()
	defer b.Release()
	for i, sh := range c.s.shards {
		switch has, had := t.Shards[i].Has(t.node), sh.has() != nil; {
		case has && (!had || t.differed(before, i)):
			b.WriteWord(c.s.o.sinceAt(t.node, i), seal(t.Term))
		case had && !has:
			b.WriteWord(c.s.o.sinceAt(t.node, i), 0)
		}
	}
	if b.Len() == 0 {
		return nil
	}
	b.Read(c.s.o.sinceAt(t.node, 0), 8)
	return rdma.Do(c.ep, b.As("mark shards"), patience)
}

// write writes one word of the server's own, durably.
func (c *control) write(step rdma.Step, at rdma.Addr, word uint64) error {
	b := c.ep.Batch()
	defer b.Release()
	b.WriteWord(at, word)
	b.Read(at, 8)
	return rdma.Do(c.ep, b.As(step), patience)
}

// Quiet implements cm.Store. It reports whether no task has anything of earlier terms under way. It
// then publishes the CommitVers: these cover all that the server has written, so that a shard that
// stays with its primary needs no gift.
func (c *control) Quiet() bool {
	if !c.s.known.allSaw(c.s.known.last().Term) {
		return false
	}
	if err := c.commits.publish(); err != nil {
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
	t := c.s.known.last()
	if t.Compare {
		r.Digests = c.s.exchange.told(t.Term)
		return r
	}
	r.Full, r.Damaged = c.s.isFull(), c.s.damage.in(t.Term)
	words, err := rdma.ReadBytes(c.ep, "read copies", c.s.o.copiedAt(t.node, 0), 8*len(t.Shards), patience)
	if err != nil {
		c.err = errors.Join(c.err, err)
		return r
	}
	for i := range t.Shards {
		stamp := binary.LittleEndian.Uint64(words[8*i:])
		switch told := stamp>>32 == t.Term; {
		// Its primary has written the term there behind the last entry of the copy.
		case told && slices.Contains(t.Shards[i].Copying, t.node):
			r.Copied = append(r.Copied, i)
		// The source has written the stamp of the copy's last entry, which must be digested first.
		case told && t.arriving(i) && c.arrived(t, t.Shards[i].Source, stamp):
			r.Migrated = append(r.Migrated, i)
		}
		if c.s.shards[i].serving() {
			r.Loads = append(r.Loads, cm.Load{Shard: i, Load: c.s.shards[i].load()})
		}
	}
	return r
}

// arrived digests what a source has copied, up to a stamp, and reports whether the indexes name all
// of it now.
func (c *control) arrived(t *term, source int, stamp uint64) bool {
	if c.promoted != t.Term {
		return false
	}
	err := c.d.settle(func(s uint16) uint64 {
		if s == c.s.o.exchange(source) {
			return stamp
		}
		return t.stamps()
	})
	c.err = errors.Join(c.err, err)
	return err == nil
}
