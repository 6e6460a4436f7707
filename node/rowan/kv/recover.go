package kv

import (
	"errors"
	"fmt"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
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
	if s.table.Pushes() == 0 {
		return nil
	}
	last, err := LastTerm(c.ep, s.o, s.node)
	if err != nil {
		return err
	}
	// The manager is told so from here on. No term is adopted before Recovered.
	c.cm.Restart(last)
	steps := []func() error{c.remember, c.forget, c.recoverOwn, c.recoverInbound, c.d.flush}
	if s.o.Kind == RPC {
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
	c.cm.Recovered()
	return nil
}

// remember reads which shards the earlier server had, since which terms, and the CommitVers that it
// published.
func (c *control) remember() error {
	o := c.s.o
	since, err := o.since(c.ep, c.s.node)
	if err != nil {
		return err
	}
	if c.commits.published, err = CommitVers(c.ep, o, c.s.node); err != nil {
		return err
	}
	for i, sh := range c.s.shards {
		if since[i] > 0 {
			sh.gain(since[i], o.Keys/o.Shards)
			sh.learn(c.commits.published[i])
		}
	}
	return nil
}

// forget clears what other servers told in earlier terms. In a later term no server tells anything
// before this one has adopted the term. So a damaged word there can not pass for what is told in a
// later term.
func (c *control) forget() error {
	o, node := c.s.o, c.s.node
	b := c.ep.Batch()
	defer b.Release()
	b.Write(o.copiedAt(node, 0), make([]byte, 8*o.Shards))
	b.Write(o.gaveAt(node, 0), make([]byte, 8*o.Nodes))
	b.Read(o.gaveAt(node, 0), 8)
	return rdma.Do(c.ep, b.As("forget earlier terms"), patience)
}

// recoverOwn digests the segments of own logs. Of each log the last segment that is not committed
// may have room: the log goes on there. So a server that is killed again and again uses up no
// segments.
func (c *control) recoverOwn() error {
	table := c.s.table
	scratch := make([]byte, table.SegmentBytes())
	last := make([]*usedSegment, 1+c.s.o.Workers+c.s.o.Cleaners) // by owner, that may have room
	for _, seg := range table.Left() {
		u, owner, end := &usedSegment{Segment: seg}, table.Owner(seg), table.Begin(seg)
		if int(owner) >= len(last) {
			return fmt.Errorf("segment %d is of log %d, of %d: %w", seg.Index, owner, len(last)-1, rowan.ErrDamaged)
		}
		err := table.Scan(c.ep, seg, scratch, func(e *rowan.Entry) error {
			end = e.Blocks[0].Add(uint64(entrySize(len(e.Data))))
			return c.takeLeft(u, e)
		})
		if err != nil {
			return err
		}
		if table.IsCommitted(seg) {
			c.d.left(u, end)
			continue
		}
		// The log has left the earlier segment: nothing is added to it any more.
		if before := last[owner]; before != nil {
			c.d.left(before, table.End(table.Begin(before.Segment)))
		}
		last[owner], c.s.resumed[owner] = u, place{seg, end}
	}
	for _, u := range last {
		if u != nil {
			c.resumed = append(c.resumed, *u)
		}
	}
	return nil
}

// recoverInbound digests what other servers have appended. Nothing lands in these segments any
// more. Segments of remote logs that are still lent are settled in the next term instead.
func (c *control) recoverInbound() error {
	table := c.s.table
	found, ends := map[rowan.Segment]*usedSegment{}, map[int]rdma.Addr{}
	all, err := c.d.r.Recover(func(seg rowan.Segment, e *rowan.Entry) error {
		if found[seg] == nil {
			found[seg] = &usedSegment{Segment: seg}
		}
		for k, at := range e.Blocks {
			ends[e.Segments[k]] = max(ends[e.Segments[k]], at.Add(uint64(entrySize(len(e.Data)))))
		}
		return c.takeLeft(found[seg], e)
	})
	if err != nil {
		return err
	}
	for _, seg := range all {
		if u := found[seg]; u != nil {
			c.d.left(u, max(ends[seg.Index], table.Begin(seg)))
		} else { // most were just ahead: until they are pushed again there is little room for others
			c.s.space.giveBack(seg)
		}
	}
	return nil
}

// resume lets the logs of workers go on with RPC in the last term of the earlier server, with
// nothing in flight to them. Other servers may wait until what they send in that term is appended,
// before the next term can be committed. With other kinds they have places for it.
func (c *control) resume(last uint64) error {
	t := &term{Config: &shards.Config{Term: last}, node: c.s.node}
	logs, _ := c.s.o.logs()
	err := c.d.settle(func(log uint16) uint64 {
		if int(log) < logs {
			return t.Term<<32 | (1<<32 - 1)
		}
		return 0
	})
	for log := 0; log < logs && err == nil; log++ {
		err = c.d.lendTo(c.d.r.(*rowan.Lender), log, last)
	}
	c.s.resumedTerm = t
	return err
}

// takeLeft digests an entry that was left. In between it answers the manager, which would otherwise
// take the server for hung.
func (c *control) takeLeft(u *usedSegment, e *rowan.Entry) error {
	if len(c.d.group) == 0 {
		if err := c.configure(); err != nil {
			return err
		}
	}
	if c.s.tasks.stopping() {
		return errStopped
	}
	return c.d.take(u, e)
}
