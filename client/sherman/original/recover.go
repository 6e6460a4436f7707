package original

import (
	"errors"
	"fmt"
	"slices"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/rdma"
)

// Recoverer is what a pool's master uses. It mends the nodes that a dead client has
// locked, and releases the locks. It gives back, or finishes, what has the
// client's name: values, new nodes, and separators of splits. Without it a client
// that needs such a node waits until its time is over. Nothing takes a dead
// node's place. It implements cluster.Recoverer.
type Recoverer struct {
	// s is used for recoveries alone, so it has no operation of its own under
	// way when one begins.
	s *Store
}

var _ cluster.Recoverer = (*Recoverer)(nil)

// NewRecoverer returns a Recoverer that works through ep, which stays the caller's.
func NewRecoverer(ep rdma.Endpoint) (*Recoverer, error) {
	l, v, err := readLayout(ep)
	if err == nil {
		var s *Store
		if s, err = l.open(ep, v, Options{}); err == nil {
			return &Recoverer{s}, nil
		}
	}
	return nil, fmt.Errorf("open %s: %w", Format, err)
}

// Spares returns none.
func (m *Recoverer) Spares() []int { return nil }

// Mend has nothing to do.
func (m *Recoverer) Mend(rdma.View) error { return nil }

// errNoStandIn is the error of Restore.
var errNoStandIn = errors.New("no node takes a dead one's place: what it had is lost")

// Restore restores nothing: a node without replicas is lost.
func (m *Recoverer) Restore(rdma.View, int, int) error { return errNoStandIn }

// Sweep has nothing to do.
func (m *Recoverer) Sweep(rdma.View) error { return nil }

// Recover ends what a client has left that is fenced off. It may be interrupted
// at any verb, and done again. Locks come first: the nodes have to be whole for
// the search of what the tree names.
func (m *Recoverer) Recover(v rdma.View, c rdma.ClientID) error {
	s := m.s
	// In this view the client is fenced off. Its verbs have landed, or never
	// will.
	s.view.Enter(v)
	// The Recoverer may have been idle for long, so it reads the root again.
	s.root = 0
	s.span()
	// An earlier attempt may have left something.
	err := s.settle()
	if err == nil {
		err = recovery{s}.recoverLocks(c)
	}
	if err == nil {
		err = recovery{s}.recoverObjects(c)
	}
	if err == nil {
		s.span()
		// The next master may be another client, so nothing is kept.
		err = s.leave()
	}
	if err != nil {
		return fmt.Errorf("recover client %d: %w", c, err)
	}
	return nil
}

// recovery works as a Store, for another client or for its own.
type recovery struct{ *Store }

