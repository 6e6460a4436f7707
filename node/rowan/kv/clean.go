package kv

import (
	"errors"
	"fmt"
	"slices"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
	"github.com/farkv/farkv/node/rowan/index"
)

// cleaner is a task that collects garbage (section 4.4). It copies what is live in a committed
// segment to a log of its own, has the indexes name the copies, waits until nothing reads the
// segment any more, and frees it, in that order: a crash anywhere leaves the entry, or its copy, or
// both, which are equal.
type cleaner struct {
	s       *Server
	ep      rdma.Endpoint
	log     *rowan.Log
	scratch []byte      // a segment's bytes
	entry   rowan.Entry // of several blocks
	group   []moving
	batch   *rdma.Batch
	waiting []leaving
	reader  int    // its number, among those that are asked
	sweep   *sweep // of the first one
}

// moving is an entry that is copied.
type moving struct {
	index    *index.Index
	hash     uint64
	old, new uint64
	segment  rowan.Segment // of the copy
	kind     uint8
	length   int
}

// leaving is a segment in which nothing is live.
type leaving struct {
	rowan.Segment
	question uint64 // once all readers have passed it, nothing reads it
}

// maxLeaving bounds how many segments of a cleaner wait for readers.
const maxLeaving = 8

// clean is the task.
func (s *Server) clean(ep rdma.Endpoint, number int) error {
	c, l := s.newCleaner(ep, number), s.newLull(ep, s.o.StepEvery)
	for !s.stopping() {
		more, err := c.goOn()
		if err != nil {
			return err
		}
		if pause := l.next(more); !more {
			ep.Sleep(pause)
		}
	}
	return nil
}

func (s *Server) newCleaner(ep rdma.Endpoint, number int) *cleaner {
	c := &cleaner{
		s: s, ep: ep, log: s.log(ep, rowan.Owner(1+s.o.Workers+number)),
		scratch: make([]byte, s.table.SegmentBytes()), reader: s.o.cleaner(number),
	}
	if number == 0 {
		c.sweep = newSweep(s, ep, c.scratch)
	}
	return c
}

// goOn does one thing of what there is to do.
func (c *cleaner) goOn() (more bool, err error) {
	c.s.quiet.pass(c.reader, c.s.quiet.last()) // it has nothing in hand
	cleaned, err := c.step()
	if err != nil || c.sweep == nil {
		return cleaned, err
	}
	swept, err := c.sweep.step(!cleaned)
	return cleaned || swept, err
}

// step marks what is committed, frees what can be, and cleans a segment if one is worth it, which
// it reports.
func (c *cleaner) step() (cleaned bool, err error) {
	if all := c.s.space.closed(); len(all) > 0 {
		if err := c.s.table.Commit(c.ep, all); err != nil {
			return false, err
		}
		c.s.space.offer(all)
	}
	if err := c.free(); err != nil || len(c.waiting) == maxLeaving {
		return false, err
	}
	seg, ends, ok := c.s.space.pick(c.percent())
	if !ok {
		return false, nil
	}
	err = c.empty(seg, ends)
	if errors.Is(err, rdma.ErrFull) { // another cleaner has the rest, or it is free again soon
		c.s.space.offer([]rowan.Segment{seg})
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("clean segment %d: %w", seg.Index, err)
	}
	c.waiting = append(c.waiting, leaving{seg, c.s.quiet.ask()})
	return true, nil
}

// percent is below how much of live bytes a segment is cleaned: more while PUTs find no segment,
// though it gains little. When DELs find none, whatever is no longer live is worth it: else none of
// them would ever make room again.
func (c *cleaner) percent() int64 {
	switch free := c.s.table.Free(); {
	case free <= c.s.o.spared() || c.s.space.starves():
		return 100
	case free <= c.s.o.Keep:
		return int64(max(c.s.o.Percent, 95))
	}
	return int64(c.s.o.Percent)
}

// free frees segments that nothing reads any more. In one that was damaged an entry may have been
// lost that an index names: then the server ends, so that others serve its shards.
func (c *cleaner) free() (err error) {
	var own []rowan.Segment
	c.waiting = slices.DeleteFunc(c.waiting, func(l leaving) bool {
		if !c.s.quiet.all(l.question) || err != nil {
			return false
		}
		if err = c.s.space.forget(l.Segment); err != nil {
			return false
		}
		if c.s.table.Owner(l.Segment).Received() {
			c.s.space.giveBack(l.Segment)
		} else {
			own = append(own, l.Segment)
		}
		return true
	})
	return errors.Join(err, c.s.table.Release(c.ep, own))
}

// empty moves what is live in a segment. What was not moved when it fails is still where it was.
func (c *cleaner) empty(seg rowan.Segment, ends []scattered) (err error) {
	c.batch, c.group = c.ep.Batch(), c.group[:0]
	defer func() { c.batch.Release() }()
	err = c.s.table.Scan(c.ep, seg, c.scratch, c.move)
	for _, e := range ends {
		if err != nil {
			break
		}
		if err = c.s.table.Assemble(c.ep, e.blocks, &c.entry); err == nil {
			err = c.move(&c.entry)
		}
	}
	if e := c.flush(); e != nil {
		return e
	}
	return err
}

// move copies an entry if it is live, with its term: see termOf.
func (c *cleaner) move(e *rowan.Entry) error {
	kind, data, at := e.Kind, e.Data, e.Blocks[0].Offset()
	r, ok := parseRecord(data)
	if !ok {
		return nil
	}
	hash := Hash(r.key)
	x, live := c.s.shards[r.shard].naming(hash, at)
	if x == nil {
		return nil
	}
	if !live { // of a shard that the server has lost
		if x.Remove(hash, at) {
			c.s.space.dead(at, c.s.segment(at), entrySize(len(data)), kind)
		}
		return nil
	}
	if err := c.log.Reserve(len(data), 0); err != nil {
		return err
	}
	seg, to := c.log.Add(c.batch, kind, uint32(termOf(e)), data)
	c.s.space.place(seg.Index, entrySize(len(data)))
	c.group = append(c.group, moving{x, hash, at, to.Offset(), seg, kind, len(data)})
	if len(c.group) == groupSize {
		return c.flush()
	}
	return nil
}

// flush waits until the copies are durable, and has the indexes name them, unless they name
// something newer by now.
func (c *cleaner) flush() error {
	if err := rdma.Do(c.ep, c.batch.As("copy live"), patience); err != nil {
		return err
	}
	c.batch.Release()
	c.batch = c.ep.Batch()
	for _, m := range c.group {
		if m.index.Replace(m.hash, m.old, m.new) {
			c.s.space.move(m.old, c.s.segment(m.old), m.segment.Index, entrySize(m.length), m.kind)
		}
	}
	c.group = c.group[:0]
	for seg, ok := c.log.Full(); ok; seg, ok = c.log.Full() {
		c.s.space.close(seg)
	}
	return nil
}
