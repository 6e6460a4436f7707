package clean

import (
	"errors"
	"fmt"
	"slices"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
	"github.com/farkv/farkv/node/rowan/index"
	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/node/rowan/kv/state"
)

// cleaner is a task that collects garbage (section 4.4). It copies the live entries of a committed
// segment to a log of its own, makes the indexes name the copies, waits until nothing reads the
// segment any more, and frees it, in this order. A crash anywhere leaves the entry, or its copy, or
// both; they are equal.
type cleaner struct {
	s  *state.Server
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

// copyGroup bounds how many entries are copied together.
const copyGroup = 16

// maxLeaving bounds how many cleaned segments of a cleaner wait for readers. At the bound it cleans
// no other.
const maxLeaving = 8

// Run is the cleaner's task.
func Run(s *state.Server, ep rdma.Endpoint, number int) error {
	c, l := newCleaner(s, ep, number), s.NewLull(ep, s.Opt.StepEvery)
	for !s.Tasks.Stopping() {
		more, err := c.goOn()
		if err != nil {
			return err
		}
		if pause := l.Next(more); !more {
			ep.Sleep(pause)
		}
	}
	return nil
}

func newCleaner(s *state.Server, ep rdma.Endpoint, number int) *cleaner {
	c := &cleaner{
		s: s, ep: ep, log: s.Log(ep, rowan.Owner(1+s.Opt.Workers+number)),
		scratch: make([]byte, s.Table.SegmentBytes()), reader: s.Opt.CleanerReader(number),
	}
	if number == 0 {
		c.sweep = newSweep(s, ep, c.scratch)
	}
	return c
}

// goOn does the next piece of work, and reports whether there was any. Between two pieces the
// cleaner holds no entry that it looked up, so it passes all questions.
func (c *cleaner) goOn() (more bool, err error) {
	c.s.Quiet.Pass(c.reader, c.s.Quiet.Last()) // it has nothing in hand
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
	// Any cleaner marks them: they are of logs of workers, and of cleaners.
	if all := c.s.Space.Closed(); len(all) > 0 {
		// A crash behind it leaves a committed segment with entries that are all on all replicas.
		if err := c.s.Table.Commit(c.ep, all); err != nil {
			return false, err
		}
		c.s.Space.Offer(all)
	}
	if err := c.free(); err != nil || len(c.waiting) == maxLeaving {
		return false, err
	}
	// One segment a step, so that questions of other cleaners are passed in between.
	// From here on the segment is this cleaner's alone.
	seg, parts, ok := c.s.Space.Pick(c.percent())
	if !ok {
		return false, nil
	}
	err = c.empty(seg, parts)
	if errors.Is(err, rdma.ErrFull) {
		c.s.Space.Offer([]rowan.Segment{seg})
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("clean segment %d: %w", seg.Index, err)
	}
	// The question comes behind the last change of an index: READs that begin later find the
	// copies.
	c.waiting = append(c.waiting, leaving{seg, c.s.Quiet.Ask()})
	return true, nil
}

// percent returns the share of live bytes below which a segment is cleaned. It is higher while PUTs
// of others find no segment, though cleaning then gains little. While DELs find none, any garbage
// is worth it: otherwise no DEL could ever make room again.
func (c *cleaner) percent() int64 {
	// The fewer segments are free, the less an emptied segment may gain.
	switch free := c.s.Table.Free(); {
	case free <= c.s.Opt.Spared() || c.s.Space.Starves():
		return 100
	case free <= c.s.Opt.Log.Own:
		return int64(max(c.s.Opt.Percent, 95))
	}
	return int64(c.s.Opt.Percent)
}

// free frees the segments that nothing reads any more. If an index still names an entry there that
// the cleaner did not find, the segment was damaged and the entry may be lost. Then the server
// ends, and other servers take over its shards.
func (c *cleaner) free() (err error) {
	var own []rowan.Segment
	c.waiting = slices.DeleteFunc(c.waiting, func(l leaving) bool {
		if !c.s.Quiet.All(l.question) || err != nil {
			return false
		}
		if err = c.s.Space.Forget(l.Segment); err != nil {
			return false
		}
		if c.s.Table.Owner(l.Segment).Received() {
			c.s.Space.GiveBack(l.Segment)
		} else {
			// Release makes it durable that they are free.
			own = append(own, l.Segment)
		}
		return true
	})
	return errors.Join(err, c.s.Table.Release(c.ep, own))
}

// empty copies the live entries of a segment: those of one block that are in it, and those of
// several that have a block in it. If it fails, entries that were not copied are still named where
// they are.
func (c *cleaner) empty(seg rowan.Segment, parts [][]rdma.Addr) (err error) {
	c.batch, c.group = c.ep.Batch(), c.group[:0]
	defer func() { c.batch.Release() }()
	// Entries alias the scratch, so move adds copies to the batch.
	err = c.s.Table.Scan(c.ep, seg, c.scratch, c.move)
	for _, blocks := range parts {
		if err != nil {
			break
		}
		if err = c.s.Table.Assemble(c.ep, blocks, &c.entry); err == nil {
			err = c.move(&c.entry)
		}
	}
	// Also behind an error: what was copied by then is named where it is.
	if e := c.flush(); e != nil {
		return e
	}
	return err
}

// move copies an entry if it is live. The copy keeps the term of the entry: see kv.TermOf. An entry
// of a shard that the server has lost is dropped instead.
func (c *cleaner) move(e *rowan.Entry) error {
	kind, data, at := e.Kind, e.Data, e.Blocks[0].Offset()
	r, ok := kv.ParseRecord(data)
	if !ok {
		return nil
	}
	// The index decides what is live: not the order of the log.
	hash := kv.Hash(r.Key)
	x, live := c.s.Shards[r.Shard].Naming(hash, at)
	if x == nil {
		return nil
	}
	// The exchanger empties the index of a shard that was lost, too; whichever is first.
	if !live { // of a shard that the server has lost
		if x.Remove(hash, at) {
			c.s.Space.Dead(at, c.s.SegmentOf(at), kv.EntrySize(len(data)), kind)
		}
		return nil
	}
	// Cleaners may take the last segments: each frees more than it takes.
	if err := c.log.Reserve(len(data), 0); err != nil {
		return err
	}
	seg, to := c.log.Add(c.batch, kind, uint32(kv.TermOf(e)), data)
	c.s.Space.Place(seg.Index, kv.EntrySize(len(data)))
	c.group = append(c.group, moving{x, hash, at, to.Offset(), seg, kind, len(data)})
	if len(c.group) == copyGroup {
		return c.flush()
	}
	return nil
}

// flush waits until the copies are durable, and then makes the indexes name them. An index that
// names something newer by now is left alone; the copy is garbage then.
func (c *cleaner) flush() error {
	if err := rdma.Do(c.ep, c.batch.As("copy live"), kv.LocalTimeout); err != nil {
		return err
	}
	c.batch.Release()
	c.batch = c.ep.Batch()
	for _, m := range c.group {
		// The copy must be durable before the index names it: a crash would lose the entry
		// otherwise, since its segment may be freed.
		if m.index.Replace(m.hash, m.old, m.new) {
			// Otherwise a worker or the digester has named something newer.
			c.s.Space.Move(m.old, c.s.SegmentOf(m.old), m.new, m.segment.Index, kv.EntrySize(m.length), m.kind)
		}
	}
	c.group = c.group[:0]
	for seg, ok := c.log.Full(); ok; seg, ok = c.log.Full() {
		// All of its copies are durable, and in the indexes or superseded.
		c.s.Space.Close(seg)
	}
	return nil
}
