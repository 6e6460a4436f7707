package clean

import (
	"math/bits"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/node/rowan/kv/state"
)

// sweep drops tombstones of keys without an older PUT in any segment of the node, if no such PUT
// can come any more. README.md says why that is enough ("Tombstones"). It takes one segment a step:
// first all that are not free, to find dead PUTs, and then those with tombstones.
//
// The order is what makes it safe. The tombstones are noted first. Then each reader passes a
// question, so that no copy is under way of a PUT that was looked up before the tombstone was. Then
// all segments are examined that are not free: an older PUT of a key lies in one of them or
// nowhere, since it was appended ahead of the DEL, and what an earlier use of a segment left does
// not verify. Only then the noted tombstones are dropped, of keys without such a PUT. A crash in
// the middle loses the sweep, and nothing else.
type sweep struct {
	s       *state.Server
	ep      rdma.Endpoint
	scratch []byte // a segment's bytes
	// Segments that had tombstones before the others are examined. Only tombstones in these are
	// dropped.
	tombs []rowan.Segment
	// Readers must pass it before segments are examined; 0: all have.
	question uint64
	// Segments that are not examined yet.
	held []rowan.Segment
	// A bit for each entry that there is room for. The bits of all keys that have a dead PUT are
	// set. Two keys may share a bit.
	dead []uint64
	// Changes with each sweep, so that two keys that share a bit in one sweep do not in the next.
	salt uint64
	// Segments that were freed when the last sweep began to examine segments: see
	// rowan.Table.Freed.
	freed uint64
}

func newSweep(s *state.Server, ep rdma.Endpoint, scratch []byte) *sweep {
	return &sweep{s: s, ep: ep, scratch: scratch, dead: make([]uint64, (s.Opt.Strides()+63)/64)}
}

// step goes on by one segment, and reports whether it did. A sweep begins if there are enough
// tombstones. idle says that there is nothing to clean.
func (w *sweep) step(idle bool) (swept bool, err error) {
	switch {
	case w.question != 0:
		// The tombstones were noted before the question. Once all readers have passed it, no copy
		// is under way of a PUT that was looked up before.
		// Held also has the segments that are being filled.
		if w.s.Quiet.All(w.question) {
			w.question, w.freed, w.held = 0, w.s.Table.Freed(), w.s.Table.Held()
		}
		return false, nil
	case len(w.held) > 0:
		err = w.look(w.held[0])
		w.held = w.held[1:]
		return true, err
	case len(w.tombs) > 0:
		err = w.drop(w.tombs[0])
		w.tombs = w.tombs[1:]
		return true, err
	case w.due(idle):
		w.begin()
	}
	return false, nil
}

// due reports whether enough segments were freed since the last sweep: otherwise most of the PUTs
// that keep tombstones are still there. One is enough when nothing is left to clean and PUTs, or
// DELs of other servers, find no segment.
func (w *sweep) due(idle bool) bool {
	freed, enough := w.s.Table.Freed()-w.freed, w.s.Opt.Log.Segments/4
	if idle && (w.s.Table.Free() <= w.s.Opt.Log.Own || w.s.Space.Starves()) {
		enough = 1
	}
	return freed >= uint64(enough)
}

// begin begins a sweep if there are enough tombstones. Any number is enough while DELs of other
// servers find no room.
func (w *sweep) begin() {
	tombs, n := w.s.Space.Entombed()
	enough := w.s.Opt.Tombs
	if w.s.Space.Starves() {
		enough = min(enough, 1)
	}
	if n < enough {
		return
	}
	w.tombs, w.question = tombs, w.s.Quiet.Ask()
	w.salt += 0x9e3779b97f4a7c15
	// Bits of the sweep before say nothing of what is dead now.
	clear(w.dead)
}

// bit returns the word and the bit of the keys with a hash.
func (w *sweep) bit(hash uint64) (word *uint64, bit uint64) {
	n, _ := bits.Mul64(hash*(w.salt|1), uint64(64*len(w.dead)))
	return &w.dead[n/64], 1 << (n % 64)
}

// look sets the bits of the keys that have a dead PUT in a segment: one that no current index
// names.
func (w *sweep) look(seg rowan.Segment) error {
	return w.s.Table.Peek(w.ep, seg, w.scratch, func(kind uint8, data []byte, at rdma.Addr) {
		r, ok := kv.ParseRecord(data)
		if !ok || kind != kv.Put {
			return
		}
		hash := kv.Hash(r.Key)
		if _, live := w.s.Shards[r.Shard].Naming(hash, at.Offset()); !live {
			word, bit := w.bit(hash)
			*word |= bit
		}
	})
}

// drop drops the tombstones in a segment of keys without a dead PUT. It leaves out a segment that
// is being cleaned.
func (w *sweep) drop(seg rowan.Segment) error {
	sp := w.s.Space
	if !sp.Take(seg) {
		return nil
	}
	// A cleaner may take it as soon as it is offered again.
	defer sp.Offer([]rowan.Segment{seg})
	return w.s.Table.Scan(w.ep, seg, w.scratch, func(e *rowan.Entry) error {
		r, ok := kv.ParseRecord(e.Data)
		if !ok || e.Kind != kv.Del {
			return nil
		}
		hash, at := kv.Hash(r.Key), e.Blocks[0].Offset()
		x, live := w.s.Shards[r.Shard].Naming(hash, at)
		if !live || !w.s.MayDrop(r.Shard) {
			return nil
		}
		if word, bit := w.bit(hash); *word&bit == 0 && x.Remove(hash, at) {
			sp.Drop(at, seg.Index, kv.EntrySize(len(e.Data)))
		}
		return nil
	})
}
