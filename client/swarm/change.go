package swarm

import (
	"errors"
	"fmt"
	"slices"

	"github.com/cespare/xxhash/v2"
	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/directory"
	"github.com/farkv/farkv/node/rdma"
)

// change is a change of the directory's bucket of a key: an INSERT's, a DELETE's, or the drop of
// a dying entry.
type change struct {
	s    *Store
	hash uint64
	key  []byte
	// met are locations of dying entries that block the change, and need their tombstones first.
	met []uint64
	// ended are locations of dying entries of which the objects have their tombstones. They are
	// valid for the epoch named and the next one: later a location may be another object's.
	ended []uint64
	// spare: the entries in met only take the room that the change needs. Otherwise they are the
	// key's or may be.
	spare bool
	// left are locations of dying entries that take room and of which the objects are out of reach.
	// They are valid for the epoch named. cause is the last error that met one.
	left  []uint64
	cause error
	// at is the location of the key, and k is its register.
	at uint64
	k  Register
	// marked is the location that a DELETE marks as dying in this change, and victim is its
	// register.
	marked uint64
	victim Register
	// named is the epoch in which the directory named what find meets, or an earlier one.
	named uint64
	// dropped are the locations of the entries that the last decision left out.
	dropped []uint64
}

// errDying ends a change that met a dying entry. A mark counts only once it is chosen. The
// directory returns an error of a decision only if the entries that it saw were chosen: so behind
// this error the mark is. Before that, a tombstone would delete a key that no client has deleted.
var errDying = errors.New("an entry is dying")

// find looks for the key among a bucket's entries, and leaves out those of which the objects are
// known to have ended. rest are the others, in bucket's memory, and at is the key's index there;
// -1: there is none. A dying entry of the hash may be the key's: then the error is errDying, and
// its object is ended first.
//
// It runs inside a decision, and takes trips for objects that are not cached. So another client may
// change the bucket meanwhile: then the decision is made again, and what find has noted of the key
// before does not count.
func (c *change) find(bucket []directory.Entry) (rest []directory.Entry, at int, err error) {
	bucket = c.sift(bucket)
	rest, at = bucket[:0], -1
	for _, e := range bucket {
		switch {
		case e.Hash != c.hash:
			// Another key's entry stays as it is.
		case e.Location&dying != 0:
			c.met, c.spare = append(c.met[:0], e.Location), false
			return nil, 0, errDying
		default:
			ok, err := c.is(e.Location)
			if err != nil {
				return nil, 0, err
			}
			if ok {
				at = len(rest)
			}
		}
		rest = append(rest, e)
	}
	return rest, at, nil
}

// sift leaves out the dying entries of a bucket that have their tombstones, as far as the client
// knows, and notes them as dropped.
func (c *change) sift(bucket []directory.Entry) []directory.Entry {
	c.dropped = c.dropped[:0]
	rest := bucket[:0]
	for _, e := range bucket {
		if c.hasEnded(e) || c.s.isPendingDrop(e) {
			c.dropped = append(c.dropped, e.Location&^dying)
			continue
		}
		rest = append(rest, e)
	}
	return rest
}

// hasEnded reports whether this change has ended the object of an entry. Two epochs later the
// location may be another object's.
func (c *change) hasEnded(e directory.Entry) bool {
	return slices.Contains(c.ended, e.Location) && c.s.member.Epoch <= c.named+1
}

// makeRoom finds the dying entries of other keys in a full bucket. It returns errDying until
// endObjects has tried each of them; then sift leaves them out. An entry stays if its object is
// out of reach, which may lie on other nodes than the bucket. The change fails only if such
// entries leave no room.
func (c *change) makeRoom(bucket []directory.Entry) error {
	if len(bucket) < directory.Slots {
		return nil
	}
	c.met, c.spare = c.met[:0], true
	kept := false
	for _, e := range bucket {
		switch {
		case e.Location&dying == 0:
		case slices.Contains(c.left, e.Location):
			kept = true
		default:
			c.met = append(c.met, e.Location)
		}
	}
	switch {
	case len(c.met) > 0:
		return errDying
	case kept:
		return fmt.Errorf("make room in the bucket of the key: %w", c.cause)
	}
	return nil
}

