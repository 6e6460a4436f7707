package original

import (
	"errors"
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
)

// fresh is what an operation has taken from the client's memory, and the tree may
// name by now, and what the operation takes out of the tree.
type fresh struct {
	// block is that of the new value; 0: it has none.
	block pointer
	// replaces is that of the old value.
	replaces pointer
	// claimed is that of the value of a pair that is deleted.
	claimed pointer
	// tree is the new node of a split; no child: there is none.
	tree separator
}

// separator is an entry that an internal node of a level lacks.
type separator struct {
	// level is that of the internal node, key the lowest key of the child.
	level int
	key   []byte
	// child is the new node. Its generation is that of its word, for the mark.
	child pointer
}

// lockLeaf locks the leaf of a key. If the key has moved to a sibling meanwhile,
// it goes on there. A leaf that is locked is whole, and all of its slots are
// steady: the holder before has written it back, or it was mended.
func (s *Store) lockLeaf(key []byte, op operation, kind int) (leaf, error) {
	// The node may be to the left of the right one: the fences of the locked node
	// decide.
	r, err := s.find(key, 0)
	for err == nil {
		var p []byte
		if p, err = s.lock(r, op, kind); err != nil {
			break
		}
		l, ok := s.readLeaf(p, r)
		switch {
		case !ok || !l.allSteady() || !l.beyond(key) && !l.has(key):
			return l, errors.Join(fmt.Errorf("leaf %v, which is locked, is not whole, or not that of %.40q: %w", r,
				key, client.ErrDamaged), s.unlock())
		case !l.beyond(key):
			return l, nil
		}
		// The leaf was split before it was locked. The lock on it goes first: a
		// worker holds one at a time.
		r = s.hop(l.sibling)
		err = s.unlock()
	}
	return leaf{}, err
}

// write runs a write of a key until it is done. It begins by settling what an
// earlier operation has left. When a try fails in its midst, the outcome is
// settled at once, if possible: try is not run again on an operation that took
// effect.
func (s *Store) write(what string, key, value []byte, try func(key, value []byte) (done bool, err error)) error {
	err := s.begin(key, value)
	if err == nil {
		err = s.settle()
	}
	// settle looks for the key in the leaf if the outcome of a write-back is
	// unknown.
	s.key = key
	for done := false; err == nil && !done; {
		// Jobs of earlier operations go on in the background. What fails is done
		// again.
		_ = s.work(false)
		s.fresh = fresh{}
		if done, err = try(key, value); err == nil || errors.Is(err, client.ErrUncertain) && !s.unresolved.open {
			continue
		}
		if s.unresolved.open {
			did := done
			done, err = s.settled(err)
			// What took effect may be an older separator, which came before the write.
			done = done && (did || s.unresolved.word.op() != opAdopt)
		} else {
			s.unused()
		}
		// An INSERT of which the separator is uncertain took effect.
		if err != nil && !s.unresolved.open && !errors.Is(err, client.ErrUncertain) && s.rejoin(err) {
			err = nil
		}
	}
	if err != nil {
		return fmt.Errorf("%s: %w", what, err)
	}
	return nil
}

// settled settles an operation that failed in its midst, at once if it can. done:
// it took effect. If it cannot, others may wait for what it has left, so the
// error wraps client.ErrUncertain, even if nothing was changed.
func (k *locker) settled(err error) (done bool, _ error) {
	if errors.Is(err, rdma.ErrStale) {
		_ = k.view.Join()
	}
	if cause := k.settle(); cause != nil {
		return false, fmt.Errorf("%w: %w", client.ErrUncertain, err)
	}
	if k.unresolved.done {
		return true, nil
	}
	return false, err
}

// unused gives what an operation has taken, and not used, back to the client.
func (k *locker) unused() {
	// No slot has named it, so it needs no quarantine.
	if p := k.fresh.block; p != 0 {
		k.keepOwn(&k.blocks, p, 0)
	}
	if p := k.fresh.tree.child; p != 0 {
		k.keepOwn(&k.trees, p, 0)
	}
	// The pair is still there, so its block becomes linked again.
	if p := k.fresh.claimed; p != 0 {
		k.later(job{a: &k.blocks, mark: p})
	}
	k.fresh = fresh{}
}

// used plans the jobs for what the tree names by now, or does not name any more.
// The block that was replaced is taken before the new one is marked: as long as
// the new one names its client, it is the record of what it replaced.
func (k *locker) used(f *fresh) {
	switch {
	case f.block != 0 && f.replaces != 0:
		k.later(job{a: &k.blocks, take: f.replaces, mark: f.block})
	case f.block != 0:
		k.later(job{a: &k.blocks, mark: f.block})
	case f.claimed != 0:
		k.later(job{a: &k.blocks, take: f.claimed, claimed: true})
	}
	if f.tree.child != 0 {
		k.pending = append(k.pending, f.tree)
	}
	*f = fresh{}
}

