package original

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/sherman/btree"
	"github.com/farkv/farkv/node/rdma"
)

// A split writes the new node, then the header of the node that is split, then
// its slots, and releases the lock: in one doorbell if both are on one memory
// node (section 4.5). The header decides: a client that reads it follows the
// sibling.
//
// A crash before the header leaves the leaf as it was, and a new node that
// nothing names. A crash behind it leaves two leaves that are right, slots of the
// old one beyond its fence or of the version before, and a parent without a
// separator. Siblings are followed until the client is recovered.

// splitLeaf adds to a batch what splits a full leaf, with a new pair in one of
// the halves. If the pair is the last one of the tree, all others stay in the
// leaf: keys seem to come in order.
func (s *Store) splitLeaf(b *rdma.Batch, l *leaf, key []byte, kind int, word uint64) error {
	// Memory comes first: nothing is written before a split is certain to find it.
	right, err := s.newTree(0)
	if err != nil {
		return err
	}
	s.order = l.pairs(s.order[:0])
	place, _ := slices.BinarySearchFunc(s.order, key, func(i int, key []byte) int {
		return bytes.Compare(l.key(i), key)
	})
	// order has slots in the order of their keys, and isNew for the pair that is inserted.
	const isNew = -1
	s.order = slices.Insert(s.order, place, isNew)
	// stay counts the pairs that stay, the new one among them if it belongs there.
	stay := len(s.order) / 2
	if l.last && place == len(s.order)-1 {
		stay = place
	}
	keyOf := func(i int) []byte {
		if s.order[i] == isNew {
			return key
		}
		return l.key(s.order[i])
	}
	separator := slices.Clone(btree.Separator(keyOf(stay-1), keyOf(stay)))

	h := l.header
	// The new node has the pairs from the separator on. It is complete before anything names it.
	h.version, h.lower = 1, separator
	p := b.Alloc(s.nodeBytes)
	s.writeNode(p, right.ref(), &h)
	// The checksums of slots depend on the node, so those that move are written
	// anew.
	r := leaf{h, &s.format, p, right.ref()}
	for n, i := range s.order[stay:] {
		if i == isNew {
			s.writeSlot(r.slot(n), r.r, 1, key, kind, word)
		} else {
			s.writeSlot(r.slot(n), r.r, 1, l.key(i), l.kind(i), l.value(i))
		}
	}
	// From here on the new node is the operation's, whatever becomes of it.
	s.fresh.tree = separatorOf(1, separator, right)
	// The new node is written before the header that names it, or waited for if
	// it is on another memory node.
	if err := s.addTree(b, l.r, right, p); err != nil {
		return err
	}

	h = l.header
	// The header is the decision. It goes to the copy that does not count, so the
	// leaf has a whole header at any moment.
	h.version, h.upper, h.last, h.sibling = l.version+1, separator, false, right.ref()
	at := s.trees.at(l.r)
	head := b.Alloc(s.header)
	s.writeHeader(head, l.r, &h)
	b.Write(at.Add(uint64(int(h.version&1)*s.header)), head)
	// The slots follow the header. Until they are written, pairs beyond the new
	// fence are ignored, and those below it are of an older version, which is
	// steady.
	body := b.Alloc(s.nodeBytes - s.body)
	copy(body, l.p[s.body:])
	for n, i := range s.order {
		switch {
		// Its place is that of a pair that goes.
		case i == isNew && n < stay:
			slot := s.order[len(s.order)-1]
			s.writeSlot(body[slot*s.slot:], l.r, h.version, key, kind, word)
		case i == isNew || n == len(s.order)-1 && place < stay:
		case n < stay:
			s.renewSlot(body[i*s.slot:][:s.slot], l.r, h.version, l.kind(i))
		default:
			s.renewSlot(body[i*s.slot:][:s.slot], l.r, h.version, slotFree)
		}
	}
	b.Write(at.Add(uint64(s.body)), body)
	s.stats.Splits++
	return nil
}

// separatorOf returns the entry that a level lacks after a split.
func separatorOf(level int, key []byte, child pointer) separator { return separator{level, key, child} }

