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

// digester makes the indexes name what other servers append (section 4.3), and finds out which of the
// segments with it are committed (section 4.4). It belongs to the task that receives.
type digester struct {
	s  *state
	ep rdma.Endpoint
	// The logs in which other servers append.
	r inbound
	// What says which versions are on all replicas.
	commits *commitVers
	// Segments that are digested and not known to be committed.
	used []usedSegment
	// Segments of which a part was digested while others still append to them.
	early []usedSegment
	// Entries that are digested together, at most groupSize. Their buffers are used again.
	group []fresh
	// How much of a key's current entry is READ at first: see worker.reach.
	reach int
	// Senders have made progress since the owner cleared it.
	moved bool
}

// newDigester returns the digester of a server.
func newDigester(s *state, ep rdma.Endpoint, r inbound, commits *commitVers) *digester {
	return &digester{s: s, ep: ep, r: r, commits: commits, group: make([]fresh, 0, groupSize), reach: firstReach}
}

// digest makes the indexes name the new entries of a used segment. From then on the segment waits
// to be committed.
func (d *digester) digest(seg rowan.Segment) error {
	u := d.takeEarly(seg)
	err := d.r.Digest(seg, func(e *rowan.Entry) error { return d.take(&u, e) })
	if err == nil {
		err = d.flush()
	}
	d.used = append(d.used, u)
	d.commits.soon()
	return err
}

// settle digests entries in segments that are not used yet: of each source up to a stamp up to
// which nothing is in flight. See inbound.Settle.
func (d *digester) settle(upTo func(source uint16) uint64) error {
	if err := d.digestUsed(); err != nil {
		return err
	}
	err := d.r.Settle(upTo, func(seg rowan.Segment, e *rowan.Entry) error {
		u := d.takeEarly(seg)
		err := d.take(&u, e)
		d.early = append(d.early, u)
		return err
	})
	if err != nil {
		return err
	}
	return d.flush()
}

// takeEarly returns what was digested of a segment while others filled it, and removes it from
// early.
func (d *digester) takeEarly(seg rowan.Segment) usedSegment {
	for i, u := range d.early {
		if u.Segment == seg {
			d.early = slices.Delete(d.early, i, i+1)
			return u
		}
	}
	return usedSegment{Segment: seg}
}

// take digests one entry, which ends in the segment u. Entries are collected in a group; the last
// ones wait for flush.
func (d *digester) take(u *usedSegment, e *rowan.Entry) error {
	d.s.space.place(u.Index, entrySize(len(e.Data)))
	r, ok := parseRecord(e.Data)
	if !ok || r.shard >= len(d.s.shards) {
		return fmt.Errorf("entry at %s is no record: %w", e.Blocks[0], rowan.ErrDamaged)
	}
	sh := d.s.shards[r.shard]
	if sh.has() == nil || !sh.takes(termOf(e)) {
		return nil // the server has no such shard, or gained it after the entry came: the entry does not count
	}
	// A server that becomes the primary gives versions above all that it has found.
	sh.find(r.version)
	u.note(r.shard, r.version)
	u.records = append(u.records, located{e.Blocks[0].Offset(), r.shard, r.version})
	if d.add(u.Segment, e, r); len(d.group) == groupSize {
		return d.flush()
	}
	return nil
}