// is reports whether the object at a location holds the key, and notes its register. What is cached
// is trusted within the epochs in which the object may be used. The error wraps errMoved if the
// object was deleted meanwhile.
func (c *change) is(location uint64) (ok bool, err error) {
	e := c.s.find(c.hash, c.key)
	if e != nil && e.location == location && !e.gone && c.s.c.current(&e.Register) == nil {
		c.k, c.at = e.Register, location
		return true, nil
	}
	k, _, ok, err := c.s.read(location, c.key, c.named)
	if errors.Is(err, ErrGone) {
		return false, errMoved
	}
	if ok {
		c.k, c.at = k, location
	}
	return ok, err
}

// run makes a change of the directory. It repeats the change after it has ended the objects of
// the dying entries that block it, and after an object was deleted, or became outdated, during
// the decision, unless the outcome is unknown. Each attempt has an id of its own: the attempt
// before had no effect. In a new epoch it forgets what it knew of ended and unreachable objects.
func (c *change) run(decide func(bucket []directory.Entry) ([]directory.Entry, error)) error {
	for range turns {
		id, err := c.s.change()
		if err != nil {
			return err
		}
		// A new change may mark another object: the one before had no effect.
		c.marked = 0
		if now := c.s.member.Epoch; now != c.named {
			c.named, c.ended, c.left = now, c.ended[:0], c.left[:0]
		}
		c.s.accesses++
		err = c.s.dir.Change(c.hash, id, decide)
		switch {
		case errors.Is(err, errDying):
			if err := c.endObjects(); err != nil {
				return err
			}
		case errors.Is(err, errMoved) && !errors.Is(err, client.ErrUncertain):
		case errors.Is(err, ErrOutdated) && !errors.Is(err, client.ErrUncertain):
		case err == nil:
			// Only now the directory does not name these objects any more.
			c.s.dropped(c.dropped, c.named)
			return nil
		default:
			return err
		}
	}
	return errStopped
}

// endObjects brings the tombstones to the objects that the change has met: those of a bucket's
// entries at most. If the entries only take room, it leaves those out of reach; and after a
// timeout all that remain, so that a change waits for one timeout at most.
func (c *change) endObjects() error {
	for i, location := range c.met {
		if err := c.s.finish(location, c.named); err != nil {
			late := errors.Is(err, rdma.ErrTimeout)
			if !c.spare || !late && !unreachable(err) {
				return err
			}
			c.cause = err
			if late {
				c.left = append(c.left, c.met[i:]...)
				return nil
			}
			c.left = append(c.left, location)
			continue
		}
		c.ended = append(c.ended, location)
	}
	return nil
}

// Insert adds a key. The error wraps client.ErrExists if it exists, client.ErrFull if there is no
// memory, and client.ErrUncertain if the outcome is unknown.
func (s *Store) Insert(key, value []byte) error {
	return s.persist("insert", func() error { return s.insert(key, value) })
}

// errVoid is wrapped when the client does not own the object of an INSERT any more, since a sweep
// has begun. Nothing was inserted.
var errVoid = fmt.Errorf("the object is another's: %w", rdma.ErrStale)

