package sherman

import (
	"errors"
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/sherman/btree"
)

// A change locks the key's leaf before it reads it (OPT2, section 5). So it is
// not run again because another pair of the leaf has changed meanwhile. A
// transaction that changes the leaf alone has no log (OPT1).
//
// A crash before the transaction is decided leaves locks, and nothing that was
// changed. Behind it all of the change is there, or is completed from the log
// while its objects are still locked: README.md says by which client.

// lockLeaf locks and reads the key's leaf. It returns errStale if the leaf is not
// the key's. The leaf points into the transaction's data, so it must not be
// changed: see changed.
func (s *Store) lockLeaf(tx transaction) (btree.Leaf, error) {
	// The lock is taken before the leaf is read, so the transaction does not fail
	// because another one changes the leaf in between.
	if err := tx.lock(s.way[0]); err != nil {
		return btree.Leaf{}, staleIfGone(err)
	}
	p, err := tx.read(s.way[0])
	if err == errGone {
		// The root of an empty tree has no data.
		p, err = s.orBlank(s.way[0], nil), nil
	}
	if err != nil {
		return btree.Leaf{}, err
	}
	l, ok := s.format.DecodeLeaf(p)
	if !ok || l.Side(s.key) != 0 {
		return btree.Leaf{}, errStale
	}
	return l, nil
}

// staleIfGone makes errGone errStale: a leaf that is gone was merged, and the way
// to it is outdated.
func staleIfGone(err error) error {
	if err == errGone {
		return errStale
	}
	return err
}

// changed returns a copy of a leaf in s.node, which may be changed. A transaction
// copies what it writes, so s.node has the next node of the same transaction then.
func (s *Store) changed(l btree.Leaf) btree.Leaf { return l.Copy(s.node) }

// Insert implements client.Store.
func (s *Store) Insert(key, value []byte) error {
	if err := s.begin(key, value); err != nil {
		return fmt.Errorf("insert: %w", err)
	}
	err := s.do(s.insertTx)
	if errors.Is(err, client.ErrFull) && s.look() == nil {
		err = client.ErrExists // the key is there, and needs no room
	}
	if err != nil {
		return fmt.Errorf("insert: %w", err)
	}
	return nil
}

// insert is the transaction of an INSERT. A full leaf is split in the same
// transaction.
//
// The value's object is made before the leaf is locked: in a full pool to look
// for room takes many trips, for which others would wait.
func (s *Store) insert(tx transaction) (err error) {
	p := btree.Pair{Key: s.key, Value: s.value}
	if len(s.value) > btree.Inline {
		// The object and the entry that names it come to be in one transaction.
		if p.Beside, err = s.createBeside(tx); err != nil {
			return err
		}
	}
	l, err := s.lockLeaf(tx)
	if err != nil {
		return err
	}
	// The leaf is locked, so no other client inserts the key before the commit.
	if l.Find(s.key) >= 0 {
		return client.ErrExists
	}
	// Pairs of a leaf are in no order, so any free entry will do.
	slot := l.Free()
	if slot < 0 {
		return s.splitLeaf(tx, l, p)
	}
	n := s.changed(l)
	n.Set(slot, &p)
	return tx.write(s.way[0], s.node)
}

// createBeside makes the object of the operation's value, with room for each
// value that may come later.
func (s *Store) createBeside(tx transaction) (btree.Ref, error) {
	s.beside = btree.EncodeValue(s.beside[:0], s.key, s.value)
	return tx.create(s.beside, btree.ValueBytes(s.KeyBytes, s.ValueBytes))
}

// Update implements client.Store. A value that lies beside its leaf is replaced
// there, and the leaf is not touched. It stays beside the leaf, however short it
// becomes.
func (s *Store) Update(key, value []byte) error {
	if err := s.begin(key, value); err != nil {
		return fmt.Errorf("update: %w", err)
	}
	// The value before most likely has about the same length.
	beside := len(value) > btree.Inline
	for !s.objects.over() {
		err := s.updateWhere(beside)
		if err == nil {
			return nil
		}
		if err != errMoved && err != errBeside {
			return fmt.Errorf("update: %w", err)
		}
		// After errBeside the value is in the other place. After errMoved the
		// leaf says where it is.
		beside = !beside || err == errMoved
	}
	return fmt.Errorf("update: %w", errTime)
}