// add copies what is needed of an entry to the group. It uses the buffers of the group's earlier
// entries.
func (d *digester) add(seg rowan.Segment, e *rowan.Entry, r record) {
	n := len(d.group)
	d.group = d.group[:n+1]
	f := &d.group[n]
	f.at, f.kind, f.length, f.order = e.Blocks[0].Offset(), e.Kind, len(e.Data), r.order
	f.key, f.hash, f.index, f.end = append(f.key[:0], r.key...), Hash(r.key), d.s.shards[r.shard].has(), seg.Index
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
func (d *digester) flush() error {
	b := d.ep.Batch()
	defer b.Release()
	for i := range d.group {
		f := &d.group[i]
		f.current = f.index.Lookup(f.hash, f.current)
		first := b.Len()
		d.s.readEntries(b, f.current, max(d.reach, headBytes+len(f.key)))
		for k := range f.current {
			f.read = append(f.read, b.Op(first+k))
		}
	}
	if err := rdma.Do(d.ep, b.As("look up"), patience); err != nil {
		return err
	}
	for i := range d.group {
		if err := d.update(&d.group[i]); err != nil {
			return err
		}
	}
	d.group = d.group[:0]
	return nil
}

// update makes the index name an entry, unless the index names one that is as new. An entry that
// the index names and that is damaged stays named beside the new one: it may be the newer one, and
// only the manager can decide that.
func (d *digester) update(f *fresh) error {
	if f.blocks != nil {
		d.s.space.scatter(f.at, scattered{f.blocks, f.end})
	}
	var old found
	// The comparison is repeated if another task changes the index meanwhile.
	garbage, updated, err := f.index.Update(f.hash, f.at, func(at uint64) (index.Relation, error) {
		p, err := d.current(f, at)
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
	d.s.space.add(f.end, entrySize(f.length), f.kind)
	if garbage != 0 {
		d.s.space.dead(garbage, d.s.segment(garbage), entrySize(old.length), old.kind)
	}
	return nil
}

// current returns the first block of an entry that the index names. It aliases a buffer of the
// group's READs. The error wraps rowan.ErrDamaged when the block is damaged.
func (d *digester) current(f *fresh, at uint64) ([]byte, error) {
	k := slices.Index(f.current, at)
	if k < 0 {
		return d.s.readBlock(d.ep, at)
	}
	n, ok := d.s.table.Verify(d.s.at(at), f.read[k].Buf)
	if d.reach = reachOf(d.reach, min(n, d.s.o.message())); ok {
		return f.read[k].Buf[:n], nil
	}
	if n > len(f.read[k].Buf) {
		return d.s.readBlock(d.ep, at)
	}
	return nil, rowan.ErrDamaged
}

// usedSegment is a digested segment, with its records, and the highest version of each shard in it.
type usedSegment struct {
	rowan.Segment
	highest []highest
	records []located
}

// highest is the highest version of a shard in a segment.
type highest struct {
	shard   int
	version uint64
}

// digestUsed digests all used segments. In between it steps the log, since digesting takes long.
func (d *digester) digestUsed() error {
	if err := d.r.Step(); err != nil {
		return err
	}
	d.moved = d.moved || d.r.Moved()
	d.s.space.starve(d.r.Starving())
	for seg, ok := d.r.Next(); ok; seg, ok = d.r.Next() {
		if err := d.digest(seg); err != nil {
			return err
		}
		if err := d.r.Step(); err != nil {
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
func (d *digester) commit() error {
	var all, dead []rowan.Segment
	d.used = slices.DeleteFunc(d.used, func(u usedSegment) bool {
		for _, h := range u.highest {
			if sh := d.s.shards[h.shard]; sh.has() != nil && h.version > sh.committed() {
				// No index names its records, and give sends only what an index names.
				if d.s.table.Owner(u.Segment).Received() && d.s.space.isDead(u.Index) {
					dead = append(dead, u.Segment)
					return true
				}
				return false
			}
		}
		all = append(all, u.Segment)
		return true
	})
	d.s.space.offer(dead)
	if len(all) == 0 {
		return nil
	}
	if err := d.s.table.Commit(d.ep, all); err != nil {
		return err
	}
	d.s.space.offer(all)
	return nil
}

// lendTo lets one remote log go on in a term, or none if term is 0. Segments that the writer leaves
// behind wait to be committed.
func (d *digester) lendTo(l *rowan.Lender, log int, term uint64) error {
	left, err := l.Begin(log, term)
	for _, s := range left {
		u := d.takeEarly(s.Segment)
		d.left(&u, s.Behind)
	}
	return err
}

// left hands over a segment to which nothing is added any more; behind is the address behind its
// last entry. If a log left it early, the free rest of it counts as garbage.
func (d *digester) left(u *usedSegment, behind rdma.Addr) {
	table := d.s.table
	room := int64(table.End(table.Begin(u.Segment)).Offset()) - int64(behind.Offset())
	if room > entrySize(recordBytes+d.s.o.PairBytes) {
		d.s.space.place(u.Index, room)
	}
	if table.IsCommitted(u.Segment) {
		d.s.space.offer([]rowan.Segment{u.Segment})
		return
	}
	d.used = append(d.used, *u)
}