// recoverLocks mends what a client has locked, and releases it.
// Nothing of the client is in flight, so a lock in its name stays until it is
// released here. Other clients wait for it, or give up.
func (s recovery) recoverLocks(c rdma.ClientID) error {
	for n := range s.nodes {
		err := s.words(n, locks0, s.Locks, func(i int, w uint64) error {
			// A lock names a node of which it is the lock: anything else is
			// damage.
			lock := lockWord(w)
			if lock.client() != c {
				return nil
			}
			// The lock word names the node: several nodes share a lock.
			r := makeRef(n, lock.index())
			at := rdma.At(n, locks0+uint64(i)*8)
			if lock.index() >= s.trees.count || s.lockAt(r) != at {
				return fmt.Errorf("lock at %v is %#x, of no node that it is for: %w", at, w, client.ErrDamaged)
			}
			return s.recoverLock(r, at, lock)
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// recoverLock mends one node, and releases its lock in the same batch, behind
// that.
func (s recovery) recoverLock(r ref, at rdma.Addr, w lockWord) error {
	b, p, err := s.read(stepRecover, s.trees.at(r), s.nodeBytes)
	if err != nil {
		return err
	}
	defer b.Release()
	// The release follows the WRITE that mends the node, so a crash leaves the
	// lock or a whole node.
	m := s.ep.Batch()
	defer m.Release()
	// The lock's word says what the client was about to do, and so what a slot
	// that is torn may be.
	if err := s.mend(m, p, r, w); err != nil {
		return err
	}
	m.CompareSwap(at, uint64(w), 0)
	return s.do(stepRecover, m)
}

// recoverObjects goes through the objects in a client's name, when its locks were
// released. What the tree names is finished and linked. The rest becomes free,
// with the next generation. A crash leaves the other objects to the next attempt.
func (s recovery) recoverObjects(c rdma.ClientID) error {
	for _, a := range []*arena{&s.trees, &s.blocks} {
		for n := range s.nodes {
			err := s.words(n, a.words, a.count, func(i int, w uint64) error {
				if owner(w).client() != c {
					return nil
				}
				p := makePointer(makeRef(n, i), owner(w).generation())
				finish := s.finishBlock
				if a == &s.trees {
					finish = s.finishTree
				}
				// finish may insert a separator, or free another block. Both are
				// done before the word changes, which would hide what is left to
				// do.
				isLinked, err := finish(p)
				if err != nil {
					return err
				}
				// The generation is counted up, so that pointers to this use of
				// the object find another one.
				to := p.next().owned(0)
				if isLinked {
					to = p.owned(linked)
				}
				b := s.ep.Batch()
				defer b.Release()
				b.CompareSwap(a.word(p.ref()), w, to)
				return s.do(stepRecover, b)
			})
			if err != nil {
				return err
			}
		}
	}
	return nil
}

// finishTree reports whether the tree has a node. If it does, its separator is
// inserted into the parent, unless it is there.
func (s recovery) finishTree(p pointer) (bool, error) {
	b, buf, err := s.read(stepRecover, s.trees.at(p.ref()), s.body)
	if err != nil {
		return false, err
	}
	h, ok := s.readHeader(buf, p.ref())
	lower := slices.Clone(h.lower)
	b.Release()
	if !ok {
		return false, nil
	}
	// The search may reach the node by siblings alone: no parent has to name it
	// yet.
	at, err := s.nodeOf(lower, h.level)
	// The tree has another node for the key: this one was never linked, or is
	// another's by now.
	if err != nil || at != p.ref() {
		return false, err
	}
	// It is the first node of its level, which no separator precedes: it was a
	// root.
	if len(lower) == 0 {
		return true, nil
	}
	for {
		// adopt may split the parent. What that takes is in fresh, and is
		// settled or given back before the next try.
		s.fresh = fresh{}
		done, err := s.adopt(separatorOf(h.level+1, lower, p))
		if err != nil && s.unresolved.open {
			_, err = s.settled(err)
		} else if err != nil {
			s.unused()
		}
		if err != nil && (s.unresolved.open || !s.rejoin(err)) {
			return false, err
		}
		// The parent may have been split for it, so its separators are inserted,
		// too.
		if err == nil && done {
			return true, s.adoptPending()
		}
	}
}

// nodeOf returns the node of a level that a key belongs to; 0: there is no such
// level.
func (t *tree) nodeOf(key []byte, level int) (ref, error) {
	r, err := t.find(key, level)
	for err == nil && r != 0 {
		var h header
		if h, err = t.headerOf(r); err != nil || !h.beyond(key) {
			return r, err
		}
		r = t.hop(h.sibling)
	}
	return r, err
}

// finishBlock reports whether a leaf names a block. If it does, the block that it
// took the place of is free afterwards.
func (s recovery) finishBlock(p pointer) (bool, error) {
	b, buf, err := s.read(stepRecover, s.blocks.at(p.ref()), s.blockBytes)
	if err != nil {
		return false, err
	}
	k, ok := s.readBlock(buf)
	key := slices.Clone(k.key)
	b.Release()
	// The block was not written as of this use, so no leaf names it.
	if !ok || k.self != p {
		return false, nil
	}
	named, err := s.names(key, p)
	// It was the first value of its pair.
	if err != nil || k.replaces == 0 {
		return named, err
	}
	// Either no leaf ever named it, and the leaf still names the one that it was
	// to replace. Or a leaf did, and a later block took its place.
	if !named {
		before, err := s.names(key, k.replaces)
		if err != nil || before {
			return false, err
		}
	}
	_, err = s.retire(k.replaces, 0, mostRetired)
	return named, err
}

// names reports whether the leaf of a key names a block as its value.
func (t *tree) names(key []byte, p pointer) (bool, error) {
	r, err := t.find(key, 0)
	if err != nil {
		return false, err
	}
	for pace := t.pace; ; {
		b, buf, err := t.read(stepRecover, t.trees.at(r), t.nodeBytes)
		if err != nil {
			return false, err
		}
		l, whole := t.readLeaf(buf, r)
		i, beyond, next := -1, whole && l.beyond(key), l.sibling
		// A leaf that is not steady may be under a living client's lock.
		steady := whole && l.allSteady()
		if steady && !beyond {
			i = l.find(key)
		}
		named := i >= 0 && l.kind(i) == slotBeside && pointer(l.value(i)) == p
		b.Release()
		switch {
		case beyond:
			r = t.hop(next)
		case steady:
			return named, nil
		default:
			if err := t.again(r, &pace); err != nil {
				return false, err
			}
		}
	}
}

// leave gives back all that the worker has.
func (s *Store) leave() error {
	for {
		err := s.tryLeave()
		if err == nil || !s.rejoin(err) {
			return err
		}
	}
}

// tryLeave is one try. Separators come before marks, since a node in the client's
// name is how a recovery finds a separator that is missing.
func (s *Store) tryLeave() error {
	if err := s.settle(); err != nil {
		return err
	}
	// A lock that this worker has handed over names it as long as no other one has
	// made it its own.
	if err := s.releaseUnclaimed(); err != nil {
		return err
	}
	// The nodes of these separators have the client's name, until work marks
	// them as linked.
	if err := s.adoptPending(); err != nil {
		return err
	}
	// Marks and takes are done before what is free is given back.
	if err := s.work(true); err != nil {
		return err
	}
	if err := s.shed(true); err != nil {
		return err
	}
	// Words in the client's name are looked for as in a recovery, since nothing
	// of it is in flight any more.
	if s.unsure {
		if err := (recovery{s}).recoverObjects(s.id); err != nil {
			return err
		}
		s.unsure = false
		if err := s.work(true); err != nil {
			return err
		}
		return s.shed(true)
	}
	return nil
}
