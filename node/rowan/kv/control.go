package kv

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/farkv/farkv/node/cluster/rpc"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
	"github.com/farkv/farkv/node/rowan/shards/cm"
)

// patience bounds verbs at the server's own node, which cannot do without them.
const patience = 10 * time.Second

// control is the task that receives: it gives its log segments, digests those that are used, and
// finds out which are committed (sections 4.3 and 4.4).
//
// What is on all replicas is not told by entries, as in the paper: each server has a word for each
// shard in its memory, which holds the shard's CommitVer if it is the primary, and backups READ
// these. So that needs no room in a log, which may be full; none of these waits for a segment to be
// full; and an idle shard costs nothing.
type control struct {
	s       *Server
	ep      rdma.Endpoint
	r       inbound
	used    []usedSegment // digested, and not known to be committed
	early   []usedSegment // of which something is digested, while others come there
	resumed []usedSegment // of own logs that go on, what an earlier server left, until it is on all replicas
	told    []uint64      // by shard: what the word says
	next    time.Duration // when that is looked at next
	asked   *rdma.Batch   // READs of others' words; nil: none is in flight
	sources []int         // the nodes of those words
	askedIn *term         // when that began
	heard   uint64        // the last term that was committed in which all of them were read
	group   []fresh
	reach   int  // how much of what keys had is READ at first: see worker.reach
	busy    bool // there is something to do, or was in the last step

	peer      *rpc.Peer
	cm        *cm.Server
	adoptedAt time.Duration // the term
	settled   uint64        // the last term in which all of earlier ones is digested
	gave      uint64        // the last term in which the exchanger has what others may not have
	promoted  uint64        // the last term in which all shards are served of which the server is the primary
	err       error         // of what cannot return one
}

// usedSegment is one with the highest version of each shard in it, and its records.
type usedSegment struct {
	rowan.Segment
	highest []highest
	records []located
}

// located is where a record lies.
type located struct {
	at      uint64
	shard   int
	version uint64
}

type highest struct {
	shard   int
	version uint64
}

// receive is the task. It starts the others when the indexes name what an earlier server left.
func (s *Server) receive(ep rdma.Endpoint) error {
	r, err := s.newInbound(ep)
	if err != nil {
		return err
	}
	c := &control{s: s, ep: ep, r: r, told: make([]uint64, len(s.shards)), group: make([]fresh, 0, groupSize), reach: firstReach}
	c.peer, err = rpc.Open(ep, rpc.Options{Box: rdma.BoxOptions{Node: s.node, Number: s.o.Boxes}})
	if err != nil {
		return err
	}
	defer c.peer.Close()
	c.cm = cm.NewServer(ep, s.configs, s.node, c)
	c.cm.Told(1)
	if err = c.recover(); err == nil {
		s.startOthers(ep)
	}
	l := s.newLull(ep, s.o.StepEvery)
	for err == nil && !s.stopping() {
		if err = c.step(); err == nil {
			ep.Sleep(l.next(c.busy))
		}
	}
	c.hear()
	if e := r.Close(); err == nil {
		err = e
	}
	if err != nil {
		s.end("receiver", err)
	}
	c.part()
	return nil
}

// Bounds of how long a server that has ended by itself answers the manager: so long once it has,
// since that may need another question to expel the node, and in all, if it is not asked.
const (
	partFor  = time.Second
	partMost = 10 * time.Second
)

// part tells the manager that the server has ended by itself, and why, so that it does not wait for
// it: no shard is served before the node is expelled. What is behind it is as if the node had died.
func (c *control) part() {
	why := c.s.failed()
	for _, gone := range []error{rdma.ErrNodeDown, rdma.ErrClosed, rdma.ErrRevoked} {
		if why == nil || errors.Is(why, gone) {
			return
		}
	}
	c.cm.End(why)
	for until := c.ep.Now() + partMost; c.ep.Now() < until && !c.s.quits.Load(); {
		r, err := c.peer.Next(c.s.o.StepEvery)
		switch {
		case errors.Is(err, rdma.ErrTimeout) || r == nil && err == nil:
		case err != nil:
			return // the node is gone, as far as the server goes
		case r.Proc != cm.Ask:
			r.Drop()
		case c.cm.Handle(r) == nil:
			until = min(until, c.ep.Now()+partFor)
		}
	}
}

// step looks after all that the task has to do.
func (c *control) step() error {
	question := c.s.quiet.last()
	c.busy = false
	if err := c.configure(); err != nil {
		return err
	}
	for _, seg := range c.s.space.given() {
		c.r.Free(seg)
		c.busy = true
	}
	if err := c.digestUsed(); err != nil {
		return err
	}
	if err := c.promote(); err != nil {
		return err
	}
	if err := c.gossip(); err != nil {
		return err
	}
	if err := c.commit(); err != nil {
		return err
	}
	c.s.quiet.pass(c.s.o.receiver(), question)
	return nil
}

