package original

import (
	"bytes"
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/node/rdma"
)

// A node never gets keys below those that it had, and no node is given up. What a
// cached node names is there, on the same level, and has all keys from its lower
// fence on up to its upper fence, where its sibling goes on. So a way that is
// outdated leads to a node to the left of the right one, and siblings lead on.

// tree reads the tree without locks.
type tree struct {
	*session
	// cache has internal nodes. Leaves are always read.
	cache *cache
	// root is the root's word as it was read last; 0: it has to be read.
	root root
	// above is the internal node that has led to the leaf; 0: none has.
	above ref
	// out has the value that Get returns. It is used again.
	out []byte
}

// find returns the node of a level that leads to a key, as far as the worker
// remembers nodes above it. It reads those that it does not remember. The node
// may be to the left of the key's. 0: the tree has no such level, as far as the
// worker knows.
func (t *tree) find(key []byte, level int) (ref, error) {
	// The root's word is read once. An old root is still the first node of its
	// level.
	if t.root == 0 {
		if err := t.readRoot(); err != nil {
			return 0, err
		}
	}
	// Another client may have raised the tree since, which the caller finds out.
	if t.root.level() < level {
		return 0, nil
	}
	at := t.root.ref()
	t.above = 0
	for l := t.root.level(); l > level; {
		n, err := t.internalAt(at)
		if err != nil {
			return 0, err
		}
		if n.level != l {
			return 0, fmt.Errorf("node %v has level %d, and its parent says %d: %w", at, n.level, l, client.ErrDamaged)
		}
		// The cached node was split since it was read, or its parent lacks the
		// separator.
		if n.beyond(key) {
			at = t.hop(n.sibling)
			continue
		}
		// above is remembered as the node that is outdated if its child turns out
		// to be too far to the left.
		t.above, at = at, n.at(n.place(key))
		l--
	}
	return at, nil
}

// readRoot reads the word that names the root.
func (t *tree) readRoot() error {
	b, p, err := t.read(stepReadRoot, t.rootWord(), 8)
	if err != nil {
		return err
	}
	defer b.Release()
	t.root = root(le.Uint64(p))
	if r := t.root.ref(); r == 0 || r.node() >= t.nodes || t.root.level() > mostHeight {
		return fmt.Errorf("the root is %#x: %w", uint64(t.root), client.ErrDamaged)
	}
	return nil
}

// hop goes on to a sibling, and forgets the node that should have led there.
func (t *tree) hop(sibling ref) ref {
	t.stats.Hops++
	// Its parent should have led to the sibling.
	if t.above != 0 {
		t.cache.drop(t.above)
	} else {
		t.root = 0
	}
	return sibling
}

// internalAt returns an internal node as the worker remembers it, or reads it
// until it is whole. The result is valid until the next node is read.
func (t *tree) internalAt(r ref) (*cached, error) {
	if n := t.cache.get(r); n != nil {
		return n, nil
	}
	for pace := t.pace; ; {
		b, p, err := t.read(stepReadNode, t.trees.at(r), t.nodeBytes)
		if err != nil {
			return nil, err
		}
		t.stats.Fetched++
		// A node that is not whole is not cached.
		n := t.cache.put(&t.format, r, p)
		b.Release()
		if n != nil {
			return n, nil
		}
		if err := t.again(r, &pace); err != nil {
			return nil, err
		}
	}
}

// again pauses before a node is read again that was not whole. The node was being
// written, or was left half written by a client that died. When the time is over,
// the error names the client that has the lock.
func (t *tree) again(r ref, pace *kit.Retry) error {
	t.stats.Torn++
	if pace.Again() {
		return nil
	}
	// The time is over. The lock's word says which client was about to write the
	// node.
	b, p, err := t.read(stepReadLocked, t.lockAt(r), 8)
	if err != nil {
		return err
	}
	defer b.Release()
	// A client at work releases the lock sooner than this: it is dead, or stands
	// still.
	if w := lockWord(le.Uint64(p)); w != 0 {
		return fmt.Errorf("node %v is half written: %w", r, w.blocked())
	}
	return fmt.Errorf("node %v changes all the time: %w", r, rdma.ErrTimeout)
}

// Get implements client.Store. It takes no lock. The value is the Store's: it is
// valid until the next call.
func (s *Store) Get(key []byte) ([]byte, error) {
	if err := s.begin(key, nil); err != nil {
		return nil, fmt.Errorf("get: %w", err)
	}
	// Other clients may wait for background jobs of this one. What fails is done
	// again.
	_ = s.work(false)
	ok, err := s.get(key)
	switch {
	case err != nil:
		return nil, fmt.Errorf("get: %w", err)
	case !ok:
		return nil, fmt.Errorf("get %.40q: %w", key, client.ErrNotFound)
	}
	return s.out, nil
}

// get looks for a key, and puts its value into s.out.
func (t *tree) get(key []byte) (ok bool, err error) {
	r, err := t.find(key, 0)
	if err != nil {
		return false, err
	}
	for pace := t.pace; ; {
		b, p, err := t.read(stepReadLeaf, t.trees.at(r), t.nodeBytes)
		if err != nil {
			return false, err
		}
		// The leaf may be the key's, or one to the left of it.
		l, whole := t.readLeaf(p, r)
		if whole && l.beyond(key) {
			b.Release()
			r = t.hop(l.sibling)
			continue
		}
		if whole {
			done, there, err := t.look(&l, key)
			if done || err != nil {
				b.Release()
				return there, err
			}
		}
		b.Release()
		if err := t.again(r, &pace); err != nil {
			return false, err
		}
	}
}

// look looks for a key in the leaf that the key belongs to. done: the answer is
// right. Otherwise the leaf is to be read again.
//
// A steady slot had its pair at some moment of the READ. If all slots are steady,
// and none has the key, the key was absent at some moment of the READ: a pair
// keeps its slot until it is deleted, or until a split moves it, and then the
// slot is written as of the header that says so.
func (t *tree) look(l *leaf, key []byte) (done, there bool, err error) {
	i := l.find(key)
	switch {
	case i < 0:
		return l.allSteady(), false, nil
	// A later header may have come with the slot: the key may be in another leaf
	// by now.
	case !l.steady(i):
		return false, false, nil
	case l.kind(i) == slotBeside:
		there, err := t.readValue(pointer(l.value(i)), key)
		return there, there, err
	}
	t.out = append(t.out[:0], l.inline(i)...)
	return true, true, nil
}

// readValue reads a value beside its leaf. It returns false if the block is used
// for another pair by now.
func (t *tree) readValue(p pointer, key []byte) (bool, error) {
	if err := t.sound(p); err != nil {
		return false, err
	}
	b, buf, err := t.read(stepReadValue, t.blocks.at(p.ref()), t.blockBytes)
	if err != nil {
		return false, err
	}
	defer b.Release()
	k, ok := t.readBlock(buf)
	// The block is used again, or its WRITE is under way: the slot names another
	// one by now.
	if !ok || k.self != p || !bytes.Equal(k.key, key) {
		return false, nil
	}
	t.out = append(t.out[:0], k.value...)
	return true, nil
}

// sound returns an error for a pointer that names no block of the pool.
func (t *tree) sound(p pointer) error {
	if r := p.ref(); r.node() >= t.nodes || r.index() < 0 || r.index() >= t.blocks.count {
		return fmt.Errorf("an entry names block %v: %w", r, client.ErrDamaged)
	}
	return nil
}
