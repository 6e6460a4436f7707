package recovery

import (
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/fusee/layout"
	"github.com/farkv/farkv/client/fusee/session"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// Restore copies to a spare all that a node held, from the replicas that are left, so that every
// item has as many replicas as before. Everything gets the same place on the spare as on the
// node. The view is busy: no client writes. A crash leaves a spare with part of it, which no
// client reads, and which the next master writes again from the beginning.
//
// The words of the index are written, not CASed, since no atomic changes them before the spare
// joins. What bitmaps hold are hints for the owner of a block, which it finds on the primary
// replica only: they are not copied.
//
// The error wraps client.ErrDamaged when the node held the last replica of something.
func (m *Recoverer) Restore(v rdma.View, dead, spare int) error {
	m.s.View.Enter(v)
	if err := m.losses(&v, dead); err != nil {
		return fmt.Errorf("restore node %d on node %d: %w", dead, spare, err)
	}
	// A stand-in has the places of the node that it replaced.
	original := v.Original(dead)
	if err := m.copyJournals(spare); err != nil {
		return fmt.Errorf("restore node %d on node %d: journals: %w", dead, spare, err)
	}
	// A subtable that the index does not have yet is written by the split that adds it.
	for sub, place := range m.s.Original.Index[:len(m.s.Index.Place)] {
		if i, ok := kit.IndexOn(place, original); ok {
			if err := m.copySubtable(sub, spare, i); err != nil {
				return fmt.Errorf("restore node %d on node %d: subtable %d: %w", dead, spare, sub, err)
			}
		}
	}
	for g, place := range m.s.Original.Space {
		if i, ok := kit.IndexOn(place, original); ok {
			if err := m.copyRegion(g, spare, i); err != nil {
				return fmt.Errorf("restore node %d on node %d: region %d: %w", dead, spare, g, err)
			}
		}
	}
	return nil
}

// losses returns an error for a node that had the last replica of some item: on the spare the
// item would seem to be there, and be empty.
func (m *Recoverer) losses(v *rdma.View, dead int) error {
	original := v.Original(dead)
	for sub, place := range m.s.Original.Index[:len(m.s.Index.Place)] {
		// An item of the dead node that has no replica in the view is lost.
		if _, ok := kit.IndexOn(place, original); ok && m.s.IsLost(m.s.Index.Place[sub]) {
			return fmt.Errorf("subtable %d had its last replica there: %w", sub, client.ErrDamaged)
		}
	}
	for g, place := range m.s.Original.Space {
		if _, ok := kit.IndexOn(place, original); ok && m.s.IsLost(m.s.Space.Place[g]) {
			return fmt.Errorf("region %d had its last replica there: %w", g, client.ErrDamaged)
		}
	}
	return nil
}

// copyRange copies n bytes, of whole words, from one node to another.
func (m *Recoverer) copyRange(from, to rdma.Addr, n uint64) error {
	c := kit.Copier{Batch: m.s.Endpoint.Batch, Do: func(b *rdma.Batch) error { return m.s.Do(session.StepCopy, b) }}
	if err := c.Copy(from, to, n); err != nil {
		return err
	}
	return c.Flush()
}

// copyJournals copies one node's journals to the spare, with the ceilings and the index's size.
// The dead node's journals are lost. None is missed: what they name lies on another node, too, or
// nowhere, and no round of theirs is open in this view.
func (m *Recoverer) copyJournals(spare int) error {
	return m.copyRange(rdma.At(m.s.Holders[0], m.s.Journals), rdma.At(spare, m.s.Journals),
		uint64(m.s.Clients)*layout.JournalBytes+layout.SizeBytes)
}

// copySubtable copies a subtable to its place on the spare, which backs it with memory: those by
// which the index grew are not backed yet. All replicas of its slots are equal: Mend came first.
func (m *Recoverer) copySubtable(sub, spare, index int) error {
	if err := m.back(node.Replica{Node: spare, Index: index}); err != nil {
		return err
	}
	size := race.SubtableBytes(m.s.Groups)
	to := rdma.At(spare, m.s.Index.Base+uint64(index)*size)
	return m.copyRange(m.s.Index.Address(m.s.FirstSlot(sub), 0), to, size)
}

// copyRegion copies the blocks that are in use. Each is recorded on the spare first, which backs
// it with memory. A block that an earlier attempt has recorded gets the primary's entry again,
// also when that is free now. A crash leaves a recorded block with part of its bytes, on a spare
// that no client reads.
func (m *Recoverer) copyRegion(g, spare, index int) error {
	base := m.s.Space.Base + uint64(index)*m.s.Space.RegionBytes
	table := m.s.Batch()
	defer table.Release()
	// The primary's table, and what an earlier attempt has left on the spare.
	op := table.Read(m.s.Space.Table(g, 0), m.s.Space.Blocks()*8)
	there := table.Read(rdma.At(spare, base), m.s.Space.Blocks()*8)
	if err := m.s.Do(session.StepCopy, table); err != nil {
		return err
	}
	for i := range m.s.Space.Blocks() {
		entry, before := layout.LE.Uint64(op.Buf[8*i:]), layout.LE.Uint64(there.Buf[8*i:])
		// The block is free on both nodes.
		if entry == 0 && before == 0 {
			continue
		}
		from := m.s.Space.Bitmap(node.Block{Region: g, Index: i}, 0)
		to := rdma.At(spare, base+from.Offset()-m.s.Space.Table(g, 0).Offset())
		q := rdma.Request{Step: session.StepCopy, Proc: node.ProcRecord, Arg: [6]uint64{
			base + uint64(i)*8, before, entry, to.Offset(), m.s.BlockBytes}}
		if err := m.s.Call(spare, &q, m.s.OpTimeout); err != nil {
			return fmt.Errorf("record block %d: %w", i, err)
		}
		// The bitmap is left out: hints are not copied.
		skip := m.s.Space.BitmapBytes()
		if err := m.copyRange(from.Add(skip), to.Add(skip), m.s.BlockBytes-skip); err != nil {
			return fmt.Errorf("block %d: %w", i, err)
		}
	}
	return nil
}
