package swarm

import (
	"errors"
	"fmt"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// objects are what a client has of objects that nobody else knows: a location is named by the directory, or its client's, or
// it waits for a sweep. A client takes them from one region at a time, counted at the region's first replica, in chunks that
// grow with what it uses: so one that closes, or dies, leaves no more behind than it has used, and mostObjects at most.
type objects struct {
	next, end uint64 // of a chunk: locations that were never used
	region    int    // it is of
	chunk     int
	// spare was written, but not published: it is for the next INSERT.
	spare    Register
	location uint64 // of spare; 0: none
}

const mostObjects = 16

// draw takes an object for an INSERT into o.spare, if there is none. The error wraps client.ErrFull when all regions that
// answer are used up.
func (s *Store) draw() error {
	o := &s.objects
	if o.location != 0 {
		return nil
	}
	if o.next == o.end {
		if err := s.refill(); err != nil {
			return fmt.Errorf("take an object: %w", err)
		}
	}
	place, ok := s.place(o.next)
	if !ok {
		return fmt.Errorf("take object %d: %w", o.next, client.ErrDamaged)
	}
	o.location = o.next
	o.spare = s.fresh(place)
	o.spare.warm = true // nobody has written it
	o.next++
	return nil
}

// refill takes a chunk from the region that it had last, or from the next one that has any.
func (s *Store) refill() (err error) {
	o := &s.objects
	o.chunk = min(o.chunk+1, mostObjects)
	for range s.Regions {
		first := s.regions[o.region][0]
		r := rdma.Request{Proc: node.ProcGrow, Arg: [6]uint64{s.counters + 8*uint64(o.region), first.Offset(), s.stride(0), uint64(s.Objects), uint64(o.chunk)}}
		e := s.ep.Call(first.Node(), &r, s.values.Patience())
		switch {
		case e == nil:
			o.next = uint64(o.region)*uint64(s.Objects) + r.Ret[0] + 1
			o.end = o.next + r.Ret[1]
			return nil
		case errors.Is(e, rdma.ErrFull), errors.Is(e, rdma.ErrNodeDown), errors.Is(e, rdma.ErrTimeout):
			err = e
		default:
			return e
		}
		o.region = (o.region + 1) % s.Regions
	}
	return fmt.Errorf("%w: %w", client.ErrFull, err)
}