// insert writes the pair at a majority before the directory names the object, so that no object
// that it names is empty. The decision checks that the client still owns the object (package kit,
// R1), also when it is repeated in a later epoch.
//
// If the key exists, the object stays the client's, for the next INSERT. If the outcome is unknown,
// the client does not own it: the directory may name it.
//
// What a crash here leaves: an object that no client knows, with its buffers, for a sweep; or the
// key, inserted.
func (s *Store) insert(key, value []byte) error {
	if err := s.encode(key, value); err != nil {
		return err
	}
	if err := s.begin(); err != nil {
		return err
	}
	if err := s.draw(); err != nil {
		return err
	}
	o := &s.objects
	if err := s.c.create(&o.spare, s.pair); err != nil {
		return err
	}
	c := change{s: s, hash: xxhash.Sum64(key), key: key}
	err := c.run(func(bucket []directory.Entry) ([]directory.Entry, error) {
		rest, at, err := c.find(bucket)
		if err != nil {
			return nil, err
		}
		if at >= 0 {
			return nil, client.ErrExists
		}
		if !s.member.Keeps(o.epoch) {
			return nil, errVoid
		}
		if err := c.makeRoom(rest); err != nil {
			return nil, err
		}
		return append(rest, directory.Entry{Hash: c.hash, Location: o.location}), nil
	})
	switch {
	case err == nil:
		s.remember(c.hash, key, o.location, o.spare)
		o.location = 0
	case errors.Is(err, client.ErrUncertain):
		// The directory may name the object. If it does not, a sweep finds it.
		o.location = 0
	case errors.Is(err, client.ErrExists):
		s.remember(c.hash, key, c.at, c.k)
	}
	return err
}

// Delete removes a key. The error wraps client.ErrNotFound if it does not exist, and
// client.ErrUncertain if the outcome is unknown.
func (s *Store) Delete(key []byte) error {
	return s.persist("delete", func() error { return s.remove(key) })
}

// mark is the decision of a DELETE: it marks the key's entry as dying. All attempts of a change
// mark the same object, so that the client knows which one it was if another client completes the
// change.
func (c *change) mark(bucket []directory.Entry) ([]directory.Entry, error) {
	rest, at, err := c.find(bucket)
	switch {
	case err != nil:
		return nil, err
	case at < 0:
		return nil, errNotFound
	case c.marked != 0 && c.marked != c.at:
		return nil, errMoved
	}
	c.marked, c.victim = c.at, c.k
	rest[at].Location |= dying
	return rest, nil
}

// remove is an attempt at DELETE. First it marks the entry, which decides which client deletes the
// key, and then it writes the tombstone. From then on the key does not exist.
//
// What a crash between mark and tombstone leaves: clients that have cached the object still read
// and write it, until a client asks the directory. That client writes the tombstone. A crash
// behind the tombstone leaves a dying entry, for an INSERT that needs the room, or for a sweep.
func (s *Store) remove(key []byte) error {
	if err := s.begin(); err != nil {
		return err
	}
	c := change{s: s, hash: xxhash.Sum64(key), key: key}
	err := c.run(c.mark)
	// Also if the outcome is unknown: the next operation on the key asks the directory.
	s.cache.Drop(c.hash)
	if err != nil {
		return err
	}
	// From here on this DELETE has decided: any failure is one of the tombstone.
	err = s.c.Delete(&c.victim)
	switch {
	case err == nil:
		s.addPendingDrop(pendingDrop{c.hash, c.marked | dying, c.named})
	case errors.Is(err, rdma.ErrStale) || unreachable(err):
		err = s.finishDelete(c.hash, c.marked|dying)
	}
	return err
}

// finishDelete ends a DELETE of which the tombstone failed: an epoch has begun, or nodes were out
// of reach. Since the mark the location may have become another object's. So it asks the
// directory: while the dying entry is there, the object is the same. It brings the tombstone and
// drops the entry. If the entry is not there, another client has done both. The mark has decided
// the DELETE, and a tombstone may be repeated: so finishDelete waits for nodes that are out of
// reach, until the timeout.
func (s *Store) finishDelete(hash, location uint64) error {
	var t tries
	for {
		err := s.drop(change{s: s, hash: hash}, location)
		if errors.Is(err, errDropped) || err == nil {
			return nil // behind the tombstone, be it another client's
		}
		if !unreachable(err) || !s.reach(&t) {
			return uncertain("delete", err)
		}
	}
}
