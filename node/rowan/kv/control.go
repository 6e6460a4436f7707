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

// patience bounds verbs at the server's own node. The server cannot go on without them.
const patience = 10 * time.Second

// control is the task that receives: it gives the log segments, digests used segments, and finds
// out which of them are committed (sections 4.3 and 4.4). It also follows the configuration, and
// promotes the server's shards.
//
// Which versions are on all replicas is not told by entries in logs, as in the paper. Each server
// has a word for each shard in its memory, with the shard's CommitVer if it is the primary, and
// backups READ these words. That takes no room in a log that may be full, does not wait for a
// segment to fill, and costs nothing while a shard is idle.
type control struct {
	s  *Server
	ep rdma.Endpoint
	// The logs in which other servers append.
	r inbound
	// Segments that are digested and not known to be committed.
	used []usedSegment
	// Segments of which a part was digested while others still append to them.
	early []usedSegment
	// What an earlier server left in own logs that go on, until it is on all replicas.
	resumed []usedSegment
	// By shard: the CommitVer that the server has published.
	told []uint64
	// When other servers' words are read next.
	next time.Duration
	// READs of other servers' words; nil: none is in flight.
	asked *rdma.Batch
	// The nodes of those words, in the order of the ops.
	sources []int
	// The term in which they were posted.
	askedIn *term
	// The last committed term in which all of these words were read.
	heard uint64
	// Entries that are digested together, at most groupSize. Their buffers are used again.
	group []fresh
	// How much of a key's current entry is READ at first: see worker.reach.
	reach int
	// There is something to do, or was in the last step.
	busy bool

	peer *rpc.Peer
	// The server's side of the configuration protocol. It calls control's methods of cm.Store.
	cm *cm.Server
	// When the last term was adopted.
	adoptedAt time.Duration
	// The last term in which all entries of earlier terms are digested.
	settled uint64
	// The last term in which the exchanger was handed what other replicas may not have.
	gave uint64
	// The last term in which the server serves all shards of which it is the primary.
	promoted uint64
	// An error of a method that cannot return one.
	err error
}

// usedSegment is a digested segment, with its records, and the highest version of each shard in it.
type usedSegment struct {
	rowan.Segment
	highest []highest
	records []located
}

// located is a record and where its entry lies.
type located struct {
	at      uint64 // offset in the node's memory
	shard   int
	version uint64
}

// highest is the highest version of a shard in a segment.
type highest struct {
	shard   int
	version uint64
}

// receive is the task of control. It starts the server's other tasks once the indexes name what an
// earlier server left.
func (s *Server) receive(ep rdma.Endpoint) error {
	r, err := s.newInbound(ep)
	if err != nil {
		return err
	}
	c := &control{s: s, ep: ep, r: r, told: make([]uint64, len(s.shards)), group: make([]fresh, 0, groupSize),
		reach: firstReach}
	c.peer, err = rpc.Open(ep, rpc.Options{Box: rdma.BoxOptions{Node: s.node, Number: s.o.Boxes}})
	if err != nil {
		return err
	}
	defer c.peer.Close()
	c.cm = cm.NewServer(ep, s.configs, s.node, c)
	// So that Step reads the registers even if the manager does not ask.
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

// Bounds of how long a server that has ended by itself answers the manager. partFor runs from the
// first answer: the manager may need another question to expel the node. partMost runs from the
// end, if no question comes.
const (
	partFor  = time.Second
	partMost = 10 * time.Second
)

// part tells the manager that the server has ended by itself, and why, so that the manager need
// not wait for a timeout. No other server serves its shards before its node is expelled. After
// part the node counts as if it had died.
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
			return // the server cannot reach its node any more
		case r.Proc != cm.Ask:
			r.Drop()
		case c.cm.Handle(r) == nil:
			until = min(until, c.ep.Now()+partFor)
		}
	}
}

// step does one round of all that the task does. Entries that it looked up are out of its hands at
// the end, so it passes the question that it saw at the beginning.
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
	// Promotion needs the indexes as they are after all used segments.
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

// configure answers the manager's questions, and goes on with new terms. If registers cannot be
// read now, that is tried again.
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

// digestUsed digests all used segments. In between it steps the log, since digesting takes long.
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
		if err := c.r.Step(); err != nil {
			return err
		}
	}
	return nil
}

// commit finds the used segments that are committed: no version in them is above the CommitVer of
// its shard. Records of a shard that the server does not have count as committed. It marks these
// segments durably, and offers them to cleaners.
//
// A received segment without a live entry may be cleaned, too, though it is not committed. The
// server gives of each key only what its index names, which is in other segments that are not
// committed. Such segments are full of what members gave each other as a term began, most of which
// each of them had. CommitVer waits for all of that to be on all replicas, and that waits for room.
// These segments are not marked as committed: after a crash the index may name their records
// instead of equal ones elsewhere, and then they must be given.
func (c *control) commit() error {
	var all, dead []rowan.Segment
	c.used = slices.DeleteFunc(c.used, func(u usedSegment) bool {
		for _, h := range u.highest {
			if sh := c.s.shards[h.shard]; sh.has() != nil && h.version > sh.committed() {
				// No index names its records, and give sends only what an index names.
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

// gossip publishes the CommitVers of the server's shards, and reads those of the other members,
// from time to time. Reads that fail in part are repeated at once, so that heard reaches the term.
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

// gossipEvery returns how often other servers' words are read. It is seldom while no segment waits
// for them.
func (c *control) gossipEvery() time.Duration {
	if len(c.used) > 0 {
		return c.s.o.CommitEvery
	}
	return max(c.s.o.CommitEvery, 5*c.s.o.IdleEvery)
}

// hear makes the next gossip read the words at once: what was asked in an earlier term does not
// count.
func (c *control) hear() {
	if c.asked != nil {
		c.asked.Release()
		c.asked = nil
	}
	c.next = 0
}

// tell publishes the CommitVers that have changed. A word may lag behind, and is never ahead of
// what is so. The source of a migration also publishes: its word covers all that was written there,
// which the target relies on.
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

// learn takes the words of other servers, and reports whether all of them could be read. A damaged
// word counts as 0.
func (c *control) learn(b *rdma.Batch) (all bool) {
	all = true
	for k, node := range c.sources {
		op := b.Op(k)
		if op.Err != nil {
			all = false
			continue
		}
		for i, sh := range c.s.shards {
			// Only the primary's word counts, and the source's in a migration: others may be of
			// earlier terms.
			if s := &c.askedIn.Shards[i]; s.Primary == node || s.Source == node {
				commit, _ := unseal(op.Word(i))
				sh.learn(commit)
			}
		}
	}
	return all
}
