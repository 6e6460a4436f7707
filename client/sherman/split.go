package sherman

import (
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/sherman/btree"
)

// A full node is split in the transaction that inserts, together with its parent,
// and with whatever is full above that. So there is no moment at which a parent
// does not have its children. A crash leaves the tree as it was before the
// INSERT, or as it is behind it. Siblings are for checks alone.
//
// The root's object stays the root: two new nodes get what it had, and it becomes
// their parent, one level higher.

// splitLeaf inserts a pair into a leaf that is full. If the pair is the last one
// of the tree, all others stay in the leaf: keys seem to come in order.
func (s *Store) splitLeaf(tx transaction, l btree.Leaf, p btree.Pair) error {
	s.pairs = btree.InsertPair(l.Pairs(s.pairs[:0]), p)
	last := l.Last && string(s.pairs[len(s.pairs)-1].Key) == string(p.Key)
	// The separator is the shortest key that divides the halves, which keeps
	// internal nodes small.
	stay, separator := btree.HalvePairs(s.pairs, last)
	// It points into pairs, which point into the transaction's data: a copy
	// outlives both.
	separator = append([]byte(nil), separator...)
	s.stats.Splits++
	// The right half has the keys from the separator on, and the old sibling.
	right := l.Header
	right.Lower = separator
	s.format.WriteLeaf(s.right, right, s.pairs[stay:])
	left := l.Header
	left.Upper, left.Last = separator, false
	s.format.WriteLeaf(s.node, left, s.pairs[:stay])
	return s.divide(tx, 0, separator)
}

// divide puts the halves of a node of a level, s.node and s.right, in its place,
// and the separator into its parent. A root gets two new children. Both buffers
// are free again when it goes on to the parent, as the transaction has copied
// them.
func (s *Store) divide(tx transaction, level int, separator []byte) error {
	right, err := tx.create(s.right, len(s.right))
	if err != nil {
		return err
	}
	// The new node's name is known only now.
	btree.SetSibling(s.node, right)
	// The node keeps its object and becomes the left half.
	if level < s.height {
		if err := tx.write(s.way[level], s.node); err != nil {
			return err
		}
		return s.adopt(tx, level+1, btree.Entry{Key: separator, Child: right})
	}
	// The root keeps its object, and becomes the parent of two new ones.
	left, err := tx.create(s.node, len(s.node))
	if err != nil {
		return err
	}
	if level == mostHeight {
		return fmt.Errorf("the tree has %d levels: %w", level, client.ErrFull)
	}
	s.entries = append(s.entries[:0], btree.Entry{Key: separator, Child: right})
	s.format.WriteInternal(s.node, btree.Header{Level: level + 1, Last: true, Leftmost: left}, s.entries)
	s.flat = false
	s.cache.drop(s.way[level])
	return tx.write(s.way[level], s.node)
}

// adopt inserts a child into the node of a level on the way to the key. If the
// node is full, it is split in turn.
func (s *Store) adopt(tx transaction, level int, child btree.Entry) error {
	// The parent is validated at the commit as all that was read is, so it still
	// has the child then.
	n, err := s.internal(tx, level)
	if err != nil {
		return err
	}
	s.cache.drop(s.way[level])
	s.entries = btree.InsertEntry(n.Entries(s.entries[:0]), child)
	if s.format.Bytes(s.entries) <= s.format.Room() {
		s.format.WriteInternal(s.node, n.Header, s.entries)
		return tx.write(s.way[level], s.node)
	}
	last := n.Last && string(s.entries[len(s.entries)-1].Key) == string(child.Key)
	up := s.format.HalveEntries(s.entries, last)
	// The middle entry goes up, and its child becomes the leftmost one of the new
	// node.
	middle := s.entries[up]
	separator := append([]byte(nil), middle.Key...)
	s.stats.Splits++
	right := n.Header
	right.Lower, right.Leftmost = separator, middle.Child
	s.format.WriteInternal(s.right, right, s.entries[up+1:])
	left := n.Header
	left.Upper, left.Last = separator, false
	s.format.WriteInternal(s.node, left, s.entries[:up])
	return s.divide(tx, level, separator)
}

// internal reads the node of a level on the way to the key, as part of a
// transaction. It returns errStale if the node does not lead to the node below.
func (s *Store) internal(tx transaction, level int) (btree.Internal, error) {
	p, err := tx.read(s.way[level])
	if err != nil {
		return btree.Internal{}, s.staleAbove(level, staleIfGone(err))
	}
	n, ok := s.format.DecodeInternal(p)
	if !ok || n.Level != level || n.Side(s.key) != 0 || n.Child(n.Place(s.key)) != s.way[level-1] {
		return btree.Internal{}, s.staleAbove(level, errStale)
	}
	return n, nil
}

// staleAbove forgets the nodes of a level and of the next one, if the way there
// was outdated.
func (s *Store) staleAbove(level int, err error) error {
	if err == errStale {
		s.cache.drop(s.way[level])
		if level < s.height {
			s.cache.drop(s.way[level+1])
		}
	}
	return err
}
