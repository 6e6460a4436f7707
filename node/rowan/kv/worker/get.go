package worker

import (
	"bytes"
	"encoding/binary"
	"errors"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan/kv"
	"github.com/farkv/farkv/node/rowan/kv/state"
)

// lookUp READs the entries that the index names for the key of a GET, or of a question of a
// migration's target.
func (w *Worker) lookUp(o *op) error {
	// The index names only what is on all replicas, so no answer shows a write that a crash may
	// undo.
	o.seen, o.parts = o.index.Lookup(o.hash, o.seen[:0]), nil
	// Nothing has the key's tag.
	if len(o.seen) == 0 {
		return w.missed(o)
	}
	// While it is in flight the worker passes no question of cleaners, so none of these segments is
	// freed.
	o.look = w.ep.Batch()
	w.s.ReadEntries(o.look, o.seen, max(w.reach, kv.HeadBytes+len(o.key)))
	return w.look(o)
}

// look posts the READs of an op, and continues at once if they are complete.
func (w *Worker) look(o *op) error {
	if err := w.ep.Post(o.look.As("look up")); err != nil || !o.look.Finished() {
		return err
	}
	return w.answerGet(o)
}

// answerGet answers a GET from what was READ, after the entry was verified. Another GET may have
// returned a newer value meanwhile. That is linearizable: both are in progress.
func (w *Worker) answerGet(o *op) error {
	b := o.look
	// From here on the function owns the batch.
	o.look = nil
	defer b.Release()
	// A new view ended the READs. The index may have changed, so the key is looked up again.
	if again, e := w.ended(b.Err()); again {
		return errors.Join(e, w.lookUp(o))
	}
	if err := b.Err(); err != nil {
		return err
	}
	// These READs were of the blocks of one entry, not of candidates.
	if o.parts != nil {
		return w.answerJoined(o, b)
	}
	// It aliases the batch, which is released at the end: Answer copies what it sends.
	f, more, damaged := w.match(b, o.seen, o.key)
	switch {
	case more > 0:
		o.look = w.ep.Batch()
		w.s.ReadEntries(o.look, o.seen, more)
		return w.look(o)
	// Even if another entry is of the key: see match.
	case damaged > 0:
		return w.refuseDamaged(o, damaged)
	case f.At == 0:
		return w.missed(o)
	case f.Parts == 1:
		return w.answerFound(o, f.Kind, f.Order, f.Value)
	}
	// The blocks lie apart: they are READ by their addresses.
	if o.parts = w.s.Space.Blocks(f.At); o.parts == nil {
		return w.refuseDamaged(o, f.At)
	}
	o.look = w.ep.Batch()
	w.s.Table.ReadBlocks(o.look, o.parts)
	return w.look(o)
}

// answerJoined answers a GET of an entry of several blocks, which another server has appended here.
func (w *Worker) answerJoined(o *op, b *rdma.Batch) error {
	// It verifies each block, and that all are of one entry.
	if err := w.s.Table.Join(b, o.parts, &w.entry); err != nil {
		return w.refuseDamaged(o, o.parts[0].Offset())
	}
	r, ok := kv.ParseRecord(w.entry.Data)
	if !ok || !bytes.Equal(r.Key, o.key) {
		return w.refuseDamaged(o, o.parts[0].Offset())
	}
	return w.answerFound(o, w.entry.Kind, r.Order, r.Value)
}

// answerFound answers a GET, or a question of a migration's target, with the newest record of the
// key. The answer is a copy of the value.
func (w *Worker) answerFound(o *op, kind uint8, order kv.Order, value []byte) error {
	switch {
	case o.proc == kv.ProcRoute:
		return w.answerRoute(o, kind, order, value)
	case kind == kv.Del:
		return w.answer(o, kv.StatusNotFound)
	}
	return w.end(o, o.r.Answer(kv.StatusOK, value))
}

// refuseDamaged refuses an op that needs an entry which is damaged, and notes that for the manager.
// The answer has the entry's offset.
func (w *Worker) refuseDamaged(o *op, at uint64) error {
	// The server reports it with its next answer to the manager.
	w.s.Damage.Note(o.term, o.shard.Number, at)
	return w.end(o, o.r.Answer(kv.StatusDamaged, binary.LittleEndian.AppendUint64(nil, at)))
}

// match finds the entry of a key among those that were READ. If f.at is 0, none is of the key. If
// more is not 0, the caller must READ that many bytes of each first. If damaged is not 0, it is the
// offset of a damaged entry, which may be the key's newest: an older one may have been copied here
// since, and be named beside it. So it is not known what the key has.
func (w *Worker) match(b *rdma.Batch, seen []uint64, key []byte) (f kv.Found, more int, damaged uint64) {
	for i, at := range seen {
		p := b.Op(i).Buf
		// n is the length that the header says, which is to be trusted only if ok.
		n, ok := w.s.Table.Verify(w.s.At(at), p)
		switch {
		case ok:
			if g, ok := kv.ParseFound(at, p[:n]); ok && bytes.Equal(g.Key, key) {
				f = g
				f.Value, f.Parts = p[kv.HeadBytes+len(key):n], w.s.Table.Parts(w.s.At(at), p)
				w.reach = state.NextReach(w.reach, n)
			}
		// It may be whole: too little of it was READ.
		case n > len(p) && n <= w.s.Opt.LongestMessage():
			more = max(more, n)
		default:
			return kv.Found{}, 0, at
		}
	}
	return f, more, 0
}
