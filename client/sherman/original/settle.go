package original

import (
	"bytes"
	"fmt"
	"slices"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
)

// A worker with verbs that failed, or were not answered in time, does not know
// whether it has the lock, and what it has written. It does nothing else until it
// knows. When nothing of it is in flight any more, the lock's word tells: it is
// the worker's own if the release has not landed, and all that was posted before
// the release has landed if it has.

// unresolvedWrite is what a worker has to settle. There is one at a time.
type unresolvedWrite struct {
	open bool
	held
	// fresh is what the failed operation has taken.
	fresh fresh
	// inFlight is the batch that may be in flight; nil: nothing is.
	inFlight *rdma.Batch
	// left is the node as the release of a try to settle it leaves it; nil: no try
	// has posted one. It is not known whether that release has landed.
	left []byte
	// done: it is settled, and the operation took effect.
	done bool
}

// failed notes that a batch failed, so what the worker holds is to be settled. It
// takes the batch, and returns the error.
func (k *locker) failed(b *rdma.Batch, err error) error {
	if k.sent {
		k.keepUnresolved(b)
	} else {
		b.Release()
		k.keepUnresolved(nil)
	}
	return err
}

// keepUnresolved makes what the worker holds its unresolved write, with a batch
// that may be in flight. From here on s.unresolved owns the batch.
func (k *locker) keepUnresolved(b *rdma.Batch) {
	if k.unresolved.open {
		panic(fmt.Sprintf("sherman: node %v is to be settled, and node %v was locked behind that", k.unresolved.r,
			k.held.r))
	}
	k.forget()
	// What the operation has taken goes with it, since the tree may name it or
	// not.
	k.unresolved = unresolvedWrite{open: true, held: k.held, fresh: k.fresh, inFlight: b}
	// The node can only have been written if the batch was posted.
	k.unresolved.sent = k.held.sent && k.sent
	k.fresh = fresh{}
}

// settle settles the unresolved write, if there is one. It tries as long as that
// is useful. After an error the write stays unresolved, and the next operation
// begins with it.
func (k *locker) settle() error {
	if !k.unresolved.open {
		return nil
	}
	for k.unresolved.open {
		err := k.trySettle()
		if err != nil && !k.rejoin(err) {
			return fmt.Errorf("settle node %v: %w", k.unresolved.r, err)
		}
	}
	// The worker may have failed to take a lock over. What fails here is left to
	// the next worker that wants the lock, or leaves.
	_ = k.releaseUnclaimed()
	return nil
}

// trySettle is one try. It waits for the batch, reads the lock, and mends the
// node if the worker has the lock. After an error the write stays unresolved.
func (k *locker) trySettle() error {
	// First nothing may be in flight any more.
	d := &k.unresolved
	if err := k.landed(&d.inFlight); err != nil {
		return err
	}
	// There is no lock: the operation was about to set a new root.
	if d.at == 0 {
		d.open = false
		return nil
	}
	// Nothing is in flight any more, so the word that is read now stays, unless a
	// recovery changes it.
	b, p, err := k.read(stepSettle, d.at, 8)
	if err != nil {
		return err
	}
	word := lockWord(le.Uint64(p))
	b.Release()
	// The lock is the worker's. One that still has the word by which it was handed
	// over is not.
	if word == d.word {
		if err := k.settleHeld(); err != nil {
			return err
		}
		// The release of an earlier try has landed. It does not tell that the write
		// has.
	} else if d.left != nil {
		k.resolve(d.left)
		// The release has landed, and so has all that was posted before it.
	} else if d.done = d.sent; d.done {
		k.used(&d.fresh)
	} else {
		k.drop(&d.fresh)
	}
	k.stats.Settled++
	d.open = false
	return nil
}

// settleHeld mends the node of a lock that the worker has, and releases it. Both
// are in one batch, in order: a crash leaves the lock, or a node that is whole.
func (k *locker) settleHeld() error {
	d := &k.unresolved
	b, p, err := k.read(stepSettle, k.trees.at(d.r), k.nodeBytes)
	if err != nil {
		return err
	}
	defer b.Release()
	// The release is behind the WRITE in the same batch, and so executed behind
	// it.
	w := k.ep.Batch()
	// A torn slot becomes what the lock says, so the outcome can be read off the
	// node.
	if err := k.mend(w, p, d.r, d.word); err != nil {
		w.Release()
		return err
	}
	cas := w.CompareSwap(d.at, uint64(d.word), 0)
	if err := k.do(stepSettle, w); err != nil {
		if k.sent {
			// p is the batch's, and is mended.
			d.inFlight, d.left = w, bytes.Clone(p)
		} else {
			w.Release()
		}
		return err
	}
	defer w.Release()
	if !cas.Swapped() {
		return fmt.Errorf("lock at %v is %#x: %w", d.at, cas.Result, errStolen)
	}
	// The release has landed. p is the node as it is now: mended in place.
	k.resolve(p)
	return nil
}

