package sherman

import (
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/sherman/btree"
)

// The kinds of what fetch has read.
const (
	// kindOther: nothing, or an object that is no node.
	kindOther = iota
	kindLeaf
	kindInternal
)

// descend finds the way from the root to the leaf of the operation's key, through
// nodes as the worker remembers them. It reads those that it does not remember.
// The way may be outdated, which the leaf's fences show.
//
// Each node is read by itself. A node that is there has all that its fences
// promise, since a split or a merge changes parents with their children in one
// transaction. So whatever the way, at its end is the leaf with fences that have
// the key, or a node that does not have it.
func (s *Store) descend() error {
	for {
		arrived, err := s.walk()
		if arrived || err != nil {
			return err
		}
		// The part that did not fit was forgotten, so the next try reads it.
		s.stats.Stale++
		if s.objects.over() {
			return errTime
		}
	}
}

// walk is one try. It returns false if what the worker remembers does not fit
// together, and has forgotten the part that does not.
func (s *Store) walk() (bool, error) {
	// ref is the node that is next, above its parent, 0 for the root, and level
	// what the parent says of its level, -1 for the root.
	ref, above, level := s.library.root(), btree.Ref(0), -1
	s.parent = nil
	// The leaf that is the root is not remembered: whether it still is a leaf,
	// its next READ shows.
	if s.flat {
		s.height, s.way[0] = 0, ref
		return true, nil
	}
	for {
		n := s.cache.get(ref)
		// A node that was read just now is not outdated; then its parent is.
		remembered := n != nil
		if n == nil {
			kind, err := s.fetch(ref)
			switch {
			case err != nil:
				return false, err
			case kind == kindLeaf && above == 0:
				s.flat = s.cache.most > 0
				s.height, s.way[0] = 0, ref
				return true, nil
			case kind != kindInternal && above == 0:
				return false, fmt.Errorf("the root is no node: %w", client.ErrDamaged)
			// The parent names an object that is gone, or is a node of another
			// level by now.
			case kind != kindInternal:
				s.cache.drop(above)
				return false, nil
			}
			n = s.got
		}
		h := &n.node
		// The node does not have the key, or is not of the level that its parent
		// says: one of the two is outdated.
		if h.Side(s.key) != 0 || level >= 0 && h.Level != level || h.Level > mostHeight {
			if remembered {
				s.cache.drop(ref)
			}
			s.cache.drop(above)
			return false, nil
		}
		if level < 0 {
			s.height = h.Level
		}
		level = h.Level
		s.way[level] = ref
		above, ref = ref, h.Child(h.Place(s.key))
		if level == 1 {
			// The leaf itself is not read here: operations read or lock it.
			s.parent, s.way[0] = n, ref
			return true, nil
		}
		level--
	}
}

// fetch reads a node. An internal one becomes s.got.
func (s *Store) fetch(r btree.Ref) (kind int, err error) {
	s.stats.Fetched++
	s.ones[0], s.kind = r, kindOther
	if err := s.objects.each(s.ones[:], s.takeNode); err != nil && err != errGone {
		return kindOther, fmt.Errorf("read a node: %w", err)
	}
	return s.kind, nil
}

// onNode takes a node that fetch has read. data is valid until it returns; the
// cache copies it.
func (s *Store) onNode(_ int, data []byte) {
	h, ok := s.format.Decode(s.orBlank(s.ones[0], data))
	if !ok {
		return
	}
	if h.Level == 0 {
		s.kind = kindLeaf
		return
	}
	if s.got = s.cache.put(s.ones[0], data); s.got != nil {
		s.kind = kindInternal
	}
}

// dropWay forgets what has led to a leaf that is not the key's.
func (s *Store) dropWay() {
	s.stats.Stale++
	s.flat = false
	// A root that is the leaf has no parent: flat alone has led to it.
	if s.height > 0 {
		s.cache.drop(s.way[1])
	}
}

// do runs a transaction of the operation until the way to the key's leaf is
// right.
func (s *Store) do(f func(tx transaction) error) error {
	for {
		if err := s.descend(); err != nil {
			return err
		}
		// The transaction looks at the leaf's fences itself, and ends in errStale
		// if the way was outdated. It has changed nothing then, so another one may
		// begin.
		err := s.objects.run(f)
		if err != errStale {
			return err
		}
		if s.objects.over() {
			return errTime
		}
		s.dropWay()
	}
}