// newTree takes a node for a split of a level from the client's memory, if that
// has enough for splits of that level and of all above. So a split that has begun
// does not fail for want of memory above. The memory nodes take turns. The error
// wraps client.ErrFull.
func (s *Store) newTree(level int) (pointer, error) {
	// take gives a node of another memory node if this one has none, so what
	// the client has anywhere counts.
	have := 0
	for n := range s.treePiles {
		have += len(s.treePiles[n].free)
	}
	// One node for each level from here up to the root, one for a new root, and
	// one more in case that the tree has grown since.
	need := s.root.level() - level + 3
	for n := 0; n < s.nodes && have < need; n++ {
		p := &s.treePiles[(s.home+n)%s.nodes]
		before := len(p.free)
		if err := s.grab(&s.trees, (s.home+n)%s.nodes); err != nil {
			return 0, err
		}
		have += len(p.free) - before
	}
	if have < need {
		return 0, fmt.Errorf("no memory for %d nodes: %w", need, client.ErrFull)
	}
	s.home = (s.home + 1) % s.nodes
	return s.take(&s.trees, s.home)
}

// addTree adds the WRITE of a new node, before what names it.
func (s *Store) addTree(b *rdma.Batch, left ref, p pointer, image []byte) error {
	if p.ref().node() == left.node() {
		b.Write(s.trees.at(p.ref()), image)
		return nil
	}
	return s.writeFar(s.trees.at(p.ref()), image)
}

// adoptPending inserts the separators of splits into the nodes above, which may
// split in turn.
func (s *Store) adoptPending() error {
	for len(s.pending) > 0 {
		// The separators of one split come one level after another, each before
		// its parent's.
		sep := s.pending[0]
		s.fresh = fresh{}
		done, err := s.adopt(sep)
		if err != nil {
			if s.unresolved.open {
				_, err = s.settled(err)
			} else {
				s.unused()
			}
			if err != nil && s.unresolved.open || err != nil && !s.rejoin(err) {
				return err
			}
			continue // what is there by now is not inserted again
		}
		if done {
			s.later(job{a: &s.trees, mark: sep.child})
			// The node is named now. Its mark is planned before the next
			// separator, which may be that of its parent.
			s.pending = s.pending[1:]
		}
	}
	s.pending = nil
	return nil
}

// adopt inserts a separator into the node of its level. done: the separator is
// there.
func (s *Store) adopt(sep separator) (done bool, err error) {
	r, err := s.find(sep.key, sep.level)
	if err != nil {
		return false, err
	}
	if r == 0 {
		return s.raise(sep)
	}
	for {
		p, err := s.lock(r, opAdopt, 0)
		if err != nil {
			return false, err
		}
		h, ok := s.readHeader(p, r)
		if !ok || h.level != sep.level || !s.bodyWhole(p, r, &h) {
			return false, errors.Join(fmt.Errorf("node %v, which is locked, is no whole node of level %d: %w", r,
				sep.level, client.ErrDamaged), s.unlock())
		}
		if !h.beyond(sep.key) {
			n := internal{h, &s.format, p}
			return s.adoptInto(&n, r, sep)
		}
		r = s.hop(h.sibling)
		if err := s.unlock(); err != nil {
			return false, err
		}
	}
}

// adoptInto writes the whole node, with the separator in its order: entries of an
// internal node are not written one by one.
//
// A crash leaves a node with one or both of its headers, but maybe without the
// entries that they say. Readers do not take it for whole, and wait. A recovery
// writes its entries anew: they are the nodes below, which know their siblings.
func (s *Store) adoptInto(n *internal, r ref, sep separator) (bool, error) {
	s.cache.drop(r)
	s.entries = n.entries(s.entries[:0])
	at, there := slices.BinarySearchFunc(s.entries, sep.key,
		func(e entry, key []byte) int { return bytes.Compare(e.key, key) })
	// Another attempt, or a recovery, has inserted it.
	if there {
		return true, s.unlock()
	}
	s.entries = slices.Insert(s.entries, at, entry{sep.key, sep.child.ref()})
	b := s.ep.Batch()
	p := b.Alloc(s.nodeBytes)
	copy(p, n.p)
	h := n.header
	// Header and entries go out as one WRITE. Its words land in any order, so a
	// reader checks both.
	h.version++
	if len(s.entries) <= s.children {
		s.writeInternal(p, r, &h, s.entries)
	} else if err := s.splitInternal(b, n, r, &h, p, at); err != nil {
		_, err := s.giveUp(b, err)
		return false, err
	}
	b.Write(s.trees.at(r), p)
	return true, s.writeBack(b)
}

