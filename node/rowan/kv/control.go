package kv

import (
	"fmt"
	"slices"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
)

// patience bounds verbs at the server's own node, which cannot do without them.
const patience = 10 * time.Second

// control is the task that receives: it gives its log segments, digests those that are used, and finds out which are
// committed (sections 4.3 and 4.4).
//
// What is on all replicas is not told by entries, as in the paper: each server has a word for each shard in its memory,
// which holds the shard's CommitVer if it is the primary, and backups READ these. So that needs no room in a log, which
// may be full; none of these waits for a segment to be full; and an idle shard costs nothing.
type control struct {
	s       *Server
	ep      rdma.Endpoint
	r       inbound
	used    []usedSegment // digested, and not known to be committed
	told    []uint64      // by shard: what the word says
	next    time.Duration // when that is looked at next
	asked   *rdma.Batch   // READs of others' words; nil: none is in flight
	sources []int         // whose
	group   []fresh
}

// usedSegment is one with the highest version of each shard in it.
type usedSegment struct {
	rowan.Segment
	highest []highest
}

type highest struct {
	shard   int
	version uint64
}

// receive is the task.
func (s *Server) receive(ep rdma.Endpoint) error {
	r, err := s.newInbound(ep)
	if err != nil {
		return err
	}
	c := &control{s: s, ep: ep, r: r, told: make([]uint64, len(s.shards)), group: make([]fresh, 0, groupSize)}
	for err == nil && !s.stopping() {
		if err = c.step(); err == nil {
			ep.Sleep(s.o.StepEvery)
		}
	}
	if c.asked != nil {
		c.asked.Release()
	}
	if e := r.Close(); err == nil {
		err = e
	}
	return err
}

// step looks after all that the task has to do.
func (c *control) step() error {
	question := c.s.quiet.last()
	for _, seg := range c.s.space.given() {
		c.r.Free(seg)
	}
	if err := c.r.Step(); err != nil {
		return err
	}
	for seg, ok := c.r.Next(); ok; seg, ok = c.r.Next() {
		if err := c.digest(seg); err != nil {
			return err
		}
		if err := c.r.Step(); err != nil { // digesting takes long
			return err
		}
	}
	if err := c.gossip(); err != nil {
		return err
	}
	if err := c.commit(); err != nil {
		return err
	}
	c.s.quiet.pass(c.s.o.Workers, question)
	return nil
}

// commit finds out which used segments are committed: nothing in them is above the CommitVer of its shard. One that the
// server does not have counts as committed.
func (c *control) commit() error {
	var all []rowan.Segment
	c.used = slices.DeleteFunc(c.used, func(u usedSegment) bool {
		for _, h := range u.highest {
			if sh := c.s.shards[h.shard]; sh != nil && h.version > sh.committed() {
				return false
			}
		}
		all = append(all, u.Segment)
		return true
	})
	if len(all) == 0 {
		return nil
	}
	if err := c.s.table.Commit(c.ep, all); err != nil {
		return err
	}
	c.s.space.offer(all)
	return nil
}

// gossip writes the CommitVers of the server's shards where others read them, and reads theirs, from time to time.
func (c *control) gossip() error {
	if b := c.asked; b != nil && b.Finished() {
		c.learn(b)
		b.Release()
		c.asked = nil
	}
	now := c.ep.Now()
	if now < c.next || c.asked != nil {
		return nil
	}
	c.next = now + c.s.o.CommitEvery
	if err := c.tell(); err != nil {
		return err
	}
	b := c.ep.Batch()
	c.sources = c.sources[:0]
	for _, m := range c.s.config.Members {
		if m.Node != c.s.node {
			b.Read(c.s.o.words(m.Node), 8*len(c.s.shards))
			c.sources = append(c.sources, m.Node)
		}
	}
	if b.Len() == 0 {
		b.Release()
		return nil
	}
	if err := c.ep.Post(b.As("read CommitVers")); err != nil {
		b.Release()
		return fmt.Errorf("read CommitVers: %w", err)
	}
	c.asked = b
	return nil
}

// tell writes what changed. A word says less than is so for a while, and never more.
func (c *control) tell() error {
	b := c.ep.Batch()
	defer b.Release()
	for i, sh := range c.s.shards {
		if sh == nil || !sh.primary {
			continue
		}
		if commit := sh.committed(); commit != c.told[i] {
			b.WriteWord(c.s.o.words(c.s.node).Add(uint64(8*i)), commit)
			c.told[i] = commit
		}
	}
	if err := rdma.Do(c.ep, b.As("write CommitVers"), patience); err != nil {
		return fmt.Errorf("write CommitVers of server %d: %w", c.s.node, err)
	}
	return nil
}

// learn takes what others have written. From one that cannot be read nothing is learned.
func (c *control) learn(b *rdma.Batch) {
	for k, node := range c.sources {
		op := b.Op(k)
		if op.Err != nil {
			continue
		}
		for i, sh := range c.s.shards {
			if sh != nil && !sh.primary && c.s.config.Shards[i].Primary == node {
				sh.learn(op.Word(i))
			}
		}
	}
}
