package digest

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
	"github.com/farkv/farkv/node/rowan/index"
	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/node/rowan/kv/state"
)

// groupSize bounds how many entries are digested together: what the indexes name for their keys is
// read in one trip.
const groupSize = 16

// fresh is an entry that is digested: the indexes do not name it yet.
type fresh struct {
	kv.Found
	hash  uint64
	index *index.Index
	// The segment where it begins.
	begin int
	// Its blocks, and their segments, if there are several.
	blocks []rdma.Addr
	in     []int
	// Entries with its tag that the index named when the group was looked up.
	current []uint64
	// What was READ of these, in the same order.
	read []*rdma.Op
}

// Digester makes the indexes name what other servers append (section 4.3), and finds out which of
// the segments with it are committed (section 4.4). It belongs to the task that receives.
type Digester struct {
	s  *state.Server
	ep rdma.Endpoint
	// The logs in which other servers append.
	in Inbound
	// What says which versions are on all replicas.
	commits *CommitVers
	// Segments that are digested and not known to be committed.
	used []Segment
	// Segments that cleaners may have once no entry with blocks there lacks its end, or ends in one
	// of used or early.
	held []rowan.Segment
	// Segments of which a part was digested while others still append to them.
	early []Segment
	// Entries that are digested together, at most groupSize. Their buffers are used again.
	group []fresh
	// How much of a key's current entry is READ at first: see worker.Worker.
	reach int
	// Senders have made progress since Moved was called.
	moved bool
	// When segments are digested ahead next.
	next time.Duration
}

// New returns the digester of a server.
func New(s *state.Server, ep rdma.Endpoint, in Inbound, commits *CommitVers) *Digester {
	return &Digester{
		s: s, ep: ep, in: in, commits: commits, group: make([]fresh, 0, groupSize), reach: state.FirstReach,
	}
}

// digest makes the indexes name the new entries of a used segment. From then on the segment waits
// to be committed.
func (d *Digester) digest(seg rowan.Segment) error {
	u := d.takeEarly(seg)
	// Entries alias a buffer of the inbound logs, so Take copies what it keeps.
	err := d.in.Digest(seg, func(e *rowan.Entry) error { return d.Take(&u, e) })
	if err == nil {
		err = d.Flush()
	}
	// The control task commits it when CommitVers cover it.
	d.used = append(d.used, u)
	d.commits.soon()
	return err
}

// Settle digests entries in segments that are not used yet: of each source up to a stamp up to
// which nothing is in flight. See Inbound.Settle.
func (d *Digester) Settle(upTo func(source uint16) uint64) error {
	if err := d.Step(); err != nil {
		return err
	}
	if err := d.in.Settle(upTo, d.takeNow); err != nil {
		return err
	}
	return d.Flush()
}

// takeNow digests an entry of a segment that others still fill. When the segment is used, it is
// digested to its end, and what was taken is not repeated.
func (d *Digester) takeNow(seg rowan.Segment, e *rowan.Entry) error {
	u := d.takeEarly(seg)
	err := d.Take(&u, e)
	d.early = append(d.early, u)
	return err
}

// ahead digests what there is in segments that are not used yet, while the server is short of free
// ones. Each remote log has a segment of its own that is filled, and the entries there may be the
// ones that make the garbage of which room is made: with few DELs in each, none is ever full, no
// cleaner finds anything, and DELs are refused for ever. A ring fills one segment a stream, for all
// sources.
//
// It happens a few times in the time after which a write is refused.
func (d *Digester) ahead() error {
	l, ok := d.in.(*rowan.Lender)
	if !ok || d.ep.Now() < d.next || d.s.Table.Free() > d.s.Opt.Log.Own && !d.s.Space.Starves() {
		return nil
	}
	d.next = d.ep.Now() + d.s.Opt.FullAfter/4
	if err := l.Ahead(d.takeNow); err != nil {
		return err
	}
	return d.Flush()
}

// takeEarly returns what was digested of a segment while others filled it, and removes it from
// early.
func (d *Digester) takeEarly(seg rowan.Segment) Segment {
	for i, u := range d.early {
		if u.Segment == seg {
			d.early = slices.Delete(d.early, i, i+1)
			return u
		}
	}
	return Segment{Segment: seg}
}

// Take digests one entry, which ends in the segment u. Entries are collected in a group; the last
// ones wait for flush.
func (d *Digester) Take(u *Segment, e *rowan.Entry) error {
	// Also what does not count takes room, which is garbage.
	d.s.Space.Place(u.Index, kv.EntrySize(len(e.Data)))
	for _, i := range e.Segments {
		if i != u.Index && !slices.Contains(u.others, i) {
			u.others = append(u.others, i)
		}
	}
	r, ok := kv.ParseRecord(e.Data)
	if !ok || r.Shard >= len(d.s.Shards) {
		return fmt.Errorf("entry at %s is no record: %w", e.Blocks[0], rowan.ErrDamaged)
	}
	sh := d.s.Shards[r.Shard]
	if sh.Index() == nil || !sh.Takes(kv.TermOf(e)) {
		return nil // the server has no such shard, or gained it after the entry came: the entry does not count
	}
	// A server that becomes the primary gives versions above all that it has found.
	sh.Find(r.Version)
	u.note(r.Shard, r.Order)
	u.records = append(u.records, state.Located{At: e.Blocks[0].Offset(), Shard: r.Shard, Order: r.Order})
	if d.add(e, r); len(d.group) == groupSize {
		return d.Flush()
	}
	return nil
}

