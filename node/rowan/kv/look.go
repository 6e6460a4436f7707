package kv

import (
	"bytes"
	"encoding/binary"
	"errors"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rowan"
	"github.com/farkv/farkv/node/rowan/shards/cm"
)

// firstReach is how much of the first entry is READ: as much as persistent memory reads at a time.
const firstReach = 256

// lookUp reads what the index names for the key of a GET, or of a question of a migration's target.
func (w *worker) lookUp(o *op) error {
	o.seen, o.parts = o.index.Lookup(o.hash, o.seen[:0]), nil
	if len(o.seen) == 0 {
		return w.missed(o)
	}
	o.look = w.ep.Batch()
	w.s.readEntries(o.look, o.seen, max(w.reach, headBytes+len(o.key)))
	return w.look(o)
}

// look posts an op's READs, and goes on if they are complete.
func (w *worker) look(o *op) error {
	if err := w.ep.Post(o.look.As("look up")); err != nil || !o.look.Finished() {
		return err
	}
	return w.answerGet(o)
}

// readEntries adds READs of so many bytes of entries to a batch, or of as many as there are in
// their segments.
func (s *Server) readEntries(b *rdma.Batch, offsets []uint64, n int) {
	for _, at := range offsets {
		b.Read(s.at(at), int(min(uint64(n), s.table.End(s.at(at)).Offset()-at)))
	}
}

// answerGet answers a GET from what was READ, once that is found to be as it was sealed. The value
// may be older than what another GET returned meanwhile, since both are in progress.
func (w *worker) answerGet(o *op) error {
	b := o.look
	o.look = nil
	defer b.Release()
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
	case damaged > 0:
		return w.refuseDamaged(o, damaged)
	case f.at == 0:
		return w.missed(o)
	case f.parts == 1:
		return w.answerFound(o, f.kind, f.order, f.value)
	}
	if o.parts = w.s.space.blocks(f.at); o.parts == nil {
		return w.refuseDamaged(o, f.at)
	}
	o.look = w.ep.Batch()
	w.s.table.ReadBlocks(o.look, o.parts)
	return w.look(o)
}

// answerJoined answers a GET of an entry of several blocks, which another server has appended.
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

// answerFound answers a GET, or a migration's target, by the newest record of the key. The value is
// copied.
func (w *worker) answerFound(o *op, kind uint8, order order, value []byte) error {
	switch {
	case o.proc == ProcRoute:
		return w.answerRoute(o, kind, order, value)
	case kind == kindDel:
		return w.answer(o, StatusNotFound)
	}
	return w.end(o, o.r.Answer(StatusOK, value))
}

// refuseDamaged refuses an op whose key's entry may be one that is damaged. The manager hears of
// it.
func (w *worker) refuseDamaged(o *op, at uint64) error {
	w.s.damage(o.term, o.shard.number, at)
	return w.end(o, o.r.Answer(StatusDamaged, binary.LittleEndian.AppendUint64(nil, at)))
}

// match returns which of the entries that were READ is of a key; at 0: none is. More, if it is not
// 0, is how much is to be READ of them first. Damaged, if it is not 0, is where one is whose first
// block is not as it was sealed. It may be the key's, and the newest one: an older one may have
// been copied here since, which is named beside it. So the server does not know what the key has.
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

// reachOf returns how much of an entry is READ at first, when the last one had n bytes: as much, or
// a little less than before.
func reachOf(reach, n int) int { return reach + max(n-reach, (n-reach)/8) }

// damage notes for the manager that an entry of a shard is not as it was sealed, which a task has
// met in a term.
func (s *Server) damage(term uint64, shard int, at uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if term > s.damagedIn {
		s.damagedIn, s.damaged = term, nil
	}
	for _, d := range s.damaged {
		if d.Shard == shard {
			return
		}
	}
	if term == s.damagedIn {
		s.damaged = append(s.damaged, cm.Damage{Shard: shard, Offset: at})
	}
}

// damages returns what was noted in a term.
func (s *Server) damages(term uint64) []cm.Damage {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.damagedIn != term {
		return nil
	}
	return s.damaged
}

// readWhole reads the data of an entry that an index names, or named. The error wraps
// rowan.ErrDamaged when it is not as it was sealed, which is noted.
func (s *Server) readWhole(ep rdma.Endpoint, term uint64, shard int, at uint64) (kind uint8, data []byte, err error) {
	if blocks := s.space.blocks(at); blocks != nil {
		var whole rowan.Entry
		err = s.table.Assemble(ep, blocks, &whole)
		kind, data = whole.Kind, whole.Data
	} else if p, e := s.readBlock(ep, at); e == nil {
		kind, _ = rowan.Head(p)
		data = p[rowan.HeaderBytes:]
	} else {
		err = e
	}
	if errors.Is(err, rowan.ErrDamaged) {
		s.damage(term, shard, at)
	}
	return kind, data, err
}

// readBlock reads the first block of an entry. The error wraps rowan.ErrDamaged when it is not as
// it was sealed.
func (s *Server) readBlock(ep rdma.Endpoint, at uint64) (block []byte, err error) {
	p, err := rdma.ReadBytes(ep, "read head", s.at(at), rowan.HeaderBytes, patience)
	if err != nil {
		return nil, err
	}
	n, ok := s.table.Verify(s.at(at), p)
	if !ok && n > 0 && n <= s.o.message() {
		if p, err = rdma.ReadBytes(ep, "read entry", s.at(at), n, patience); err != nil {
			return nil, err
		}
		n, ok = s.table.Verify(s.at(at), p)
	}
	if !ok {
		return nil, rowan.ErrDamaged
	}
	return p[:n], nil
}

// Named returns where the blocks of the entries lie that the server's index names for a key, if it
// serves the key's shard: for tests that damage them.
func (s *Server) Named(key []byte) (all []rdma.Addr) {
	t, hash := s.adopted(), Hash(key)
	if t == nil || !t.leads(t.Find(hash)) {
		return nil
	}
	sh := s.shards[t.Find(hash)]
	x := sh.has()
	if x == nil || !sh.serving() {
		return nil
	}
	for _, at := range x.Lookup(hash, nil) {
		if blocks := s.space.blocks(at); blocks != nil {
			all = append(all, blocks...)
		} else {
			all = append(all, s.at(at))
		}
	}
	return all
}