// resolve decides what became of an operation by its node, which was read under
// the lock and mended. It sorts what the operation has taken: what the tree names
// is used, the rest is dropped.
func (k *locker) resolve(p []byte) {
	d := &k.unresolved
	// mend has found a whole header in the same bytes.
	h, _ := k.readHeader(p, d.r)
	l := leaf{h, &k.format, p, d.r}
	if d.sent && h.level == 0 {
		// The key's slot, if the node still has the key.
		i := -1
		if h.has(k.key) {
			i = l.find(k.key)
		}
		switch d.word.op() {
		// What is beyond the fence is in the new node.
		case opInsert:
			d.done = i >= 0 || h.beyond(k.key)
		case opUpdate:
			d.done = i >= 0 && l.kind(i) == k.kind && l.value(i) == k.word
		case opDelete:
			d.done = i < 0
		}
	}
	// names reports whether a slot of the leaf names a block.
	names := func(q pointer) bool {
		for i := 0; h.level == 0 && i < k.slots; i++ {
			if l.whole(i) && l.used(i) && l.kind(i) == slotBeside && pointer(l.value(i)) == q {
				return true
			}
		}
		return false
	}
	// What the tree names by now is used, one by one; what is left is dropped.
	f := d.fresh
	if f.tree.child != 0 && h.sibling == f.tree.child.ref() {
		k.used(&fresh{tree: f.tree})
		f.tree = separator{}
		// A new value is in one of the halves, or in none. Which of them is known
		// when all words of the client are looked through.
		if f.block != 0 && !names(f.block) {
			k.unsure = true
			f.block, f.replaces = 0, 0
		}
	}
	if f.block != 0 && names(f.block) {
		k.used(&fresh{block: f.block, replaces: f.replaces})
		f.block = 0
	}
	if f.claimed != 0 && !names(f.claimed) {
		k.used(&fresh{claimed: f.claimed})
		f.claimed = 0
	}
	k.drop(&f)
}

// drop gives what an operation has taken back to the client: the tree does not
// name it.
func (k *locker) drop(f *fresh) {
	k.fresh = *f
	k.unused()
	*f = fresh{}
}

// mend adds to a batch the WRITE that makes a node whole which was locked. The
// holder of the lock has nothing in flight any more. The lock says what it was
// about to do, and so what a torn slot is:
//
//	INSERT  the slot was free, and is free again
//	UPDATE  the key is as it was, and the value's word is the old or the new one:
//	        the slot is made whole with it
//	DELETE  a slot's word does not tear
//
// Slots beyond the fence become free, and the others become those of the header's
// version, as a split would have done. A crash leaves the lock as it was, and a
// node that is mended again.
func (k *locker) mend(b *rdma.Batch, p []byte, r ref, w lockWord) error {
	h, ok := k.readHeader(p, r)
	if !ok {
		return fmt.Errorf("node %v has no whole header: %w", r, client.ErrDamaged)
	}
	// Entries of an internal node are written as a whole: they are there, or are
	// written anew.
	if h.level > 0 {
		if k.bodyWhole(p, r, &h) {
			return nil
		}
		return k.rebuild(b, r, h)
	}
	l := leaf{h, &k.format, p, r}
	changed := false
	for i := range k.slots {
		slot := l.slot(i)
		// A slot that was never used, or that is whole and of this version, stays
		// as it is.
		kind := l.kind(i)
		switch {
		case le.Uint64(slot) == 0:
			continue
		case !l.whole(i) && w.op() == opInsert:
			kind = slotFree
		// The key is what it was. The value's word is the old one or the new one.
		case !l.whole(i) && w.op() == opUpdate:
			if kind != slotBeside {
				kind = w.kind()
			}
		case !l.whole(i):
			return fmt.Errorf("slot %d of leaf %v is torn, and its lock %#x says that none was written: %w", i, r,
				uint64(w), client.ErrDamaged)
		// A split has moved this pair, and did not come to free its slot.
		case kind != slotFree && l.beyond(l.key(i)):
			kind = slotFree
		// The slot is of the header's version already.
		case le.Uint16(slot[slotVersionAt:]) == h.version:
			continue
		}
		k.renewSlot(slot, r, h.version, kind)
		changed = true
	}
	if changed {
		// All slots are written together, since they are to have the same
		// version.
		b.WriteCopy(k.trees.at(r).Add(uint64(k.body)), p[k.body:k.nodeBytes])
	}
	return nil
}

// rebuild adds the WRITE of an internal node with torn entries. Its children are
// the node's leftmost child, and the siblings of that up to the fence. Those that
// the node has no room for are reached by siblings.
func (k *locker) rebuild(b *rdma.Batch, r ref, h header) error {
	// The children are found by their fences and siblings alone. The torn
	// entries are not looked at.
	var entries []entry
	at := h.leftmost
	for len(entries) < k.children {
		below, err := k.headerOf(at)
		if err != nil {
			return err
		}
		if below.level != h.level-1 {
			return fmt.Errorf("node %v of level %d leads to %v of level %d: %w", r, h.level, at, below.level,
				client.ErrDamaged)
		}
		// The next node is beyond this one's fence, or there is none.
		if below.last || h.beyond(below.upper) {
			break
		}
		at = below.sibling
		entries = append(entries, entry{below.upper, at})
	}
	image := b.Alloc(k.nodeBytes)
	clear(image)
	// The new header goes to the other copy, so a READ finds the old one or the
	// new one.
	h.version++
	k.writeInternal(image, r, &h, entries)
	b.Write(k.trees.at(r), image)
	k.cache.drop(r)
	return nil
}

// headerOf reads the header of a node. Its fences are copies, which the caller
// owns.
func (t *tree) headerOf(r ref) (header, error) {
	for pace := t.pace; ; {
		b, p, err := t.read(stepRecover, t.trees.at(r), t.body)
		if err != nil {
			return header{}, err
		}
		h, ok := t.readHeader(p, r)
		h.lower, h.upper = slices.Clone(h.lower), slices.Clone(h.upper)
		b.Release()
		if ok {
			return h, nil
		}
		if err := t.again(r, &pace); err != nil {
			return header{}, err
		}
	}
}