// Insert implements client.Store.
func (s *Store) Insert(key, value []byte) error { return s.write("insert", key, value, s.tryInsert) }

// insert writes one free slot of the leaf (section 4.4), or splits the leaf. It
// takes effect when the slot's last word is written.
func (s *Store) insert(key, value []byte) (bool, error) {
	word, kind := uint64(0), slotBeside
	if len(value) <= Inline {
		word, kind = inlineWord(value)
	}
	l, err := s.lockLeaf(key, opInsert, kind)
	if err != nil {
		return false, err
	}
	// The leaf is locked, so this holds until it is released.
	if l.find(key) >= 0 {
		return s.refuse(client.ErrExists)
	}
	// A slot of a pair that a split has moved counts as free, too.
	slot := l.free()
	// There is a separator of an earlier split, which its parent waits for.
	if slot < 0 && len(s.pending) > 0 {
		if err := s.unlock(); err != nil {
			return false, err
		}
		return false, s.adoptPending()
	}
	b := s.ep.Batch()
	if kind == slotBeside {
		if word, err = s.addBlock(b, &l, 0, key, value); err != nil {
			return s.giveUp(b, err)
		}
	}
	if slot < 0 {
		if err := s.splitLeaf(b, &l, key, kind, word); err != nil {
			return s.giveUp(b, err)
		}
	} else {
		// The slot was free, so a reader that finds it torn finds no pair that it
		// would miss.
		s.addSlot(b, &l, slot, key, kind, word)
	}
	if err := s.writeBack(b); err != nil {
		return false, err
	}
	// The INSERT is done. Its separator is no part of it.
	return true, s.adoptSplit(slot < 0)
}

// adoptSplit inserts the separators of a split. If it cannot, readers follow the
// sibling: the INSERT is done, and the worker's next split tries again. If it
// leaves a lock, the worker must not be used before that is settled.
func (s *Store) adoptSplit(split bool) error {
	if !split {
		return nil
	}
	err := s.adoptPending()
	if err == nil {
		return nil
	}
	s.stats.Lagging++
	if !s.unresolved.open {
		return nil
	}
	return fmt.Errorf("insert the separator of a split: %w: %w", client.ErrUncertain, err)
}

// refuse ends an operation that changes nothing, with an answer.
func (s *Store) refuse(answer error) (bool, error) {
	if err := s.unlock(); err != nil {
		return false, err
	}
	return false, answer
}

// giveUp ends an operation that changed nothing, after an error. A write to
// another memory node may be in flight, which is unresolved then.
func (s *Store) giveUp(b *rdma.Batch, err error) (bool, error) {
	b.Release()
	if s.unresolved.open {
		return false, err
	}
	return false, errors.Join(err, s.unlock())
}

// addSlot adds the WRITE of a slot.
func (s *Store) addSlot(b *rdma.Batch, l *leaf, slot int, key []byte, kind int, word uint64) {
	p := b.Alloc(s.slot)
	s.writeSlot(p, l.r, l.version, key, kind, word)
	b.Write(s.trees.at(l.r).Add(uint64(l.offset(slot))), p)
}

// addBlock writes a value beside a leaf, before what names it: in the same
// doorbell if both are on one memory node, and else in a trip of its own. A crash
// leaves a block in the client's name that no entry names, or one that an entry
// names.
func (s *Store) addBlock(b *rdma.Batch, l *leaf, replaces pointer, key, value []byte) (uint64, error) {
	p, err := s.take(&s.blocks, l.r.node())
	if err != nil {
		return 0, err
	}
	// From here on the block is the operation's, whatever becomes of it.
	s.fresh.block, s.fresh.replaces = p, replaces
	buf := s.writeBlock(b.Alloc(s.blockBytes), p, replaces, key, value)
	// The queue pair executes verbs to one node in order: the block is there
	// before the slot that names it.
	if p.ref().node() == l.r.node() {
		b.Write(s.blocks.at(p.ref()), buf)
		return uint64(p), nil
	}
	return uint64(p), s.writeFar(s.blocks.at(p.ref()), buf)
}

// writeFar writes to another memory node than that of the node that is locked,
// and waits: only verbs to one node are executed in order.
func (s *Store) writeFar(at rdma.Addr, p []byte) error {
	b := s.ep.Batch()
	b.WriteCopy(at, p)
	if err := s.do(stepWriteFar, b); err != nil {
		return s.failed(b, err)
	}
	b.Release()
	return nil
}

// Update implements client.Store.
func (s *Store) Update(key, value []byte) error { return s.write("update", key, value, s.tryUpdate) }

