package sherman

import (
	"errors"
	"fmt"
	"slices"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/sherman/btree"
)

// Nodes that a DELETE leaves with few entries are merged with a neighbor under
// the same parent, by a transaction of their own behind the DELETE's. The left
// one gets what both had, the right one is freed, and the parent loses the
// separator between them. After a crash in between, or an error, the node has few
// entries. That is as right as any other node: the next INSERT uses it, or the
// next merge.

// fewShare: a node has few entries when it is full to one part of so many. Only a
// DELETE that comes to exactly so many, or to none, merges: so not each DELETE of
// a small leaf tries it.
const fewShare = 4

// mergedShare is to how many parts, of fewShare, a merged node is filled at most.
// So the next INSERTs do not split it again.
const mergedShare = 3

// mergeShare is for which part of the pool's timeout a DELETE tries to merge nodes. Where many
// clients change a leaf all the time, a merge of it is aborted again and again. One that is late
// makes its locks wanted, so it holds up the others, and nearly never succeeds.
const mergeShare = 32

// errBusy ends a merge of nodes that others change all the time.
var errBusy = errors.New("others change the nodes")

// few reports whether a leaf that has come to so many pairs is merged.
func (s *Store) few(pairs int) bool { return pairs == 0 || pairs == s.format.Slots()/fewShare }

// shrink merges the key's leaf, and whatever that leaves with few entries above
// it. The DELETE has taken effect already, so only an error that wraps
// client.ErrUncertain is returned: the merge is the worker's to settle then, and
// may have locked what others need. Each level has a transaction of its own, so a crash
// between two leaves a parent with few entries.
func (s *Store) shrink() error {
	s.more, s.mergeUntil = true, s.ep.Now()+s.Timeout/mergeShare
	for s.level = 0; s.more && s.level < s.height; s.level++ {
		if err := s.do(s.mergeTx); err != nil {
			s.stats.Kept++
			if !errors.Is(err, client.ErrUncertain) {
				if s.objects.settle() == nil {
					return nil
				}
				err = fmt.Errorf("%w: %w", client.ErrUncertain, err)
			}
			return fmt.Errorf("merge nodes of level %d: %w", s.level, err)
		}
	}
	return nil
}

// merge is the transaction that merges the node of s.level on the way to the key
// with a neighbor, if both fit one. A root that has one child left becomes what
// that child is, so the tree gets lower.
func (s *Store) merge(tx transaction) error {
	// The closure may be called several times: the last call decides.
	s.more = false
	if s.ep.Now() > s.mergeUntil {
		return errBusy
	}
	// The tree is lower by now.
	if s.level >= s.height {
		return nil
	}
	// The parent is read as part of the transaction, so it has both children when
	// that commits.
	parent, err := s.internal(tx, s.level+1)
	if err != nil {
		return err
	}
	// There is no neighbor before the parent is merged.
	if parent.Count() == 0 {
		s.more = s.level+1 < s.height
		return nil
	}
	// The neighbor is the right one, or the left one for the last child.
	x := min(parent.Place(s.key), parent.Count()-1)
	left, right := parent.Child(x), parent.Child(x+1)
	fits, err := s.join(tx, left, right, parent.Entry(x).Key)
	if err != nil || !fits {
		return err
	}
	s.stats.Merges++
	// What the worker remembers of the three nodes is outdated if the transaction
	// commits; else it reads them again.
	s.cache.drop(left)
	s.cache.drop(right)
	s.cache.drop(s.way[s.level+1])
	// The right node's object is freed with the entry that names it.
	if err := tx.free(right); err != nil {
		return err
	}
	s.entries = slices.Delete(parent.Entries(s.entries[:0]), x, x+1)
	// The root has one child left.
	if len(s.entries) == 0 && s.level+1 == s.height {
		s.flat = false
		if err := tx.free(left); err != nil {
			return err
		}
		return tx.write(s.way[s.height], s.node)
	}
	// The left node gets what both had, in the same transaction.
	if err := tx.write(left, s.node); err != nil {
		return err
	}
	// The parent loses the separator between the two, with the right child.
	s.format.WriteInternal(s.right, parent.Header, s.entries)
	s.more = s.level+1 < s.height && s.format.Bytes(s.entries)*fewShare <= s.format.Room()
	return tx.write(s.way[s.level+1], s.right)
}

// join writes what two neighbors have to s.node. It returns false if that does
// not fit one node with some room; a node that is empty fits in any case.
func (s *Store) join(tx transaction, left, right btree.Ref, separator []byte) (fits bool, err error) {
	p, err := tx.read(left)
	if err != nil {
		return false, damagedIfGone(left, err)
	}
	q, err := tx.read(right)
	if err != nil {
		return false, damagedIfGone(right, err)
	}
	if s.level == 0 {
		a, ok := s.format.DecodeLeaf(p)
		b, ok2 := s.format.DecodeLeaf(q)
		if !ok || !ok2 {
			return false, notNeighbors(left, right)
		}
		// All keys of the left leaf are below those of the right one.
		s.pairs = b.Pairs(a.Pairs(s.pairs[:0]))
		n, all := len(s.pairs), s.format.Slots()
		// A full node would be split again soon. An empty one is merged in any
		// case.
		if n > all || n*fewShare > all*mergedShare && a.Count() > 0 && a.Count() < n {
			return false, nil
		}
		s.format.WriteLeaf(s.node, joined(a.Header, b.Header), s.pairs)
		return true, nil
	}
	a, ok := s.format.DecodeInternal(p)
	b, ok2 := s.format.DecodeInternal(q)
	if !ok || !ok2 {
		return false, notNeighbors(left, right)
	}
	// The parent's separator comes down: it is the lower bound of the right
	// node's leftmost child.
	s.entries = append(a.Entries(s.entries[:0]), btree.Entry{Key: separator, Child: b.Leftmost})
	s.entries = b.Entries(s.entries)
	n, all := s.format.Bytes(s.entries), s.format.Room()
	if n > all || n*fewShare > all*mergedShare && a.Count() > 0 && b.Count() > 0 {
		return false, nil
	}
	s.format.WriteInternal(s.node, joined(a.Header, b.Header), s.entries)
	return true, nil
}

// joined returns the header of two neighbors that become one.
func joined(a, b btree.Header) btree.Header {
	a.Upper, a.Last, a.Sibling = b.Upper, b.Last, b.Sibling
	return a
}

// damagedIfGone makes errGone an error about damage: a node has its children,
// since both change in one transaction.
func damagedIfGone(r btree.Ref, err error) error {
	if err == errGone {
		return fmt.Errorf("node %#x is not there, and its parent has it: %w", r, client.ErrDamaged)
	}
	return err
}

// notNeighbors is the error for children that do not have the parent's level less
// one.
func notNeighbors(left, right btree.Ref) error {
	return fmt.Errorf("nodes %#x and %#x are not what their parent has them for: %w", left, right, client.ErrDamaged)
}
