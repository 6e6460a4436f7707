package swarm

import (
	"errors"
	"slices"

	"github.com/farkv/farkv/client/directory"
)

// A grave is a dying entry whose object has its tombstone from this client. The client drops the
// entry with the next change that it makes in the bucket anyway; or else by a change of its own,
// when an epoch has begun, since objects are short then, when it has mostGraves others, or closes.
// A crash leaves the entry to an INSERT that needs the room, or to a sweep.
type grave struct {
	hash, location uint64
	named          uint64 // epoch in which the directory named it
}

// mostGraves bounds the entries that a client has yet to drop.
const mostGraves = 16

// dig adds a grave. Where there are too many, the oldest goes.
func (s *Store) dig(g grave) {
	s.graves = append(s.graves, g)
	s.fill(mostGraves)
}

// buried reports whether an entry is one of the client's graves. Two epochs behind its naming, the
// location may be another object's.
func (s *Store) buried(e directory.Entry) bool {
	return slices.ContainsFunc(s.graves, func(g grave) bool {
		return g.hash == e.Hash && g.location == e.Location && s.epoch() <= g.named+1
	})
}

// fill drops the entries of the oldest graves, until no more than some are left. What fails is left
// to others.
func (s *Store) fill(most int) {
	for s.member != nil && len(s.graves) > most {
		g := s.graves[0]
		s.graves = s.graves[:copy(s.graves, s.graves[1:])]
		_ = s.drop(change{s: s, hash: g.hash, named: g.named, buried: []uint64{g.location}}, g.location)
	}
}

// dropped retires objects of which a change of the client's has dropped the entries.
func (s *Store) dropped(locations []uint64) {
	s.graves = slices.DeleteFunc(s.graves, func(g grave) bool { return slices.Contains(locations, g.location&^dying) })
	s.retire(locations, s.epoch()+retiredFor)
}

// errDropped ends a change that finds no entry to drop.
var errDropped = errors.New("the entry was dropped")

// drop drops a dying entry of the change's hash, if it is there. Where the change does not know
// that its object is buried, it buries it.
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
