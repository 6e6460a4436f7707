package swarm

import (
	"errors"
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// objects are what a client has of objects that no other client knows: a location is named by the
// directory, or is its client's, or is retired, or waits for a sweep. A client takes them from one
// region at a time, in chunks that grow with what it uses. So a client that dies leaves no more
// behind than it has used, and mostObjects at most. At a region's first replica are a count of the
// objects that were handed out for the first time, and a word for each that is retired; see
// retired.go.
type objects struct {
	free   []uint64 // locations: their words are zero
	region int      // that they are of
	chunk  int
	asked  bool   // for an epoch, and found no object since
	epoch  uint64 // in which the client got them, and spare, or a later one in which it kept them
	// spare was written, but not published: it is for the next INSERT.
	spare    Register
	location uint64 // of spare; 0: none

	scans    []scan        // for retired objects, by region
	retiring []*rdma.Batch // in flight
}

const mostObjects = 16

// draw takes an object for an INSERT into o.spare, if there is none. The error wraps client.ErrFull
// when all regions that answer are used up, and does not when none answers.
func (s *Store) draw() error {
	o := &s.objects
	if now := s.epoch(); o.epoch != now {
		if !s.member.Keeps(o.epoch) {
			o.location, o.free = 0, o.free[:0]
		}
		s.retire(o.free, now+1) // where epochs come, objects are short
		o.epoch, o.free, o.chunk = now, o.free[:0], 0
		o.spare.Known(now)
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

// refill takes a chunk from the region that it had last, or from the next one that has any: first
// what was never handed out, since to look for what is retired takes longer. Under a busy view it
// takes nothing else (package kit, R2).
func (s *Store) refill() error {
	o := &s.objects
	o.chunk = min(o.chunk+1, mostObjects)
	full, silent, last := false, false, error(nil)
	for range s.Regions {
		err := s.growObjects(o.region, o.chunk)
		if errors.Is(err, rdma.ErrFull) && !s.busy() {
			if ok, e := s.claim(o.region, o.chunk); ok || e != nil {
				err = e
			}
		}
		switch {
		case err == nil:
			o.asked = false
			return nil
		case errors.Is(err, rdma.ErrFull):
			full, last = true, err
		case errors.Is(err, rdma.ErrNodeDown), errors.Is(err, rdma.ErrTimeout):
			silent, last = silent || !s.lost(o.region), err
		default:
			return err
		}
		o.region = (o.region + 1) % s.Regions
	}
	if !full { // a sweep would not help
		return last
	}
	if !silent && (s.anyRetired() || !o.asked) { // where a node is silent, a sweep expels it
		o.asked = true // clients drop their dying entries when an epoch begins
		return fmt.Errorf("%w: %w", errYoung, last)
	}
	return fmt.Errorf("%w: %w", client.ErrFull, last)
}

// lost reports whether the words of a region's objects went with their node.
func (s *Store) lost(region int) bool {
	return s.member != nil && s.member.Members[s.regions[region][0].Node()].Gone
}

// growObjects takes objects that were never handed out.
func (s *Store) growObjects(region, n int) error {
	if s.scans[region].full {
		return rdma.ErrFull
	}
	first := s.regions[region][0]
	r := rdma.Request{Step: stepGrow, Proc: node.ProcGrow, Arg: [6]uint64{s.counters + 8*uint64(region), first.Offset(), s.stride(0), uint64(s.Objects), uint64(n)}}
	if err := s.ep.Call(first.Node(), &r, s.values.Patience()); err != nil {
		s.scans[region].full = errors.Is(err, rdma.ErrFull)
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
