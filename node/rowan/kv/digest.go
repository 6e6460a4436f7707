package kv

import (
	"errors"
	"fmt"
	"slices"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
	"github.com/farkv/farkv/node/rowan/index"
)

// groupSize is how many entries are digested at a time: what their keys had before is read in one
// trip.
const groupSize = 16

// fresh is an entry that is digested.
type fresh struct {
	found
	hash    uint64
	index   *index.Index
	end     int         // the segment where it ends
	blocks  []rdma.Addr // of one of several
	current []uint64    // entries of its tag that the index names
	read    []*rdma.Op  // what was read of these
}

// digest has the indexes of backups name what is new in a segment.
func (c *control) digest(seg rowan.Segment) error {
	u := c.takeEarly(seg)
	err := c.r.Digest(seg, func(e *rowan.Entry) error { return c.take(&u, e) })
	if err == nil {
		err = c.flush()
	}
	c.used, c.next = append(c.used, u), min(c.next, c.ep.Now()+c.s.o.CommitEvery)
	return err
}

// settle does so with what is at rest in segments that others fill: see inbound.Settle.
func (c *control) settle(upTo func(source uint16) uint64) error {
	if err := c.digestUsed(); err != nil {
		return err
	}
	err := c.r.Settle(upTo, func(seg rowan.Segment, e *rowan.Entry) error {
		u := c.takeEarly(seg)
		err := c.take(&u, e)
		c.early = append(c.early, u)
		return err
	})
	if err != nil {
		return err
	}
	return c.flush()
}

// takeEarly returns what was digested of a segment while others filled it.
func (c *control) takeEarly(seg rowan.Segment) usedSegment {
	for i, u := range c.early {
		if u.Segment == seg {
			c.early = slices.Delete(c.early, i, i+1)
			return u
		}
	}
	return usedSegment{Segment: seg}
}

// take digests an entry that ends in a segment.
func (c *control) take(u *usedSegment, e *rowan.Entry) error {
	c.s.space.place(u.Index, entrySize(len(e.Data)))
	r, ok := parseRecord(e.Data)
	if !ok || r.shard >= len(c.s.shards) {
		return fmt.Errorf("entry at %s is no record: %w", e.Blocks[0], rowan.ErrDamaged)
	}
	sh := c.s.shards[r.shard]
	if sh.has() == nil || !sh.takes(termOf(e)) {
		return nil // the server does not have the shard, or had it once and lost it
	}
	sh.find(r.version)
	u.note(r.shard, r.version)
	u.records = append(u.records, located{e.Blocks[0].Offset(), r.shard, r.version})
	if c.add(u.Segment, e, r); len(c.group) == groupSize {
		return c.flush()
	}
	return nil
}

// termOf returns the term in which an entry came to the server first: appended by another one,
// written by its own, or copied to it. Copies that its cleaners make keep it.
func termOf(e *rowan.Entry) uint64 { return e.Stamp >> 32 }

// add copies what is needed of an entry to the group, which keeps its room.
func (c *control) add(seg rowan.Segment, e *rowan.Entry, r record) {
	n := len(c.group)
	c.group = c.group[:n+1]
	f := &c.group[n]
	f.at, f.kind, f.length, f.order = e.Blocks[0].Offset(), e.Kind, len(e.Data), r.order
	f.key, f.hash, f.index, f.end = append(f.key[:0], r.key...), Hash(r.key), c.s.shards[r.shard].has(), seg.Index
	f.current, f.read, f.blocks = f.current[:0], f.read[:0], nil
	if len(e.Blocks) > 1 {
		f.blocks = slices.Clone(e.Blocks)
	}
}

// note notes a version of a shard.
func (u *usedSegment) note(shard int, version uint64) {
	for i := range u.highest {
		if h := &u.highest[i]; h.shard == shard {
			h.version = max(h.version, version)
			return
		}
	}
	u.highest = append(u.highest, highest{shard, version})
}

// flush updates indexes by the entries of the group, in their order. What the indexes name is read
// ahead for all of them; an entry that they came to name since, such as one of the group, is read
// by itself.
func (c *control) flush() error {
	b := c.ep.Batch()
	defer b.Release()
	for i := range c.group {
		f := &c.group[i]
		f.current = f.index.Lookup(f.hash, f.current)
		first := b.Len()
		c.s.readEntries(b, f.current, max(c.reach, headBytes+len(f.key)))
		for k := range f.current {
			f.read = append(f.read, b.Op(first+k))
		}
	}
	if err := rdma.Do(c.ep, b.As("look up"), patience); err != nil {
		return err
	}
	for i := range c.group {
		if err := c.update(&c.group[i]); err != nil {
			return err
		}
	}
	c.group = c.group[:0]
	return nil
}

// update has the index name an entry, unless it names one that is as new. One that is damaged stays
// named beside it: it may be newer, whatever it says.
func (c *control) update(f *fresh) error {
	if f.blocks != nil {
		c.s.space.scatter(f.at, scattered{f.blocks, f.end})
	}
	var old found
	garbage, updated, err := f.index.Update(f.hash, f.at, func(at uint64) (index.Relation, error) {
		p, err := c.current(f, at)
		if errors.Is(err, rowan.ErrDamaged) {
			return index.OtherKey, nil
		}
		if err != nil {
			return index.OtherKey, err
		}
		e, ok := parseFound(at, p)
		switch {
		case !ok || string(e.key) != string(f.key):
			return index.OtherKey, nil
		case e.before(f.order):
			old = e
			return index.Older, nil
		}
		return index.AsNew, nil
	})
	if err != nil || !updated {
		return err
	}
	c.s.space.add(f.end, entrySize(f.length), f.kind)
	if garbage != 0 {
		c.s.space.dead(garbage, c.s.segment(garbage), entrySize(old.length), old.kind)
	}
	return nil
}

// current returns the first block of an entry that the index names. The error wraps
// rowan.ErrDamaged when it is not as it was sealed.
func (c *control) current(f *fresh, at uint64) ([]byte, error) {
	k := slices.Index(f.current, at)
	if k < 0 {
		return c.s.readBlock(c.ep, at)
	}
	n, ok := c.s.table.Verify(c.s.at(at), f.read[k].Buf)
	if c.reach = reachOf(c.reach, min(n, c.s.o.message())); ok {
		return f.read[k].Buf[:n], nil
	}
	if n > len(f.read[k].Buf) {
		return c.s.readBlock(c.ep, at)
	}
	return nil, rowan.ErrDamaged
}
