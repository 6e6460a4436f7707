package extendible

import (
	"github.com/farkv/farkv/client/race"
	"github.com/farkv/farkv/node/rdma"
)

// scanAtOnce is about how many blocks are looked at in a trip.
const scanAtOnce = 128

// scan lists what is free in chunks of the worker's, and returns how much it
// found. What is free stays so, since only the worker makes a slot name it.
func (m *memory) scan(chunks []*chunk) (found int, err error) {
	each := max(scanAtOnce/m.perChunk(), 1)
	for from := 0; from < len(chunks); from += each {
		m.stats.Scans++
		free, err := m.unnamed(chunks[from:min(from+each, len(chunks))], false)
		if err != nil {
			return found, err
		}
		for _, b := range free {
			m.push(b)
		}
		found += len(free)
	}
	m.stats.Found += uint64(found)
	return found, nil
}

// scanned is a block that is looked at: its header, and where its key's slots
// were read.
type scanned struct {
	block
	// whole: the block has a header. Otherwise no slot ever named it.
	whole bool
	hash  uint64
	in    subtable
	// view is both buckets, or slot the one slot where the worker has put the
	// pair.
	view race.View
	slot *rdma.Op
	// look is the look at the key's subtable, behind those READs.
	look *rdma.Op
}

// unnamed returns the blocks of chunks that no slot names, of those that are used as far as the
// worker knows. The list is valid until the next scan. The chunks are the worker's, or those of a
// client of which nothing is in flight. What that client has proposed is taken away; thorough:
// all of it, else only what is found at once.
//
// It takes three trips: headers, the slots of their keys, and the looks. The
// looks come last, since they say whether the slots were part of the index when
// they were read. Blocks of one subtable share a look.
func (m *memory) unnamed(chunks []*chunk, thorough bool) (free []block, err error) {
	looked, err := m.readHeaders(chunks)
	if err != nil {
		return nil, err
	}
	b := m.ep.Batch()
	defer m.trips.Drop(b)
	// The slots that may name each block are READ in one trip: one slot for a
	// pair that the worker has put there, and both buckets for others.
	for i := range looked {
		x := &looked[i]
		if !x.whole {
			continue
		}
		if x.in, err = m.directory.find(x.hash); err != nil {
			return nil, err
		}
		if o := x.memo(); o.known {
			x.slot = b.Read(m.subtableAt(x.in.place).Add(o.slot.Offset()), 8)
			continue
		}
		at := m.index.Locate(x.hash)
		x.view = at.ReadAt(b, m.subtableAt(x.in.place))
	}
	if err := m.trips.Do(stepScanSlots, b); err != nil {
		return nil, err
	}
	// The looks are READ when the slots are complete, since they lie on other
	// nodes than these. Blocks of one subtable share a look.
	looks := m.ep.Batch()
	defer m.trips.Drop(looks)
	// A look says the same of all blocks of its subtable, so it is READ once.
	clear(m.looks)
	for i := range looked {
		if x := &looked[i]; x.whole {
			if x.look = m.looks[x.in]; x.look == nil {
				x.look = m.directory.look(looks, x.in.suffix)
				m.looks[x.in] = x.look
			}
		}
	}
	if err := m.trips.Do(stepScanSlots, looks); err != nil {
		return nil, err
	}
	// Which blocks are free is decided behind both trips, so nothing is listed
	// if one of them fails.
	free = m.found[:0]
	for i := range looked {
		ok, err := m.isFree(&looked[i], thorough)
		if err != nil {
			return nil, err
		}
		if ok {
			free = append(free, looked[i].block)
		}
	}
	m.found = free
	return free, nil
}

// readHeaders reads the headers of chunks' blocks, except those that the worker
// remembers. A torn header was never named: its WRITE is complete before a slot
// names the block.
func (m *memory) readHeaders(chunks []*chunk) ([]scanned, error) {
	b := m.ep.Batch()
	defer m.trips.Drop(b)
	looked := m.looked[:0]
	for _, c := range chunks {
		for i := range m.perChunk() {
			// The worker knows what this block is used for.
			if c.blocks != nil && c.blocks[i] != blockUsed {
				continue
			}
			x := scanned{block: block{chunk: c, i: i, number: m.blockOf(c.Node, c.Index, i)}}
			if o := x.memo(); o.known {
				x.whole, x.hash, x.tag = true, o.hash, o.tag+1
			} else {
				b.Read(m.blockAt(x.number), pairHeader)
			}
			looked = append(looked, x)
		}
	}
	m.looked = looked
	if err := m.trips.Do(stepScanHeaders, b); err != nil {
		return nil, err
	}
	read := 0
	for i := range looked {
		x := &looked[i]
		if x.memo().known {
			continue
		}
		op := b.Op(read)
		read++
		w, hash, whole := decodeHeader(op.Buf)
		if whole && m.block(w) == x.number {
			x.whole, x.hash = true, hash
		}
		// The tag goes on from what is there, even if the header is torn: the
		// WRITE that tore may have been of that use.
		x.tag = m.tag(word(op.Word(1))) + 1
	}
	return looked, nil
}

// memo returns what the worker remembers of where the block's pair is.
func (x *scanned) memo() memo {
	if x.chunk.memos == nil {
		return memo{}
	}
	return x.chunk.memos[x.i]
}

// isFree reports whether no slot names a block. It returns false, too, if a
// rehash may be moving the key. It takes away what the block's client has
// proposed; thorough: even if the key may be moving.
func (m *memory) isFree(x *scanned, thorough bool) (bool, error) {
	if !x.whole {
		return true, nil
	}
	// The slots were read, but the key may be elsewhere: the block counts as used
	// until the next scan.
	if m.directory.judge(x.look, x.in, x.hash) != valid {
		m.directory.forget(x.in.suffix)
		if thorough {
			return false, m.directory.clear(x.hash, x.number)
		}
		return false, nil
	}
	// The operation that has put the pair there has ended, so the slot has the
	// live word, or another one.
	if x.slot != nil {
		w := word(x.slot.Word(0))
		return w.empty() || m.block(w) != x.number, nil
	}
	var words [race.Candidates]race.Word
	x.view.Words(&words)
	for _, w := range words {
		if m.block(word(w)) != x.number || w.Empty() {
			continue
		}
		if word(w).kind() == live {
			return false, nil
		}
		// The block's client is the worker, with no operation at work on it, or
		// is gone. So a proposal is left over, and never becomes live.
		return true, m.directory.clear(x.hash, x.number)
	}
	return true, nil
}

// named reports whether an entry of the directory names memory of a subtable. The
// client that has the memory is the worker, or is gone, so no other client makes
// an entry name it now.
func (d *directory) named(place uint64) (bool, error) {
	b := d.ep.Batch()
	op := b.Read(d.subtableAt(place), race.HeaderBytes)
	err := d.trips.Do(stepReadSubtable, b)
	// A subtable's memory says in its first word to which suffix it belongs, or
	// was to belong.
	h := race.Header(op.Word(0))
	d.trips.Drop(b)
	if err != nil || h.Suffix() >= 1<<d.Depth {
		return false, err
	}
	// The entry is read anew: what the client knows of it may be of before the
	// memory was claimed.
	in, err := d.load(h.Suffix())
	if isAbsent(err) {
		return false, nil
	}
	return err == nil && in.place == place, err
}
