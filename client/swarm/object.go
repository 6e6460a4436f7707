package swarm

import (
	"errors"
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// objects are what a client has of objects that no other client knows: a location is named by the
// directory, or is its client's, or waits for a sweep. A client takes them from one region at a
// time, in chunks that grow with what it uses. So a client that closes, or dies, leaves no more
// behind than it has used, and mostObjects at most. At a region's first replica are a count of the
// objects that were handed out for the first time, and a list of those that sweeps have freed; see
// free.go.
type objects struct {
	free   []uint64 // locations: their words are zero
	region int      // that they are of
	chunk  int
	epoch  uint64 // in which the client got them, and spare: they are its own in no other
	// spare was written, but not published: it is for the next INSERT.
	spare    Register
	location uint64 // of spare; 0: none
}

const mostObjects = 16

// draw takes an object for an INSERT into o.spare, if there is none. The error wraps client.ErrFull
// when all regions that answer are used up, and does not when none answers.
func (s *Store) draw() error {
	o := &s.objects
	if now := s.epoch(); o.epoch != now {
		o.epoch, o.location, o.free, o.chunk = now, 0, o.free[:0], 0 // where sweeps come, objects are short
	}
	if o.location != 0 {
		return nil
	}
	if len(o.free) == 0 {
		if err := s.refill(); err != nil {
			return fmt.Errorf("take an object: %w", err)
		}
	}
	location := o.free[0]
	o.free = o.free[1:]
	place, ok := s.place(location)
	if !ok {
		return fmt.Errorf("take object %d: %w", location, client.ErrDamaged)
	}
	o.location = location
	o.spare = s.fresh(place, o.epoch)
	o.spare.warm = true // it was never written
	return nil
}

// refill takes a chunk from the region that it had last, or from the next one that has any. Under a
// busy view it takes only what was never handed out (package kit, R2).
func (s *Store) refill() error {
	o := &s.objects
	o.chunk = min(o.chunk+1, mostObjects)
	full, last := false, error(nil)
	for range s.Regions {
		ok, err := false, error(nil)
		if !s.busy() {
			ok, err = s.takeFreed(o.region, o.chunk)
		}
		if !ok && err == nil {
			err = s.growObjects(o.region, o.chunk)
		}
		switch {
		case err == nil:
			return nil
		case errors.Is(err, rdma.ErrFull):
			full, last = true, err
		case errors.Is(err, rdma.ErrNodeDown), errors.Is(err, rdma.ErrTimeout):
			last = err
		default:
			return err
		}
		o.region = (o.region + 1) % s.Regions
	}
	if !full { // a sweep would not help
		return last
	}
	s.values.Ask(s.regions[o.region][0].Node())
	return fmt.Errorf("%w: %w", client.ErrFull, last)
}

// growObjects takes objects that were never handed out.
func (s *Store) growObjects(region, n int) error {
	first := s.regions[region][0]
	r := rdma.Request{Step: stepGrow, Proc: node.ProcGrow, Arg: [6]uint64{s.counters + 8*uint64(region), first.Offset(), s.stride(0), uint64(s.Objects), uint64(n)}}
	if err := s.ep.Call(first.Node(), &r, s.values.Patience()); err != nil {
		return err
	}
	for i := range r.Ret[1] {
		s.objects.free = append(s.objects.free, s.locationOf(region, r.Ret[0]+i))
	}
	return nil
}

// locationOf returns that of the i-th object of a region, counted from 0.
func (l *plan) locationOf(region int, i uint64) uint64 {
	return uint64(region)*uint64(l.Objects) + i + 1
}
