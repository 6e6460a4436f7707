package original

import (
	"bytes"
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/node/rdma"
)

// A node never has keys below those that it had, and none is given up: what a cached node names is
// there, on the same level, and has all keys from its lower fence on to its upper one, from where
// its sibling goes on. So a way that is outdated leads to the left of where it should, and siblings
// lead on.

// find returns the node of a level that a key led to, as far as the worker remembers nodes above
// it, and reads those that it does not. 0: the tree has no such level.
func (s *Store) find(key []byte, level int) (ref, error) {
	if s.root == 0 {
		if err := s.readRoot(); err != nil {
			return 0, err
		}
	}
	if s.root.level() < level {
		return 0, nil
	}
	at := s.root.ref()
	s.above = 0
	for l := s.root.level(); l > level; {
		n, err := s.internalAt(at)
		if err != nil {
			return 0, err
		}
		if n.level != l {
			return 0, fmt.Errorf("node %v has level %d, and its parent says %d: %w", at, n.level, l, client.ErrDamaged)
		}
		if n.beyond(key) {
			at = s.hop(n.sibling)
			continue
		}
		s.above, at = at, n.at(n.place(key))
		l--
	}
	return at, nil
}

func (s *Store) readRoot() error {
	b, p, err := s.read(stepReadRoot, s.rootWord(), 8)
	if err != nil {
		return err
	}
	defer b.Release()
	s.root = root(le.Uint64(p))
	if r := s.root.ref(); r == 0 || r.node() >= s.nodes || s.root.level() > mostHeight {
		return fmt.Errorf("the root is %#x: %w", uint64(s.root), client.ErrDamaged)
	}
	return nil
}

// hop goes on to a sibling, and forgets the node that should have led there.
func (s *Store) hop(sibling ref) ref {
	s.stats.Hops++
	if s.above != 0 {
		s.cache.drop(s.above)
	} else {
		s.root = 0
	}
	return sibling
}

// internalAt returns an internal node as the worker remembers it, or reads it.
func (s *Store) internalAt(r ref) (*cached, error) {
	if n := s.cache.get(r); n != nil {
		return n, nil
	}
	for pace := s.pace; ; {
		b, p, err := s.read(stepReadNode, s.trees.at(r), s.nodeBytes)
		if err != nil {
			return nil, err
		}
		s.stats.Fetched++
		n := s.cache.put(&s.format, r, p)
		b.Release()
		if n != nil {
			return n, nil
		}
		if err := s.again(r, &pace); err != nil {
			return nil, err
		}
	}
}

// again pauses before a node is read again that was not whole: it was being written, or it was left
// half written by a client that died.
func (s *Store) again(r ref, pace *kit.Retry) error {
	s.stats.Torn++
	if pace.Again() {
		return nil
	}
	b, p, err := s.read(stepReadLocked, s.lockAt(r), 8)
	if err != nil {
		return err
	}
	defer b.Release()
	if w := lockWord(le.Uint64(p)); w != 0 {
		return fmt.Errorf("node %v is half written: %w", r, s.blocked(w))
	}
	return fmt.Errorf("node %v changes all the time: %w", r, rdma.ErrTimeout)
}

// Get implements client.Store. It takes no lock.
func (s *Store) Get(key []byte) ([]byte, error) {
	if err := s.begin(key, nil); err != nil {
		return nil, fmt.Errorf("get: %w", err)
	}
	_ = s.work(false) // others may wait for what is left to do; it is done again
	ok, err := s.get(key)
	switch {
	case err != nil:
		return nil, fmt.Errorf("get: %w", err)
	case !ok:
		return nil, fmt.Errorf("get %.40q: %w", key, client.ErrNotFound)
	}
	return s.out, nil
}

// get looks for a key. Its value is s.out.
func (s *Store) get(key []byte) (ok bool, err error) {
	r, err := s.find(key, 0)
	if err != nil {
		return false, err
	}
	for pace := s.pace; ; {
		b, p, err := s.read(stepReadLeaf, s.trees.at(r), s.nodeBytes)
		if err != nil {
			return false, err
		}
		l, whole := s.readLeaf(p, r)
		if whole && l.beyond(key) {
			b.Release()
			r = s.hop(l.sibling)
			continue
		}
		if whole {
			done, there, err := s.look(&l, key)
			if done || err != nil {
				b.Release()
				return there, err
			}
		}
		b.Release()
		if err := s.again(r, &pace); err != nil {
			return false, err
		}
	}
}

// look looks for a key in the leaf that has it, if one does. done: the answer is right; else the
// leaf is to be read again.
//
// A slot that is steady had its pair at some moment of the READ. A key that is in none of the slots
// was absent at some moment of it when all are steady: a pair keeps its slot until it is deleted,
// or until a split moves it, and then the slot is written as of the header that says so.
func (s *Store) look(l *leaf, key []byte) (done, there bool, err error) {
	i := l.find(key)
	switch {
	case i < 0:
		return l.allSteady(), false, nil
	case !l.steady(i):
		return false, false, nil
	case l.kind(i) == slotBeside:
		there, err := s.readValue(pointer(l.value(i)), key)
		return there, there, err
	}
	s.out = append(s.out[:0], l.inline(i)...)
	return true, true, nil
}

// readValue reads a value beside its leaf; false: the block is used for another pair by now.
func (s *Store) readValue(p pointer, key []byte) (bool, error) {
	if err := s.sound(p); err != nil {
		return false, err
	}
	b, buf, err := s.read(stepReadValue, s.blocks.at(p.ref()), s.blockBytes)
	if err != nil {
		return false, err
	}
	defer b.Release()
	k, ok := s.readBlock(buf)
	if !ok || k.self != p || !bytes.Equal(k.key, key) {
		return false, nil
	}
	s.out = append(s.out[:0], k.value...)
	return true, nil
}

// sound returns why a pointer cannot be one.
func (s *Store) sound(p pointer) error {
	if r := p.ref(); r.node() >= s.nodes || r.index() < 0 || r.index() >= s.blocks.count {
		return fmt.Errorf("an entry names block %v: %w", r, client.ErrDamaged)
	}
	return nil
}
