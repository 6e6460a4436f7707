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

// change is what INSERT and DELETE do to the directory's bucket of a key.
type change struct {
	s      *Store
	hash   uint64
	key    []byte
	met    []uint64 // locations of dying entries that stand in the way and need their tombstones
	buried []uint64 // of those that have them, since epoch named
	spare  bool     // what was met stands in the way of room only
	left   []uint64 // locations of such entries whose objects are out of reach, since epoch named
	cause  error    // why the last of them is
	at     uint64   // location of the key
	k      Register
	marked uint64 // location of what a DELETE was to mark as dying, in this change
	victim Register
	named  uint64 // epoch in which the directory named what find meets, or a later one
	// dropped are the locations of the entries that the last decision left out.
	dropped []uint64
}

// errDying ends a change that met a dying entry. Such a mark counts only once it is chosen, and it
// is chosen when the change ends with this error. Before that, a tombstone would delete a key that
// no client has deleted.
var errDying = errors.New("an entry is dying")

// find looks for the key among a bucket's entries, and leaves out what is known to be buried. at is
// -1 when it is not there.
func (c *change) find(bucket []directory.Entry) (rest []directory.Entry, at int, err error) {
	bucket = c.sift(bucket)
	rest, at = bucket[:0], -1
	for _, e := range bucket {
		switch {
		case e.Hash != c.hash:
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

// sift leaves out the dying entries of a bucket whose objects are known to have their tombstones.
func (c *change) sift(bucket []directory.Entry) []directory.Entry {
	c.dropped = c.dropped[:0]
	rest := bucket[:0]
	for _, e := range bucket {
		if c.isBuried(e) || c.s.buried(e) {
			c.dropped = append(c.dropped, e.Location&^dying)
			continue
		}
		rest = append(rest, e)
	}
	return rest
}

// isBuried reports whether an entry is a dying one whose object has had its tombstone from this
// change. Two epochs later its location may be another object's.
func (c *change) isBuried(e directory.Entry) bool {
	return slices.Contains(c.buried, e.Location) && c.s.epoch() <= c.named+1
}

// makeRoom finds dying entries of other keys in a full bucket, which are buried and left out before
// it is asked again: it returns errDying while bury has not tried one of them. Those whose objects
// are out of reach stay: their nodes may be other ones than the bucket's. It fails for them only
// when they leave no room.
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

// is reports whether the key is the one at a location.
func (c *change) is(location uint64) (ok bool, err error) {
	if e := c.s.find(c.hash, c.key); e != nil && e.location == location && !e.gone && c.s.current(&e.Register) {
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

// run makes a change of the directory, as often as it takes to get dying entries out of its way.
func (c *change) run(decide func(bucket []directory.Entry) ([]directory.Entry, error)) error {
	for range turns {
		id, err := c.s.change()
		if err != nil {
			return err
		}
		c.marked = 0
		if now := c.s.epoch(); now != c.named {
			c.named, c.buried, c.left = now, c.buried[:0], c.left[:0]
		}
		c.s.accesses++
		err = c.s.dir.Change(c.hash, id, decide)
		switch {
		case errors.Is(err, errDying):
			if err := c.bury(); err != nil {
				return err
			}
		case errors.Is(err, errMoved) && !errors.Is(err, client.ErrUncertain):
		case errors.Is(err, ErrOutdated) && !errors.Is(err, client.ErrUncertain):
		case err == nil:
			c.s.dropped(c.dropped)
			return nil
		default:
			return err
		}
	}
	return errStopped
}

// bury brings the tombstones to what the change has met: a bucket's entries at most. Of what stands
// in the way of room only, it leaves what is out of reach; after a timeout, all the rest, so that
// one change waits for one timeout.
func (c *change) bury() error {
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
		c.buried = append(c.buried, location)
	}
	return nil
}

// Insert adds a key that is not there.
func (s *Store) Insert(key, value []byte) error {
	return s.persist("insert", func() error { return s.insert(key, value) })
}

// errVoid is wrapped when the object of an INSERT is the client's no more, since a sweep has begun.
// Nothing was inserted.
var errVoid = fmt.Errorf("the object is another's: %w", rdma.ErrStale)

// insert writes the pair at a majority before any other client can find it, so that no object that
// the directory names is empty.
//
// What a crash here leaves: an object that no client knows, with its buffers; or a key that is
// there.
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
		if s.member != nil && !s.member.Keeps(o.epoch) {
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
		o.location = 0
	case errors.Is(err, client.ErrExists):
		s.remember(c.hash, key, c.at, c.k)
	}
	return err
}

// Delete removes a key that is there.
func (s *Store) Delete(key []byte) error {
	return s.persist("delete", func() error { return s.remove(key) })
}

// mark marks the key's entry as dying. A change marks one object only, whatever becomes of its
// attempts, so that the client knows which one it was when others have finished it.
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

// remove marks the entry, which decides which client deletes the key, and then writes the
// tombstone. The key is gone when the tombstone is written.
//
// What a crash in between leaves: a key that is there for the clients that know its object, until
// a client asks the directory. That client writes the tombstone. Behind the tombstone it leaves a
// dying entry, for an INSERT that needs the room, or a sweep.
func (s *Store) remove(key []byte) error {
	if err := s.begin(); err != nil {
		return err
	}
	c := change{s: s, hash: xxhash.Sum64(key), key: key}
	err := c.run(c.mark)
	s.cache.Drop(c.hash)
	if err != nil {
		return err
	}
	err = s.c.Delete(&c.victim)
	switch {
	case err == nil:
		s.dig(grave{c.hash, c.marked | dying, c.named})
	case errors.Is(err, rdma.ErrStale) || unreachable(err):
		err = s.entomb(c.hash, c.marked|dying)
	}
	return err
}

// entomb brings the tombstone to an object that the client has marked as dying so long ago that it
// is not sure that it is still the same, and drops the entry: if the object is the same, the
// directory says so. The mark has decided, and a tombstone may be brought again, so nodes that are
// out of reach are waited for.
func (s *Store) entomb(hash, location uint64) error {
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