// splitInternal writes the right half of a node's entries to a new node, and the
// left half to p. at is where the new entry is.
func (s *Store) splitInternal(b *rdma.Batch, n *internal, r ref, h *header, p []byte, at int) error {
	right, err := s.newTree(n.level)
	if err != nil {
		return err
	}
	// up is the entry that goes to the level above.
	up := len(s.entries) / 2
	if n.last && at == len(s.entries)-1 { // keys come in order
		up = at - 1
	}
	middle := s.entries[up]
	separator := slices.Clone(middle.key)
	image := b.Alloc(s.nodeBytes)
	clear(image)
	// The middle entry goes up: its key is the separator, and its child becomes
	// the leftmost one of the new node.
	// Both halves are written as wholes, so the entries have no versions of
	// their own. Until its header and its entries agree, readers wait for the
	// old half.
	rh := n.header
	rh.version, rh.lower, rh.leftmost = 1, separator, middle.child
	s.writeInternal(image, right.ref(), &rh, s.entries[up+1:])
	s.fresh.tree = separatorOf(n.level+1, separator, right)
	if err := s.addTree(b, r, right, image); err != nil {
		return err
	}
	h.upper, h.last, h.sibling = separator, false, right.ref()
	s.writeInternal(p, r, h, s.entries[:up])
	s.stats.Splits++
	return nil
}

// raise makes a new root above the one that was split, by CAS of the word that
// names it. If another client has raised the tree meanwhile, the separator
// belongs into that root, and raise returns false. The old root is the first node
// of its level for ever, so it is the new one's leftmost child. A crash before
// the CAS leaves a node that nothing names.
func (s *Store) raise(sep separator) (bool, error) {
	if sep.level > mostHeight {
		return false, fmt.Errorf("the tree has %d levels: %w", sep.level, client.ErrFull)
	}
	// The tree has no level for the separator, so it was the root that was split.
	if s.root.level() != sep.level-1 {
		return false, fmt.Errorf("the root has level %d, and a node of level %d was split: %w", s.root.level(),
			sep.level-1, client.ErrDamaged)
	}
	// The new root has the client's name until it is marked. A recovery keeps
	// it if the root's word leads to it, and frees it otherwise.
	p, err := s.take(&s.trees, 0)
	if err != nil {
		return false, err
	}
	// No lock is held: the CAS of the root's word decides.
	s.held = held{}
	b := s.ep.Batch()
	image := b.Alloc(s.nodeBytes)
	clear(image)
	s.entries = append(s.entries[:0], entry{sep.key, sep.child.ref()})
	s.writeInternal(image, p.ref(), &header{version: 1, level: sep.level, last: true, leftmost: s.root.ref()},
		s.entries)
	b.Write(s.trees.at(p.ref()), image)
	if err := s.do(stepWriteFar, b); err != nil {
		s.unsure = true
		return false, s.failed(b, err)
	}
	b.Release()
	b = s.ep.Batch()
	cas := b.CompareSwap(s.rootWord(), uint64(s.root), uint64(makeRoot(p.ref(), sep.level)))
	if err := s.do(stepSetRoot, b); err != nil {
		s.unsure = true
		s.root = 0
		return false, s.failed(b, err)
	}
	swapped := cas.Swapped()
	b.Release()
	s.root = 0
	// Another client has raised the tree: its root is read, and the separator
	// inserted there.
	if !swapped {
		s.keepOwn(&s.trees, p, 0)
		return false, nil
	}
	s.later(job{a: &s.trees, mark: p})
	return true, nil
}