// configure hears what the manager asks, and goes on with new terms. What fails while registers
// cannot be read is tried again.
func (c *control) configure() error {
	c.cm.Told(c.s.known.highest())
	for {
		r, err := c.peer.Next(0)
		if errors.Is(err, rdma.ErrTimeout) || r == nil && err == nil {
			break
		}
		if err != nil {
			return err
		}
		if r.Proc != cm.Ask {
			r.Drop()
			continue
		}
		c.busy = true
		if err := c.cm.Handle(r); err != nil && !errors.Is(err, rdma.ErrUnreachable) {
			return err
		}
	}
	if err := c.cm.Step(); err != nil && !errors.Is(err, rdma.ErrUnreachable) {
		return err
	}
	c.s.known.join(c.cm.Epoch())
	return c.err
}

// digestUsed digests all segments that are used.
func (c *control) digestUsed() error {
	if err := c.r.Step(); err != nil {
		return err
	}
	c.busy = c.busy || c.r.Moved()
	c.s.space.starve(c.r.Starving())
	for seg, ok := c.r.Next(); ok; seg, ok = c.r.Next() {
		if err := c.digest(seg); err != nil {
			return err
		}
		if err := c.r.Step(); err != nil { // digesting takes long
			return err
		}
	}
	return nil
}

// commit finds out which used segments are committed: nothing in them is above the CommitVer of its
// shard. One that the server does not have counts as committed.
//
// One in which nothing is live may be cleaned, too: of each key the server gives what its index
// names, in other segments that are not committed. Such are full of what members give each other in
// a term, most of which each has. CommitVer waits for all of that, and it for room. They are not
// marked: behind a crash the index may name their records instead of the same ones elsewhere, and
// then these are given.
func (c *control) commit() error {
	var all, dead []rowan.Segment
	c.used = slices.DeleteFunc(c.used, func(u usedSegment) bool {
		for _, h := range u.highest {
			if sh := c.s.shards[h.shard]; sh.has() != nil && h.version > sh.committed() {
				if c.s.table.Owner(u.Segment).Received() && c.s.space.isDead(u.Index) {
					dead = append(dead, u.Segment)
					return true
				}
				return false
			}
		}
		all = append(all, u.Segment)
		return true
	})
	c.s.space.offer(dead)
	if len(all) == 0 {
		return nil
	}
	if err := c.s.table.Commit(c.ep, all); err != nil {
		return err
	}
	c.s.space.offer(all)
	return nil
}

// gossip writes the CommitVers of the server's shards where others read them, and reads theirs,
// from time to time.
func (c *control) gossip() error {
	t := c.s.adopted()
	if b := c.asked; b != nil && b.Finished() {
		if c.learn(b) {
			c.heard = c.askedIn.Term
		}
		c.hear()
		if c.heard == c.askedIn.Term {
			c.next = c.ep.Now() + c.gossipEvery()
		}
	}
	if t == nil || c.asked != nil || c.ep.Now() < c.next {
		return nil
	}
	if err := c.tell(); err != nil {
		return err
	}
	b := c.ep.Batch()
	c.sources = c.sources[:0]
	for _, m := range t.Members {
		if m.Node != t.node {
			b.Read(c.s.o.commitAt(m.Node, 0), 8*len(t.Shards))
			c.sources = append(c.sources, m.Node)
		}
	}
	if b.Len() == 0 {
		b.Release()
		c.heard, c.next = t.Term, c.ep.Now()+c.s.o.CommitEvery
		return nil
	}
	if err := c.ep.Post(b.As("read CommitVers")); err != nil {
		b.Release()
		return fmt.Errorf("read CommitVers: %w", err)
	}
	c.asked, c.askedIn = b, t
	return nil
}

// gossipEvery is how often others' words are read: seldom while nothing waits for what they say.
func (c *control) gossipEvery() time.Duration {
	if len(c.used) > 0 {
		return c.s.o.CommitEvery
	}
	return max(c.s.o.CommitEvery, 5*c.s.o.IdleEvery)
}

// hear has others be asked at once.
func (c *control) hear() {
	if c.asked != nil {
		c.asked.Release()
		c.asked = nil
	}
	c.next = 0
}

// tell writes what changed. A word says less than is so for a while, and never more. That of a
// shard which migrates to another server covers all that was written here.
func (c *control) tell() error {
	t := c.s.known.last()
	b := c.ep.Batch()
	defer b.Release()
	for i, sh := range c.s.shards {
		if !sh.serving() && t.Shards[i].Source != t.node {
			continue
		}
		if commit := sh.committed(); commit != c.told[i] {
			b.WriteWord(c.s.o.commitAt(c.s.node, i), seal(commit))
			c.told[i] = commit
		}
	}
	if err := rdma.Do(c.ep, b.As("write CommitVers"), patience); err != nil {
		return fmt.Errorf("write CommitVers of server %d: %w", c.s.node, err)
	}
	return nil
}

// learn takes what others have written, and reports whether all could be read.
func (c *control) learn(b *rdma.Batch) (all bool) {
	all = true
	for k, node := range c.sources {
		op := b.Op(k)
		if op.Err != nil {
			all = false
			continue
		}
		for i, sh := range c.s.shards {
			if s := &c.askedIn.Shards[i]; s.Primary == node || s.Source == node {
				commit, _ := unseal(op.Word(i))
				sh.learn(commit)
			}
		}
	}
	return all
}
