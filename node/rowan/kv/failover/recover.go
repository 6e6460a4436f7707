package failover

import (
	"errors"
	"fmt"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/node/rowan/kv/digest"
	"github.com/farkv/farkv/node/rowan/kv/state"
	"github.com/farkv/farkv/node/rowan/shards"
)

// errStopped ends the recovery of a server that is stopped meanwhile.
var errStopped = errors.New("the server is stopped")

// recover brings back what an earlier server left in the node's memory (section 4.7): the indexes
// come to name the newest record of each key, of the shards that the server has had ever since. The
// server is no member before the manager begins another term, in which all members give each other
// what may not be on all replicas: see cm.Server.Restart.
//
// It relies on the earlier server having ended, with nothing of other servers in flight to its
// ring. It changes nothing in memory but the states of segments and words of earlier terms. So a
// crash leaves as much to recover as there was.
func (c *control) recover() error {
	s := c.s
	// No server has ever written here.
	if s.Table.Pushes() == 0 {
		return nil
	}
	// 0 if the earlier server was never a member. Then there is nothing of any shard, either.
	last, err := kv.LastTerm(c.ep, s.Opt, s.Node)
	if err != nil {
		return err
	}
	// The manager is told so from here on. No term is adopted before Recovered.
	c.cm.Restart(last)
	// Entries are judged by what remember reads. Own logs and others' may come in any order: the
	// index keeps the newest record of a key.
	steps := []func() error{c.remember, c.forget, c.recoverOwn, c.recoverInbound, c.d.Flush}
	if s.Opt.Kind == kv.RPC {
		steps = append(steps, func() error { return c.resume(last) })
	}
	for _, step := range steps {
		if err == nil {
			err = step()
		}
	}
	switch {
	case errors.Is(err, errStopped):
		return nil
	case err != nil:
		return fmt.Errorf("recover what was left: %w", err)
	}
	// From here on the server adopts terms, so that the manager may begin the next one.
	c.cm.Recovered()
	return nil
}

// remember reads which shards the earlier server had, since which terms, and the CommitVers that it
// published.
func (c *control) remember() error {
	o := c.s.Opt
	// 0: the server was no replica, and what its logs have of the shard does not count.
	since, err := o.Since(c.ep, c.s.Node)
	if err != nil {
		return err
	}
	published, err := kv.CommitVers(c.ep, o, c.s.Node)
	if err != nil {
		return err
	}
	c.commits.Restore(published)
	for i, sh := range c.s.Shards {
		if since[i] > 0 {
			sh.Gain(since[i], o.Keys/o.Shards)
		}
		// It is of an unknown term, so it covers nothing. But the server goes on above it: see
		// state.Shard.Lead.
		sh.Find(published[i])
	}
	return nil
}

// forget clears what other servers told in earlier terms. In a later term no server tells anything
// before this one has adopted the term. So a damaged word there cannot pass for what is told in a
// later term.
func (c *control) forget() error {
	o, node := c.s.Opt, c.s.Node
	b := c.ep.Batch()
	defer b.Release()
	// The zero word is of no term.
	b.Write(o.CopiedAt(node, 0), make([]byte, 8*o.Shards))
	b.Write(o.GaveAt(node, 0), make([]byte, 8*o.Nodes))
	b.Read(o.GaveAt(node, 0), 8)
	return rdma.Do(c.ep, b.As("forget earlier terms"), kv.LocalTimeout)
}

