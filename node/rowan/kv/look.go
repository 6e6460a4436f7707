package kv

import (
	"bytes"
	"encoding/binary"
	"errors"

	"github.com/farkv/farkv/node/rdma"
)

// lookUp READs the entries that the index names for the key of a GET, or of a question of a
// migration's target.
func (w *worker) lookUp(o *op) error {
	o.seen, o.parts = o.index.Lookup(o.hash, o.seen[:0]), nil
	if len(o.seen) == 0 {
		return w.missed(o)
	}
	o.look = w.ep.Batch()
	w.s.readEntries(o.look, o.seen, max(w.reach, headBytes+len(o.key)))
	return w.look(o)
}

// look posts the READs of an op, and continues at once if they are complete.
func (w *worker) look(o *op) error {
	if err := w.ep.Post(o.look.As("look up")); err != nil || !o.look.Finished() {
		return err
	}
	return w.answerGet(o)
}

// answerGet answers a GET from what was READ, after the entry was verified. Another GET may have
// returned a newer value meanwhile. That is linearizable: both are in progress.
func (w *worker) answerGet(o *op) error {
	b := o.look
	o.look = nil
	defer b.Release()
	// A new view ended the READs. The index may have changed, so the key is looked up again.
	if again, e := w.ended(b.Err()); again {
		return errors.Join(e, w.lookUp(o))
	}
	if err := b.Err(); err != nil {
		return err
	}
	if o.parts != nil {
		return w.answerJoined(o, b)
	}
	f, more, damaged := w.match(b, o.seen, o.key)
	switch {
	case more > 0:
		o.look = w.ep.Batch()
		w.s.readEntries(o.look, o.seen, more)
		return w.look(o)
	// Even if another entry is of the key: see match.
	case damaged > 0:
		return w.refuseDamaged(o, damaged)
	case f.at == 0:
		return w.missed(o)
	case f.parts == 1:
		return w.answerFound(o, f.kind, f.order, f.value)
	}
	// The blocks lie apart: they are READ by their addresses.
	if o.parts = w.s.space.blocks(f.at); o.parts == nil {
		return w.refuseDamaged(o, f.at)
	}
	o.look = w.ep.Batch()
	w.s.table.ReadBlocks(o.look, o.parts)
	return w.look(o)
}

// answerJoined answers a GET of an entry of several blocks, which another server has appended here.
func (w *worker) answerJoined(o *op, b *rdma.Batch) error {
	if err := w.s.table.Join(b, o.parts, &w.entry); err != nil {
		return w.refuseDamaged(o, o.parts[0].Offset())
	}
	r, ok := parseRecord(w.entry.Data)
	if !ok || !bytes.Equal(r.key, o.key) {
		return w.refuseDamaged(o, o.parts[0].Offset())
	}
	return w.answerFound(o, w.entry.Kind, r.order, r.value)
}

// answerFound answers a GET, or a question of a migration's target, with the newest record of the
// key. The answer is a copy of the value.
func (w *worker) answerFound(o *op, kind uint8, order order, value []byte) error {
	switch {
	case o.proc == ProcRoute:
		return w.answerRoute(o, kind, order, value)
	case kind == kindDel:
		return w.answer(o, StatusNotFound)
	}
	return w.end(o, o.r.Answer(StatusOK, value))
}

// refuseDamaged refuses an op that needs an entry which is damaged, and notes that for the manager.
// The answer has the entry's offset.
func (w *worker) refuseDamaged(o *op, at uint64) error {
	w.s.damage.note(o.term, o.shard.number, at)
	return w.end(o, o.r.Answer(StatusDamaged, binary.LittleEndian.AppendUint64(nil, at)))
}

// match finds the entry of a key among those that were READ. If f.at is 0, none is of the key. If
// more is not 0, the caller must READ that many bytes of each first. If damaged is not 0, it is the
// offset of a damaged entry, which may be the key's newest: an older one may have been copied here
// since, and be named beside it. So it is not known what the key has.
func (w *worker) match(b *rdma.Batch, seen []uint64, key []byte) (f found, more int, damaged uint64) {
	for i, at := range seen {
		p := b.Op(i).Buf
		n, ok := w.s.table.Verify(w.s.at(at), p)
		switch {
		case ok:
			if g, ok := parseFound(at, p[:n]); ok && bytes.Equal(g.key, key) {
				f = g
				f.value, f.parts = p[headBytes+len(key):n], w.s.table.Parts(w.s.at(at), p)
				w.reach = reachOf(w.reach, n)
			}
		case n > len(p) && n <= w.s.o.message():
			more = max(more, n)
		default:
			return found{}, 0, at
		}
	}
	return f, more, 0
}
