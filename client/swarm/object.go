package swarm

import (
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/kit"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// objects are the objects that a client owns: no other client knows them. Invariant: each
// location is named by the directory, or owned by one client, or retired, or garbage that a sweep
// will find. A client takes objects from one region at a time, in chunks that grow with its use.
// So a client that dies leaves no more behind than it has used, and mostObjects at most. A
// region's first replica has a count of the objects that were handed out for the first time, and
// a word for each object that is not zero while the object is retired: see retired.go.
type objects struct {
	// free are locations of which the words are zero at all replicas. They are of the region.
	free   []uint64
	region int
	// chunk is how many objects the client took last. It begins again with each epoch.
	chunk int
	// asked: the client has asked for an epoch, and has found no object since.
	asked bool
	// epoch is the one in which the client got free and spare, or a later one in which it kept
	// them.
	epoch uint64
	// spare is the object of the next INSERT. It may have been written, but the directory does not
	// name it.
	spare Register
	// location is that of spare; 0: there is none.
	location uint64

	// scans are the searches for retired objects, by region.
	scans []scan
	// retiring are batches that retire objects.
	retiring kit.Background
	// leaves: objects were not retired, since too many batches were in flight. The next request to
	// the master is for a sweep, too: while others are retired, no operation asks for one.
	leaves bool
}

// mostObjects bounds a chunk.
const mostObjects = 16

// draw takes an object for an INSERT into o.spare, if there is none. The error wraps
// client.ErrFull when all regions that answer are used up; otherwise it is the error of a node
// that does not answer.
//
// In a new epoch the client forgets what it does not own any more (package kit, R1), and retires
// its free objects: the epoch began because some client may be short of objects.
func (s *Store) draw() error {
	o := &s.objects
	if now := s.member.Epoch; o.epoch != now {
		// A sweep has begun since, or may have: it retires these objects.
		if !s.member.Keeps(o.epoch) {
			o.location, o.free = 0, o.free[:0]
		}
		s.retire(o.free, now+1)
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
	o.spare.warm = true // all its words are zero
	return nil
}

// refill takes a chunk from the last region, or from the next one that has any. First it takes
// objects that were never handed out, since a search for retired ones takes longer. Under a busy
// view it takes no others (package kit, R2). A region that does not answer is given up after
// Patience. If none answers the INSERT fails without them, so it asks each once more, and waits
// until the timeout in all. The error wraps errYoung when an epoch may help: there are retired
// objects, or other clients may still retire theirs, which they do when an epoch begins.
func (s *Store) refill() error {
	o := &s.objects
	o.chunk = min(o.chunk+1, mostObjects)
	full, silent, last := false, false, error(nil)
	began, within := s.ep.Now(), s.values.Patience()
	for left := 2 * s.Regions; left > 0; left-- {
		if rest := s.c.opt.Timeout - (s.ep.Now() - began); left <= s.Regions {
			if full || rest <= 0 || !errors.Is(last, rdma.ErrTimeout) {
				break
			}
			within = max(within, rest/time.Duration(left))
		}
		err := s.growObjects(o.region, o.chunk, within)
		if errors.Is(err, rdma.ErrFull) && !s.member.Busy {
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
	// A silent node needs a sweep, which expels it.
	if !silent && (s.anyRetired() || !o.asked) {
		o.asked = true
		return fmt.Errorf("%w: %w", errYoung, last)
	}
	return fmt.Errorf("%w: %w", client.ErrFull, last)
}

// lost reports whether the count and the retirement words of a region are lost, since the node of
// its first replica is gone. None of its objects can be taken any more.
func (s *Store) lost(region int) bool {
	return s.member.Gone(s.regions[region][0].Node())
}

// growObjects takes up to n objects of a region that were never handed out, so that their words are
// zero. It is a call to the region's first node. The error wraps rdma.ErrFull when there are none;
// then the region is full for good. A client that dies behind the call, or does not wait for the
// answer, leaves objects to a sweep.
func (s *Store) growObjects(region, n int, within time.Duration) error {
	if s.scans[region].full {
		return rdma.ErrFull
	}
	first := s.regions[region][0]
	r := rdma.Request{Step: stepGrow, Proc: node.ProcGrow, Arg: [6]uint64{
		s.counters + 8*uint64(region), first.Offset(), s.stride(0), uint64(s.Objects), uint64(n)}}
	if err := s.ep.Call(first.Node(), &r, within); err != nil {
		s.scans[region].full = errors.Is(err, rdma.ErrFull)
		return err
	}
	for i := range r.Ret[1] {
		s.objects.free = append(s.objects.free, s.locationOf(region, r.Ret[0]+i))
	}
	return nil
}

// locationOf returns the location of the i-th object of a region, counted from 0. No location is 0,
// and none has the bit dying.
func (l *plan) locationOf(region int, i uint64) uint64 {
	return uint64(region)*uint64(l.Objects) + i + 1
}