// add copies what is needed of an entry to the group. It uses the buffers of the group's earlier
// entries.
func (d *Digester) add(e *rowan.Entry, r kv.Record) {
	n := len(d.group)
	d.group = d.group[:n+1]
	// Its key and offsets belong to the group, and are overwritten by the next one.
	f := &d.group[n]
	f.At, f.Kind, f.Length, f.Order = e.Blocks[0].Offset(), e.Kind, len(e.Data), r.Order
	f.Key, f.hash, f.index = append(f.Key[:0], r.Key...), kv.Hash(r.Key), d.s.Shards[r.Shard].Index()
	f.begin = e.Segments[0]
	f.current, f.read, f.blocks = f.current[:0], f.read[:0], nil
	if len(e.Blocks) > 1 {
		f.blocks, f.in = slices.Clone(e.Blocks), append(f.in[:0], e.Segments...)
	}
}

// note notes that the segment has a record of a shard.
func (u *Segment) note(shard int, o kv.Order) {
	for i := range u.highest {
		if h := &u.highest[i]; h.shard == shard {
			if h.Before(o) {
				h.Order = o
			}
			return
		}
	}
	u.highest = append(u.highest, highest{shard, o})
}

// Flush updates the indexes with the entries of the group, in their order. What the indexes name
// for their keys is READ for all of them in one trip. An index may have changed since, also by an
// entry of the same group; what it names then is READ by itself.
func (d *Digester) Flush() error {
	b := d.ep.Batch()
	defer b.Release()
	for i := range d.group {
		f := &d.group[i]
		// The offsets are those of this moment: update looks again if the index has changed.
		f.current = f.index.Lookup(f.hash, f.current)
		first := b.Len()
		d.s.ReadEntries(b, f.current, max(d.reach, kv.HeadBytes+len(f.Key)))
		// READs and offsets go in the same order.
		for k := range f.current {
			f.read = append(f.read, b.Op(first+k))
		}
	}
	if err := rdma.Do(d.ep, b.As("look up"), kv.LocalTimeout); err != nil {
		return err
	}
	for i := range d.group {
		// In the order of the log, so that of equal records the first one stays named.
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
func (d *Digester) update(f *fresh) error {
	if f.blocks != nil {
		d.s.Space.Scatter(f.At, f.blocks, f.in)
	}
	// It is what Update replaces, set by its last call.
	var old kv.Found
	// The comparison is repeated if another task changes the index meanwhile.
	garbage, updated, err := f.index.Update(f.hash, f.At, func(at uint64) (index.Relation, error) {
		p, err := d.current(f, at)
		if errors.Is(err, rowan.ErrDamaged) {
			return index.OtherKey, nil
		}
		if err != nil {
			return index.OtherKey, err
		}
		e, ok := kv.ParseFound(at, p)
		switch {
		case !ok || string(e.Key) != string(f.Key):
			return index.OtherKey, nil
		// The term decides first, and then the version.
		case e.Before(f.Order):
			old = e
			return index.Older, nil
		}
		return index.AsNew, nil
	})
	if err != nil || !updated {
		return err
	}
	d.s.Space.Add(f.At, f.begin, kv.EntrySize(f.Length), f.Kind)
	// Its segment is freed when no reader holds the entry.
	if garbage != 0 {
		d.s.Space.Dead(garbage, d.s.SegmentOf(garbage), kv.EntrySize(old.Length), old.Kind)
	}
	return nil
}

// current returns the first block of an entry that the index names. It aliases a buffer of the
// group's READs. The error wraps rowan.ErrDamaged when the block is damaged.
func (d *Digester) current(f *fresh, at uint64) ([]byte, error) {
	// An offset that is named since the lookup was not READ with the group.
	k := slices.Index(f.current, at)
	if k < 0 {
		return d.s.ReadBlock(d.ep, at)
	}
	n, ok := d.s.Table.Verify(d.s.At(at), f.read[k].Buf)
	if d.reach = state.NextReach(d.reach, min(n, d.s.Opt.LongestMessage())); ok {
		return f.read[k].Buf[:n], nil
	}
	// Too little of it was READ.
	if n > len(f.read[k].Buf) {
		return d.s.ReadBlock(d.ep, at)
	}
	return nil, rowan.ErrDamaged
}

// Segment is a digested segment, with its records, and the last of each shard in it.
type Segment struct {
	rowan.Segment
	highest []highest
	records []state.Located
	// Other segments with blocks of entries that end in this one.
	others []int
}

// highest is the last record of a shard in a segment, by term and version.
type highest struct {
	shard int
	kv.Order
}

// Step digests all used segments. In between it steps the log, since digesting takes long.
func (d *Digester) Step() error {
	// It grants room, too, so senders wait for no digest.
	if err := d.in.Step(); err != nil {
		return err
	}
	d.moved = d.moved || d.in.Moved()
	d.s.Space.Starve(d.in.Starving())
	for seg, ok := d.in.Next(); ok; seg, ok = d.in.Next() {
		if err := d.digest(seg); err != nil {
			return err
		}
		if err := d.in.Step(); err != nil {
			return err
		}
	}
	return d.ahead()
}

// Commit finds the used segments that are committed: none of their records is above the CommitVer
// of its shard, by term and version. Records of a shard that the server does not have count as
// committed. It marks these segments durably, and offers them to cleaners.
//
// A received segment without a live entry may be cleaned, too, though it is not committed. The
// server gives of each key only what its index names, which is in other segments that are not
// committed. Such segments are full of what members gave each other as a term began, most of which
// each of them had. CommitVer waits for all of that to be on all replicas, and that waits for room.
// These segments are not marked as committed: after a crash the index may name their records
// instead of equal ones elsewhere, and then they must be given.
func (d *Digester) Commit() error {
	var all, dead []rowan.Segment
	d.used = slices.DeleteFunc(d.used, func(u Segment) bool {
		for _, h := range u.highest {
			if sh := d.s.Shards[h.shard]; sh.Index() != nil && !sh.Committed(h.Order) {
				// No index names its records, and give sends only what an index names.
				if d.s.Table.Owner(u.Segment).Received() && d.s.Space.IsDead(u.Index) {
					dead = append(dead, u.Segment)
					return true
				}
				return false
			}
		}
		all = append(all, u.Segment)
		return true
	})
	if len(all) > 0 {
		if err := d.s.Table.Commit(d.ep, all); err != nil {
			return err
		}
	}
	d.held = append(append(d.held, dead...), all...)
	d.offer()
	return nil
}

// offer offers segments to cleaners. These move the entries of several blocks that have one there,
// so all of these have to be known, and committed: none may end in a segment that is not.
func (d *Digester) offer() {
	var all []rowan.Segment
	d.held = slices.DeleteFunc(d.held, func(seg rowan.Segment) bool {
		needs := func(u Segment) bool { return slices.Contains(u.others, seg.Index) }
		if d.in.Begun(seg) || slices.ContainsFunc(d.used, needs) || slices.ContainsFunc(d.early, needs) {
			return false
		}
		all = append(all, seg)
		return true
	})
	d.s.Space.Offer(all)
}

// LendTo lets one remote log go on in a term, or none if term is 0. Segments that the writer leaves
// behind wait to be committed. With a ring there are no remote logs.
func (d *Digester) LendTo(log int, term uint64) error {
	left, err := d.in.(*rowan.Lender).Begin(log, term)
	for _, s := range left {
		u := d.takeEarly(s.Segment)
		d.Left(&u, s.Behind)
	}
	return err
}

// Moved reports whether senders have made progress since it was called last.
func (d *Digester) Moved() bool {
	moved := d.moved
	d.moved = false
	return moved
}

// Waits reports whether digested segments wait to be committed.
func (d *Digester) Waits() bool { return len(d.used) > 0 }

// Flushed reports whether the indexes name all entries that were taken.
func (d *Digester) Flushed() bool { return len(d.group) == 0 }

// Uncommitted returns the digested records that may not be on all replicas, of segments that are
// full, of segments that are not, and of more segments: those above CommitVer, by term and version.
// A server that has begun anew knows none before it settles a term, so it returns all. None of
// these segments is committed, so no cleaner frees them.
func (d *Digester) Uncommitted(more []Segment) (all []state.Located) {
	for _, list := range [][]Segment{d.used, d.early, more} {
		for _, u := range list {
			for _, r := range u.records {
				if sh := d.s.Shards[r.Shard]; sh.Index() != nil && !sh.Committed(r.Order) {
					all = append(all, r)
				}
			}
		}
	}
	return all
}

// Left hands over a segment to which nothing is added any more; behind is the address behind its
// last entry. If a log left it early, the free rest of it counts as garbage.
func (d *Digester) Left(u *Segment, behind rdma.Addr) {
	table := d.s.Table
	room := int64(table.End(table.Begin(u.Segment)).Offset()) - int64(behind.Offset())
	if room > kv.EntrySize(kv.RecordBytes+d.s.Opt.PairBytes) {
		d.s.Space.Place(u.Index, room)
	}
	if table.IsCommitted(u.Segment) {
		d.held = append(d.held, u.Segment)
		return
	}
	d.used = append(d.used, *u)
}
