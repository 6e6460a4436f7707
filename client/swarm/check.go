package swarm

import (
	"errors"
	"fmt"

	"github.com/cespare/xxhash/v2"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/buffers"
	"github.com/farkv/farkv/client/directory"
	"github.com/farkv/farkv/node/rdma"
)

// Check walks the whole pool and reports damage. It checks that each entry's object has a value
// at a majority, with a key of the entry's hash; that no object is named twice, or named and
// retired; and that each buffer has at most one owner: a word that names it, or a list of free
// buffers. It also counts what waits for a sweep. No client may work on the pool.
// Check settles what it finds half done, and leaves out nodes that are dead.
//
// The order is relied on. The walk of the directory changes words, where it settles something or
// writes a tuple back, so the words are read behind it. Close gives back the buffers that Check has
// taken itself, so the lists of free buffers are read last.
func Check(f rdma.Fabric) (r client.Report, err error) {
	ep, err := f.Open("check")
	if err != nil {
		return r, fmt.Errorf("check: %w", err)
	}
	s, err := OpenStore(ep, StoreOptions{any: true, alone: true, CacheBytes: new(0)})
	if err != nil {
		return r, errors.Join(fmt.Errorf("check: %w", err), ep.Close())
	}
	c := checker{s: s, r: &r, owners: map[owned]string{}, objects: map[uint64]bool{}}
	err = errors.Join(c.index(), c.words(), s.Close(), c.free(ep), ep.Close())
	return r, err
}

// owned is a buffer: of a value, or else of the directory.
type owned struct {
	values        bool
	node, segment int
	pointer       uint16
}

type checker struct {
	s *Store
	r *client.Report
	// owners says what has each buffer.
	owners map[owned]string
	// objects are the locations that the directory names.
	objects map[uint64]bool
}

// own notes the owner of a buffer. A second owner is damage.
func (c *checker) own(b owned, format string, args ...any) {
	owner := fmt.Sprintf(format, args...)
	if other := c.owners[b]; other != "" {
		c.r.Damaged("buffer %d of segment %d of node %d is %s, and %s", b.pointer, b.segment, b.node, other, owner)
	}
	c.owners[b] = owner
}

// index walks the directory, and reads the pairs that it names, except those of dying entries.
func (c *checker) index() error {
	keys, leaving := uint64(0), uint64(0)
	err := c.s.dir.Walk(func(f *directory.Found) error {
		bucket := f.Bucket
		for _, e := range f.Entries {
			location := e.Location &^ dying
			o, ok := c.s.place(location)
			switch {
			case !ok:
				c.r.Damaged("bucket %d names object %#x: there is none", bucket, location)
				continue
			case c.objects[location]:
				c.r.Damaged("object %d is named twice, in bucket %d, too", location, bucket)
			}
			c.objects[location] = true
			if e.Location != location {
				leaving++ // a dying entry: its object may have its tombstone or not
				continue
			}
			keys++
			if err := c.pair(e, o); err != nil {
				return err
			}
		}
		for _, h := range f.Held {
			c.own(owned{false, h.Node, c.s.index.Segment(h.Segment), h.Pointer}, "bucket %d's", bucket)
		}
		return nil
	})
	c.r.Fact("keys", keys, 0)
	c.r.Fact("deleted keys with an entry", leaving, 0)
	return err
}

// pair reads the pair of an entry: the object must have one, and its key must have the entry's
// hash.
func (c *checker) pair(e directory.Entry, o Object) error {
	k := c.s.fresh(o, 0)
	pair, err := c.s.c.Read(&k)
	switch {
	case errors.Is(err, ErrEmpty), errors.Is(err, ErrGone), errors.Is(err, client.ErrDamaged):
		c.r.Damaged("object %d, which the directory has for hash %#x: %v", e.Location, e.Hash, err)
		return nil
	case err != nil:
		return fmt.Errorf("read object %d: %w", e.Location, err)
	}
	n := keyHeader
	if len(pair) >= n {
		n += int(le.Uint16(pair))
	}
	if len(pair) < n || xxhash.Sum64(pair[keyHeader:n]) != e.Hash {
		c.r.Damaged("object %d does not have a key of hash %#x, as the directory says", e.Location, e.Hash)
	}
	return nil
}

// words walks the words of all objects that were handed out, and notes the buffers that they
// name. If the node with a region's count is dead, it walks all objects of the region.
func (c *checker) words() error {
	handed, free := uint64(0), uint64(0)
	for region := range c.s.Regions {
		f, err := c.retired(region)
		if err != nil {
			return err
		}
		free += f
		n, err := c.s.handed(c.s.ep, region)
		if errors.Is(err, rdma.ErrNodeDown) { // the words of the objects beyond the count are zero
			n, err = c.s.Objects, nil
		}
		if err != nil {
			return err
		}
		handed += uint64(n)
		for r := range c.s.Replicas {
			if c.s.layout.raw() {
				break // it has no words
			}
			at := c.s.regions[region][r].Node()
			err := c.s.eachBuffer(stepCheck, region, r, n, func(location uint64, p uint16) {
				c.own(owned{true, at, c.s.values.Segment(spread(location)), p}, "object %d's", location)
			})
			if err != nil && !errors.Is(err, rdma.ErrNodeDown) {
				return err
			}
		}
	}
	c.r.Fact("objects", handed, 0)
	c.r.Fact("objects that are free", free, 0)
	c.r.Fact("objects that wait for a sweep", handed-uint64(len(c.objects))-free, 0)
	return nil
}

// retired returns how many retired objects a region has. The directory must name none of them.
func (c *checker) retired(region int) (n uint64, err error) {
	err = c.s.eachRetired(c.s.ep, stepCheck, region, 0, c.s.Objects, c.s.Timeout, func(i, _ uint64) {
		n++
		if location := c.s.locationOf(region, i); c.objects[location] {
			c.r.Damaged("object %d is retired, and the directory names it", location)
		}
	})
	if errors.Is(err, rdma.ErrNodeDown) {
		return 0, nil
	}
	return n, err
}

// wordBatch is how many objects' words are read, or changed, in a trip.
const wordBatch = 64

// free walks the lists of free buffers. A buffer that was handed out, is in no list, and has no
// other owner belonged to a client that died, or to a step that a fence cut off: it waits for a
// sweep.
func (c *checker) free(ep rdma.Endpoint) error {
	for _, space := range []struct {
		*buffers.Space
		name   string
		values bool
	}{{&c.s.plan.values, "values", true}, {&c.s.plan.index, "the directory", false}} {
		handed, free, lost := uint64(0), uint64(0), 0
		for n := range c.s.nodes {
			for seg := range space.Segments {
				f, err := space.Walk(ep, n, seg, c.s.Timeout)
				switch {
				case errors.Is(err, rdma.ErrNodeDown):
					continue
				case errors.Is(err, client.ErrDamaged):
					c.r.Damaged("%v", err)
					continue
				case err != nil:
					return err
				}
				handed, free = handed+uint64(f.Handed), free+uint64(len(f.Pointers))
				for _, p := range f.Pointers {
					c.own(owned{space.values, n, seg, p}, "free")
				}
				for p := 1; p <= f.Handed; p++ {
					if c.owners[owned{space.values, n, seg, uint16(p)}] == "" {
						lost++
					}
				}
			}
		}
		c.r.Fact("buffers of "+space.name, handed, handed*uint64(space.Bytes))
		c.r.Fact("buffers of "+space.name+" that are free", free, free*uint64(space.Bytes))
		if lost > 0 {
			c.r.Waits("%d buffers of %s have no owner: the next sweep frees them", lost, space.name)
		}
	}
	return nil
}
