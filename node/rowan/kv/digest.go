package kv

import (
	"errors"
	"fmt"
	"slices"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
	"github.com/farkv/farkv/node/rowan/index"
)

// groupSize bounds how many entries are digested together: what the indexes name for their keys is
// read in one trip.
const groupSize = 16

// fresh is an entry that is digested: the indexes do not name it yet.
type fresh struct {
	found
	hash  uint64
	index *index.Index
	// The segment where it ends.
	end int
	// Its blocks, if there are several.
	blocks []rdma.Addr
	// Entries with its tag that the index named when the group was looked up.
	current []uint64
	// What was READ of these, in the same order.
	read []*rdma.Op
}

// digest makes the indexes name the new entries of a used segment. From then on the segment waits
// to be committed.
func (c *control) digest(seg rowan.Segment) error {
	u := c.takeEarly(seg)
	err := c.r.Digest(seg, func(e *rowan.Entry) error { return c.take(&u, e) })
	if err == nil {
		err = c.flush()
	}
	c.used, c.next = append(c.used, u), min(c.next, c.ep.Now()+c.s.o.CommitEvery)
	return err
}

// settle digests entries in segments that are not used yet: of each source up to a stamp up to
// which nothing is in flight. See inbound.Settle.
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

// takeEarly returns what was digested of a segment while others filled it, and removes it from
// early.
func (c *control) takeEarly(seg rowan.Segment) usedSegment {
	for i, u := range c.early {
		if u.Segment == seg {
			c.early = slices.Delete(c.early, i, i+1)
			return u
		}
	}
	return usedSegment{Segment: seg}
}

// take digests one entry, which ends in the segment u. Entries are collected in a group; the last
// ones wait for flush.
func (c *control) take(u *usedSegment, e *rowan.Entry) error {
	c.s.space.place(u.Index, entrySize(len(e.Data)))
	r, ok := parseRecord(e.Data)
	if !ok || r.shard >= len(c.s.shards) {
		return fmt.Errorf("entry at %s is no record: %w", e.Blocks[0], rowan.ErrDamaged)
	}
	sh := c.s.shards[r.shard]
	if sh.has() == nil || !sh.takes(termOf(e)) {
		return nil // the server has no such shard, or gained it after the entry came: the entry does not count
	}
	// A server that becomes the primary gives versions above all that it has found.
	sh.find(r.version)
	u.note(r.shard, r.version)
	u.records = append(u.records, located{e.Blocks[0].Offset(), r.shard, r.version})
	if c.add(u.Segment, e, r); len(c.group) == groupSize {
		return c.flush()
	}
	return nil
}

// termOf returns the term in which an entry came to the server first: another server appended it,
// the server itself wrote it, or it was copied to the server. Copies by its own cleaners keep the
// term.
func termOf(e *rowan.Entry) uint64 { return e.Stamp >> 32 }

// add copies what is needed of an entry to the group. It uses the buffers of the group's earlier
// entries.
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

// note notes that the segment has a version of a shard.
func (u *usedSegment) note(shard int, version uint64) {
	for i := range u.highest {
		if h := &u.highest[i]; h.shard == shard {
			h.version = max(h.version, version)
			return
		}
	}
	u.highest = append(u.highest, highest{shard, version})
}

// flush updates the indexes with the entries of the group, in their order. What the indexes name
// for their keys is READ for all of them in one trip. An index may have changed since, also by an
// entry of the same group; what it names then is READ by itself.
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

// update makes the index name an entry, unless the index names one that is as new. An entry that
// the index names and that is damaged stays named beside the new one: it may be the newer one, and
// only the manager can decide that.
func (c *control) update(f *fresh) error {
	if f.blocks != nil {
		c.s.space.scatter(f.at, scattered{f.blocks, f.end})
	}
	var old found
	// The comparison is repeated if another task changes the index meanwhile.
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

// current returns the first block of an entry that the index names. It aliases a buffer of the
// group's READs. The error wraps rowan.ErrDamaged when the block is damaged.
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
