package kv

import (
	"math/bits"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
)

// sweep drops tombstones of whose keys no older PUT is left in the segments of the node, nor can
// come: README.md says why that is enough. It goes by segments, one a step, first over all that are
// not free, then over those with tombstones.
type sweep struct {
	s        *Server
	ep       rdma.Endpoint
	scratch  []byte          // a segment's bytes
	tombs    []rowan.Segment // that had tombstones before the others are looked at: in these, they are dropped
	question uint64          // what readers had in hand before it; 0: passed by all
	held     []rowan.Segment // to look at
	dead     []uint64        // a bit for each entry that there is room for: set for those of keys that have a dead PUT
	salt     uint64          // so that keys have one bit in a sweep, and not in the next
	freed    uint64          // segments, when the last sweep began to look
}

func newSweep(s *Server, ep rdma.Endpoint, scratch []byte) *sweep {
	return &sweep{s: s, ep: ep, scratch: scratch, dead: make([]uint64, (s.o.strides()+63)/64)}
}

// step goes on by a segment, which it reports, if there are enough tombstones. Idle says that there
// is nothing to clean.
func (w *sweep) step(idle bool) (swept bool, err error) {
	switch {
	case w.question != 0:
		if w.s.quiet.all(w.question) {
			w.question, w.freed, w.held = 0, w.s.table.Freed(), w.s.table.Held()
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

// due reports whether enough segments were freed since the last sweep: before, most PUTs that held
// tombstones up are there yet. When PUTs find no segment, or DELs of others none, and nothing is
// left to clean, one is enough.
func (w *sweep) due(idle bool) bool {
	freed, enough := w.s.table.Freed()-w.freed, w.s.o.Log.Segments/4
	if idle && (w.s.table.Free() <= w.s.o.Keep || w.s.space.starves()) {
		enough = 1
	}
	return freed >= uint64(enough)
}

// begin begins with the next sweep, when there are enough tombstones: any, when others' DELs find
// no room.
func (w *sweep) begin() {
	tombs, n := w.s.space.entombed()
	enough := w.s.o.Tombs
	if w.s.space.starves() {
		enough = min(enough, 1)
	}
	if n < enough {
		return
	}
	w.tombs, w.question = tombs, w.s.quiet.ask()
	w.salt += 0x9e3779b97f4a7c15
	clear(w.dead)
}

// bit returns where the bit of keys with a hash is.
func (w *sweep) bit(hash uint64) (word *uint64, bit uint64) {
	n, _ := bits.Mul64(hash*(w.salt|1), uint64(64*len(w.dead)))
	return &w.dead[n/64], 1 << (n % 64)
}

// look notes which keys have a dead PUT in a segment.
func (w *sweep) look(seg rowan.Segment) error {
	return w.s.table.Peek(w.ep, seg, w.scratch, func(kind uint8, data []byte, at rdma.Addr) {
		r, ok := parseRecord(data)
		if !ok || kind != kindPut {
			return
		}
		hash := Hash(r.key)
		if _, live := w.s.shards[r.shard].naming(hash, at.Offset()); !live {
			word, bit := w.bit(hash)
			*word |= bit
		}
	})
}

// drop drops the tombstones in a segment, unless it is being cleaned.
func (w *sweep) drop(seg rowan.Segment) error {
	sp := w.s.space
	if !sp.take(seg) {
		return nil
	}
	defer sp.offer([]rowan.Segment{seg})
	return w.s.table.Scan(w.ep, seg, w.scratch, func(e *rowan.Entry) error {
		r, ok := parseRecord(e.Data)
		if !ok || e.Kind != kindDel {
			return nil
		}
		hash, at := Hash(r.key), e.Blocks[0].Offset()
		x, live := w.s.shards[r.shard].naming(hash, at)
		if !live || !w.s.may(r.shard) {
			return nil
		}
		if word, bit := w.bit(hash); *word&bit == 0 && x.Remove(hash, at) {
			sp.drop(at, seg.Index, entrySize(len(e.Data)))
		}
		return nil
	})
}

// may reports whether nothing older of a shard comes than what the server has: tombstones may be
// dropped.
func (s *Server) may(shard int) bool {
	t := s.adopted()
	return t != nil && s.known.isSettled(t.Term) && !t.incomplete(shard)
}