// recoverOwn digests the segments of own logs. Of each log the last segment that is not committed
// may have room: the log goes on there. So a server that is killed again and again uses up no
// segments.
func (c *control) recoverOwn() error {
	table := c.s.Table
	// Entries alias it until the next segment is scanned.
	scratch := make([]byte, table.SegmentBytes())
	last := make([]*digest.Segment, 1+c.s.Opt.Workers+c.s.Opt.Cleaners) // by owner, that may have room
	// In the order in which the segments were taken, so the last one of an owner is where its log
	// was.
	for _, seg := range table.Left() {
		// end is where the next entry would go.
		u, owner, end := &digest.Segment{Segment: seg}, table.Owner(seg), table.Begin(seg)
		if int(owner) >= len(last) {
			return fmt.Errorf("segment %d is of log %d, of %d: %w", seg.Index, owner, len(last)-1, rowan.ErrDamaged)
		}
		err := table.Scan(c.ep, seg, scratch, func(e *rowan.Entry) error {
			// Own entries have one block.
			end = e.Blocks[0].Add(uint64(kv.EntrySize(len(e.Data))))
			return c.takeLeft(u, e)
		})
		if err != nil {
			return err
		}
		// A cleaner's entries are copies of what is on all replicas, so none is given: another
		// replica may have dropped the tombstone of one.
		if int(owner) > c.s.Opt.Workers {
			u = &digest.Segment{Segment: seg}
		}
		// It is full, or the log has left it: nothing is added.
		if table.IsCommitted(seg) {
			c.d.Left(u, end)
			continue
		}
		// The log has left the earlier segment: nothing is added to it any more.
		// A crash between two segments leaves two of them that are not committed.
		if before := last[owner]; before != nil {
			c.d.Left(before, table.End(table.Begin(before.Segment)))
		}
		last[owner], c.s.Resumed[owner] = u, state.LogEnd{Segment: seg, Behind: end}
	}
	for _, u := range last {
		// Their records are given in the next term: they may be on this replica alone.
		if u != nil {
			c.resumed = append(c.resumed, *u)
		}
	}
	return nil
}

// recoverInbound digests what other servers have appended. Nothing lands in these segments any
// more. Segments of remote logs that are still lent are settled in the next term instead.
func (c *control) recoverInbound() error {
	table := c.s.Table
	found, ends := map[int]*digest.Segment{}, map[int]rdma.Addr{}
	all, err := c.in.Recover(func(seg rowan.Segment, e *rowan.Entry) error {
		// A segment is used up to the end of the last block in it, of whichever entry.
		for k, at := range e.Blocks {
			i := e.Segments[k]
			if ends[i] = max(ends[i], at.Add(uint64(kv.EntrySize(len(e.Data))))); found[i] == nil {
				found[i] = new(digest.Segment)
			}
		}
		found[seg.Index].Segment = seg
		return c.takeLeft(found[seg.Index], e)
	})
	if err != nil {
		return err
	}
	for _, seg := range all {
		if u := found[seg.Index]; u != nil {
			u.Segment = seg
			c.d.Left(u, max(ends[seg.Index], table.Begin(seg)))
		} else { // most were just ahead: until they are pushed again there is little room for others
			c.s.Space.GiveBack(seg)
		}
	}
	return nil
}

// resume lets the logs of workers go on with RPC in the last term of the earlier server, with
// nothing in flight to them. Other servers may wait until what they send in that term is appended,
// before the next term can be committed. With other kinds they have places for it.
func (c *control) resume(last uint64) error {
	t := &state.Term{Config: &shards.Config{Term: last}, Node: c.s.Node}
	logs, _ := c.s.Opt.RemoteLogs()
	// Of these logs all that was acknowledged is at rest: the node began anew.
	err := c.d.Settle(func(log uint16) uint64 {
		if int(log) < logs {
			return t.Term<<32 | (1<<32 - 1)
		}
		return 0
	})
	for log := 0; log < logs && err == nil; log++ {
		err = c.d.LendTo(log, last)
	}
	// Workers have not begun: they see it when they make their logs.
	c.s.ResumedTerm = t
	return err
}

// takeLeft digests an entry that was left. In between it answers the manager, which would otherwise
// take the server for hung.
func (c *control) takeLeft(u *digest.Segment, e *rowan.Entry) error {
	// Between two groups nothing that was looked up is in hand.
	if c.d.Flushed() {
		if err := c.configure(); err != nil {
			return err
		}
	}
	if c.s.Tasks.Stopping() {
		return errStopped
	}
	return c.d.Take(u, e)
}
