package swarm

import (
	"errors"
	"slices"

	"github.com/farkv/farkv/client/directory"
)

// A pendingDrop is a dying entry of which this client has ended the object. The client drops the
// entry with its next change of the bucket; or by a change of its own, when an epoch has begun,
// since some client may be short of objects then, when it has more than mostPendingDrops, or when
// it closes. So most DELETEs take no trip to drop their entry. A crash leaves the entry to an
// INSERT that needs the room, or to a sweep.
type pendingDrop struct {
	// location has the bit dying.
	hash, location uint64
	// named is the epoch in which the directory named the entry.
	named uint64
}

// mostPendingDrops bounds the entries that a client has yet to drop.
const mostPendingDrops = 16

// addPendingDrop leaves an entry to a later change. If too many are left, it drops the oldest.
func (s *Store) addPendingDrop(d pendingDrop) {
	s.pendingDrops = append(s.pendingDrops, d)
	s.dropPending(mostPendingDrops)
}

// isPendingDrop reports whether the client has yet to drop an entry. Two epochs after the directory
// named the entry, its location may be another object's.
func (s *Store) isPendingDrop(e directory.Entry) bool {
	return slices.ContainsFunc(s.pendingDrops, func(d pendingDrop) bool {
		return d.hash == e.Hash && d.location == e.Location && s.member.Epoch <= d.named+1
	})
}

// dropPending drops the oldest pending entries, until most are left. The client forgets an entry
// before it drops it: if the change fails, the entry is left to an INSERT or a sweep.
func (s *Store) dropPending(most int) {
	for len(s.pendingDrops) > most {
		d := s.pendingDrops[0]
		s.pendingDrops = s.pendingDrops[:copy(s.pendingDrops, s.pendingDrops[1:])]
		_ = s.drop(change{s: s, hash: d.hash, named: d.named, ended: []uint64{d.location}}, d.location)
	}
}

// dropped is called when a change of this client is complete that dropped entries, which the
// directory still named in the epoch named, or later. They are pending no more. The client retires
// their objects: only it knows that no entry names them any more. But another client may have
// completed the change long ago. So two epochs later the client leaves the objects to a sweep: one
// may have been retired and claimed since, and then its word is zero as before.
func (s *Store) dropped(locations []uint64, named uint64) {
	s.pendingDrops = slices.DeleteFunc(s.pendingDrops, func(d pendingDrop) bool {
		return slices.Contains(locations, d.location&^dying)
	})
	if s.member.Epoch <= named+1 {
		s.retire(locations, s.member.Epoch+retiredFor)
	}
}

// errDropped ends a change that finds no entry to drop: another client has dropped it.
var errDropped = errors.New("the entry was dropped")

// drop drops the dying entry of the change's hash and a location. First it ends the object, unless
// the change knows that it has ended. The error wraps errDropped if the entry is not there.
func (s *Store) drop(c change, location uint64) error {
	return c.run(func(bucket []directory.Entry) ([]directory.Entry, error) {
		rest := c.sift(bucket)
		switch {
		case slices.Contains(rest, directory.Entry{Hash: c.hash, Location: location}):
			c.met, c.spare = append(c.met[:0], location), false
			return nil, errDying
		case len(c.dropped) == 0:
			return nil, errDropped
		}
		return rest, nil
	})
}
