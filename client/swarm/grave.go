package swarm

import (
	"errors"
	"slices"

	"github.com/farkv/farkv/client/directory"
)

// A grave is a dying entry of which this client has buried the object. The client drops the entry
// with its next change of the bucket; or by a change of its own, when an epoch has begun, since
// some client may be short of objects then, when it has more than mostGraves, or when it closes. So
// most DELETEs take no trip to drop their entry. A crash leaves the entry to an INSERT that needs
// the room, or to a sweep.
type grave struct {
	// location has the bit dying.
	hash, location uint64
	// named is the epoch in which the directory named the entry.
	named uint64
}

// mostGraves bounds the entries that a client has yet to drop.
const mostGraves = 16

// dig adds a grave. If there are too many, it drops the entry of the oldest.
func (s *Store) dig(g grave) {
	s.graves = append(s.graves, g)
	s.fill(mostGraves)
}

// buried reports whether an entry is one of the client's graves. Two epochs after the directory
// named the entry, its location may be another object's.
func (s *Store) buried(e directory.Entry) bool {
	return slices.ContainsFunc(s.graves, func(g grave) bool {
		return g.hash == e.Hash && g.location == e.Location && s.epoch() <= g.named+1
	})
}

// fill drops the entries of the oldest graves, until most are left. A grave is forgotten before its
// entry is dropped: if the change fails, the entry is left to an INSERT or a sweep.
func (s *Store) fill(most int) {
	for s.member != nil && len(s.graves) > most {
		g := s.graves[0]
		s.graves = s.graves[:copy(s.graves, s.graves[1:])]
		_ = s.drop(change{s: s, hash: g.hash, named: g.named, buried: []uint64{g.location}}, g.location)
	}
}

// dropped is called when a change of this client is complete that dropped entries. The client
// forgets their graves, and retires the objects: only it knows that no entry names them any more.
func (s *Store) dropped(locations []uint64) {
	s.graves = slices.DeleteFunc(s.graves, func(g grave) bool { return slices.Contains(locations, g.location&^dying) })
	s.retire(locations, s.epoch()+retiredFor)
}

// errDropped ends a change that finds no entry to drop: another client has dropped it.
var errDropped = errors.New("the entry was dropped")

// drop drops the dying entry of the change's hash and a location. First it buries the object,
// unless the change knows that it is buried. The error wraps errDropped if the entry is not
// there.
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
