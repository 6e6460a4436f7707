package kv

import (
	"errors"
	"fmt"
	"slices"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
	"github.com/farkv/farkv/node/rowan/index"
)

// cleaner is a task that collects garbage (section 4.4). It copies the live entries of a committed
// segment to a log of its own, makes the indexes name the copies, waits until nothing reads the
// segment any more, and frees it, in this order. A crash anywhere leaves the entry, or its copy, or
// both; they are equal.
type cleaner struct {
	s  *state
	ep rdma.Endpoint
	// Where live entries are copied.
	log     *rowan.Log
	scratch []byte // a segment's bytes
	// An entry of several blocks that is being copied.
	entry rowan.Entry
	// Copies in the batch that the indexes do not name yet.
	group []moving
	batch *rdma.Batch
	// Segments that were cleaned and are freed when no reader has them in hand, at most maxLeaving.
	waiting []leaving
	// Its number among the readers that are asked: a cleaner reads entries, too.
	reader int
	// Only the first cleaner sweeps; nil: it is another one.
	sweep *sweep
}

// moving is a live entry that is copied.
type moving struct {
	index *index.Index
	hash  uint64
	// Offsets of the entry and of the copy.
	old, new uint64
	// The segment of the copy.
	segment rowan.Segment
	kind    uint8
	// Bytes of its data.
	length int
}

// leaving is a segment without live entries, which may still be read.
type leaving struct {
	rowan.Segment
	// It is freed when all readers have passed this question.
	question uint64
}

// maxLeaving bounds how many cleaned segments of a cleaner wait for readers. At the bound it cleans
// no other.
const maxLeaving = 8

// clean is the cleaner's task.
func clean(s *state, ep rdma.Endpoint, number int) error {
	c, l := newCleaner(s, ep, number), s.newLull(ep, s.o.StepEvery)
	for !s.tasks.stopping() {
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

func newCleaner(s *state, ep rdma.Endpoint, number int) *cleaner {
	c := &cleaner{
		s: s, ep: ep, log: s.log(ep, rowan.Owner(1+s.o.Workers+number)),
		scratch: make([]byte, s.table.SegmentBytes()), reader: s.o.cleaner(number),
	}
	if number == 0 {
		c.sweep = newSweep(s, ep, c.scratch)
	}
	return c
}

// goOn does the next piece of work, and reports whether there was any. Between two pieces the
// cleaner holds no entry that it looked up, so it passes all questions.
func (c *cleaner) goOn() (more bool, err error) {
	c.s.quiet.pass(c.reader, c.s.quiet.last()) // it has nothing in hand
	cleaned, err := c.step()
	if err != nil || c.sweep == nil {
		return cleaned, err
	}
	swept, err := c.sweep.step(!cleaned)
	return cleaned || swept, err
}

// step does one round: it marks segments as committed, frees those that nothing reads, and cleans
// the segment that is worth it most. It reports whether it cleaned one. If there is no room for the
// copies, the segment is offered again: another cleaner holds the room, or it is free again soon.
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
	// One segment a step, so that questions of other cleaners are passed in between.
	seg, ends, ok := c.s.space.pick(c.percent())
	if !ok {
		return false, nil
	}
	err = c.empty(seg, ends)
	if errors.Is(err, rdma.ErrFull) {
		c.s.space.offer([]rowan.Segment{seg})
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("clean segment %d: %w", seg.Index, err)
	}
	c.waiting = append(c.waiting, leaving{seg, c.s.quiet.ask()})
	return true, nil
}

// percent returns the share of live bytes below which a segment is cleaned. It is higher while PUTs
// find no segment, though cleaning then gains little. While DELs find none, any garbage is worth
// it: otherwise no DEL could ever make room again.
func (c *cleaner) percent() int64 {
	switch free := c.s.table.Free(); {
	case free <= c.s.o.spared() || c.s.space.starves():
		return 100
	case free <= c.s.o.Keep:
		return int64(max(c.s.o.Percent, 95))
	}
	return int64(c.s.o.Percent)
}

// free frees the segments that nothing reads any more. If an index still names an entry there that
// the cleaner did not find, the segment was damaged and the entry may be lost. Then the server
// ends, and other servers take over its shards.
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

// empty copies the live entries of a segment: those of one block that are in it, and those of
// several blocks that end in it. If it fails, entries that were not copied are still named where
// they are.
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

// move copies an entry if it is live. The copy keeps the term of the entry: see termOf. An entry of
// a shard that the server has lost is dropped instead.
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
	// The exchanger empties the index of a shard that was lost, too; whichever is first.
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

// flush waits until the copies are durable, and then makes the indexes name them. An index that
// names something newer by now is left alone; the copy is garbage then.
func (c *cleaner) flush() error {
	if err := rdma.Do(c.ep, c.batch.As("copy live"), patience); err != nil {
		return err
	}
	c.batch.Release()
	c.batch = c.ep.Batch()
	for _, m := range c.group {
		// The copy must be durable before the index names it: a crash would lose the entry
		// otherwise, since its segment may be freed.
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