// update writes a slot in place. A value that lies beside its leaf stays there,
// however short it becomes. So if only one word of a slot was written, the lock
// says what the slot was to become.
func (s *Store) update(key, value []byte) (bool, error) {
	word, kind := uint64(0), slotBeside
	if len(value) <= Inline {
		word, kind = inlineWord(value)
	}
	l, err := s.lockLeaf(key, opUpdate, kind)
	if err != nil {
		return false, err
	}
	slot := l.find(key)
	if slot < 0 {
		return s.refuse(client.ErrNotFound)
	}
	b, before, replaces := s.ep.Batch(), l.kind(slot), pointer(0)
	// The block that is replaced is freed when the new one is linked.
	if before == slotBeside {
		kind, replaces = slotBeside, pointer(l.value(slot))
	}
	if kind == slotBeside {
		// The new block records the old one. So a crash behind the write-back
		// leaves what the recovery needs to free it.
		if word, err = s.addBlock(b, &l, replaces, key, value); err != nil {
			return s.giveUp(b, err)
		}
	}
	// settle recognizes the UPDATE by these.
	s.kind, s.word = kind, word
	if kind == before {
		s.addSlot(b, &l, slot, key, kind, word)
		// The value's word comes first: a client that meets it alone knows from the
		// lock what kind it is.
	} else {
		p := b.Alloc(s.slot)
		s.writeSlot(p, l.r, l.version, key, kind, word)
		at := s.trees.at(l.r).Add(uint64(l.offset(slot)))
		b.Write(at.Add(uint64(s.slot-8)), p[s.slot-8:])
		b.Write(at, p[:slotHeader])
	}
	return true, s.writeBack(b)
}

// Delete implements client.Store. It empties a slot. Nodes are not merged.
func (s *Store) Delete(key []byte) error { return s.write("delete", key, nil, s.tryRemove) }

// remove claims the block of the value, and then writes the word in front of the
// slot, which does not tear.
func (s *Store) remove(key, _ []byte) (bool, error) {
	l, err := s.lockLeaf(key, opDelete, 0)
	if err != nil {
		return false, err
	}
	slot := l.find(key)
	if slot < 0 {
		return s.refuse(client.ErrNotFound)
	}
	if l.kind(slot) == slotBeside {
		// The claim comes before the slot is freed: otherwise a crash would leave
		// a linked block that no leaf names.
		if err := s.claim(pointer(l.value(slot))); err != nil {
			if s.unresolved.open {
				return false, err
			}
			return false, errors.Join(err, s.unlock())
		}
	}
	b := s.ep.Batch()
	p := b.Alloc(slotHeader)
	copy(p, l.slot(slot)[:slotHeader])
	// One word is written, which does not tear.
	s.renewSlot(p, l.r, l.version, slotFree)
	b.Write(s.trees.at(l.r).Add(uint64(l.offset(slot))), p)
	return true, s.writeBack(b)
}

// claim makes the block of a pair that is to be deleted the client's. The lock of
// the leaf is held. A recovery of the client finds the block by that, and frees
// it, as no leaf names it. A crash before the slot is emptied leaves a block in
// the client's name that a leaf names, which the recovery links again.
func (s *Store) claim(p pointer) error {
	if err := s.sound(p); err != nil {
		return err
	}
	// If the client itself wrote the block, it first frees the one that this
	// replaced, and marks it.
	if err := s.marked(p); err != nil {
		return err
	}
	// The block of a pair is linked, or still has the name of the client that
	// wrote it. No other client claims it: the leaf is locked.
	from := linked
	for range mostRetired {
		b := s.ep.Batch()
		op := b.CompareSwap(s.blocks.word(p.ref()), p.owned(from), p.owned(s.id))
		if err := s.do(stepClaim, b); err != nil {
			s.fresh.claimed = p
			return s.failed(b, err)
		}
		word, swapped := owner(op.Result), op.Swapped()
		b.Release()
		if swapped {
			s.fresh.claimed = p
			return nil
		}
		switch {
		// The block is free, or used again, while a leaf names it.
		case word.generation() != p.generation() || word.client() == 0:
			return fmt.Errorf("an entry names use %d of block %v, whose word is %#x: %w", p.generation(), p.ref(),
				uint64(word), client.ErrDamaged)
		// An earlier attempt has claimed it.
		case word.client() == s.id:
			s.fresh.claimed = p
			return nil
		// The client that wrote the block has not marked it as linked yet.
		default:
			if err := s.relieve(p); err != nil {
				return err
			}
			from = word.client()
		}
	}
	return fmt.Errorf("the word of block %v changes all the time: %w", p.ref(), rdma.ErrTimeout)
}

// relieve does what the client that wrote a block has not done yet: it frees the
// block that this one took the place of.
func (m *memory) relieve(p pointer) error {
	b, buf, err := m.read(stepClaim, m.blocks.at(p.ref()), m.blockBytes)
	if err != nil {
		return err
	}
	defer b.Release()
	if k, ok := m.readBlock(buf); ok && k.self == p && k.replaces != 0 {
		_, err := m.retire(k.replaces, 0, mostRetired)
		return err
	}
	return nil
}