// updateWhere replaces a value beside its leaf, or one in it. It returns
// errBeside if the value lies in the other place, and errMoved if it is to be
// looked for again.
func (s *Store) updateWhere(beside bool) error {
	if !beside {
		return s.do(s.updateTx)
	}
	if err := s.look(); err != nil {
		return err
	}
	if s.found == foundHere {
		return errBeside
	}
	return s.objects.run(s.replaceTx)
}

// update is the transaction of an UPDATE of a value in the leaf.
func (s *Store) update(tx transaction) error {
	l, err := s.lockLeaf(tx)
	if err != nil {
		return err
	}
	slot := l.Find(s.key)
	if slot < 0 {
		return client.ErrNotFound
	}
	// It is replaced there, by another transaction, which does not touch the
	// leaf.
	if l.Pair(slot).Beside != 0 {
		return errBeside
	}
	p := btree.Pair{Key: s.key, Value: s.value}
	if len(s.value) > btree.Inline {
		if p.Beside, err = s.createBeside(tx); err != nil {
			return err
		}
	}
	n := s.changed(l)
	n.Set(slot, &p)
	return tx.write(s.way[0], s.node)
}

// replace is the transaction of an UPDATE of the value at s.at. If the value is
// the key's, its pair is there: a DELETE frees it with the leaf's entry, and no
// other transaction changes its key.
func (s *Store) replace(tx transaction) error {
	// s.at was read without a transaction, so it may name anything by now: the
	// key in the value decides.
	if err := tx.lock(s.at); err != nil {
		return movedIfGone(err)
	}
	p, err := tx.read(s.at)
	if err != nil {
		return movedIfGone(err)
	}
	// The object is locked, so what is decided here holds until the commit.
	key, _, ok := btree.DecodeValue(p)
	if !ok || string(key) != string(s.key) {
		return errMoved
	}
	s.beside = btree.EncodeValue(s.beside[:0], s.key, s.value)
	return tx.write(s.at, s.beside)
}

// movedIfGone makes errGone errMoved: a value that is gone was deleted, and may
// be inserted again elsewhere.
func movedIfGone(err error) error {
	if err == errGone {
		return errMoved
	}
	return err
}

// Delete implements client.Store. When few pairs are left in the leaf, a
// transaction of its own merges it with its neighbor afterwards: see merge. If the
// outcome of that is unknown the error says so, though the pair is deleted: the
// worker may hold locks.
func (s *Store) Delete(key []byte) error {
	if err := s.begin(key, nil); err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	if err := s.do(s.deleteTx); err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	// The DELETE is committed. A crash from here on leaves a leaf with few pairs.
	if !s.few(s.left) {
		return nil
	}
	if err := s.shrink(); err != nil {
		return fmt.Errorf("delete: %w", err)
	}
	return nil
}

// remove is the transaction of a DELETE. The value beside the leaf is freed with
// the entry.
func (s *Store) remove(tx transaction) error {
	l, err := s.lockLeaf(tx)
	if err != nil {
		return err
	}
	slot := l.Find(s.key)
	if slot < 0 {
		return client.ErrNotFound
	}
	// No reader finds the value without the entry, or the entry without the
	// value.
	if at := l.Pair(slot).Beside; at != 0 {
		if err := tx.free(at); err == errGone {
			return fmt.Errorf("the value of %.40q is not there: %w", s.key, client.ErrDamaged)
		} else if err != nil {
			return err
		}
	}
	n := s.changed(l)
	n.Clear(slot)
	// Of the last attempt, which is the one that commits.
	s.left = n.Count()
	return tx.write(s.way[0], s.node)
}
