package rcuckoo

import (
	"errors"
	"fmt"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma"
)

// A slab whose owner closes, or dies and is recovered, is left: it belongs to node.Left. The next client that finds no other
// memory makes it its own by a CAS, and finds out what of it is free:
//
//   - an extent whose mark is its stamp. Its owner's operations are over, so nobody uses it.
//   - an extent that neither of the rows of the key in it names with its stamp. Refs are copied only from row to row, so what
//     no row names once is never named again. An extent that a row names is whole, so that the key in it is the key's; what is
//     torn has any key, and may be looked for in any rows.
//
// Rows are looked at twice. If both looks find the same versions then between them neither row changed, and so the ref was in
// none of them at one moment: it cannot have been moved past the reader. If rows change all the time, or are torn, the extent
// counts as used; the slab's next owner will look again.
//
// This takes reads only. Who dies meanwhile leaves a slab of its own, and recovery leaves it to the next one.
const (
	adoptedAtOnce = 32 // extents: as many headers, or twice as many rows, in one trip
	adoptionLooks = 6  // at an extent's rows, before it counts as used
)

// suspect is an extent that bears no mark.
type suspect struct {
	i             int
	stamp         uint64
	at            place
	key           []byte // in the batch that read it
	look          bool   // the versions are those of a look at both rows
	first, second uint64
}

// look reads which slabs are the client's: what the last holder of its identity had, or an earlier call has brought without
// saying so.
func (x *extents) look(shard int) error {
	st := &x.stocks[shard]
	err := x.owned(shard, x.id, func(slab int, _ node.Entry) error {
		if st.of[slab] == nil {
			st.keep(x, slab, 0)
		}
		return nil
	})
	st.looked = err == nil
	return err
}

// owned yields the slabs of a shard that belong to a client.
func (x *extents) owned(shard int, c rdma.ClientID, yield func(slab int, e node.Entry) error) error {
	b := x.ep.Batch()
	defer b.Release()
	read := b.Read(x.ownerAt(shard, 0), 8*x.Slabs)
	if err := x.do("read owners", b, x.ep.Now()+x.timeout); err != nil {
		return fmt.Errorf("read who owns the slabs of shard %d: %w", shard, err)
	}
	for slab := range x.Slabs {
		if e := node.Entry(le.Uint64(read.Buf[8*slab:])); e.Owner() == c {
			if err := yield(slab, e); err != nil {
				return err
			}
		}
	}
	return nil
}

// pass makes a slab another one's. false: it is not what the entry says any more.
func (x *extents) pass(shard, slab int, e node.Entry, to rdma.ClientID) (bool, error) {
	b := x.ep.Batch()
	defer b.Release()
	swap := b.CompareSwap(x.ownerAt(shard, slab), uint64(e), uint64(e.Next(to, e.Class())))
	if err := x.do("pass a slab on", b, x.ep.Now()+x.timeout); err != nil {
		return false, fmt.Errorf("pass slab %d of shard %d on: %w", slab, shard, err)
	}
	return swap.Swapped(), nil
}

// leave leaves a client's slabs of a shard to others: its own, when it closes and none of its operations is at work; or, as the
// keeper does, those of one that died, is fenced off, and whose operations repair has brought to their ends. Done again it
// changes nothing. It returns how many there were.
func (x *extents) leave(shard int, c rdma.ClientID) (n int, err error) {
	if !x.extents() {
		return 0, nil
	}
	err = x.owned(shard, c, func(slab int, e node.Entry) error {
		ok, err := x.pass(shard, slab, e, node.Left)
		if ok {
			n++
		}
		return err
	})
	if c == x.id {
		x.stocks[shard] = stock{of: map[int]*slab{}}
	}
	return n, err
}

var errStopLooking = errors.New("found")

// adopt makes slabs the client's that were left, until one has something free. The error wraps client.ErrFull when none has.
func (x *extents) adopt(shard int, until time.Duration) error {
	st := &x.stocks[shard]
	err := x.owned(shard, node.Left, func(slab int, e node.Entry) error {
		st.looked = false // as long as it is not known whether the slab was passed on
		ok, err := x.pass(shard, slab, e, x.id)
		if err != nil {
			return err
		}
		if st.looked = true; !ok {
			return nil
		}
		x.stats.Adopted++
		st.keep(x, slab, 0)
		if err := x.check(shard, st.of[slab], until); err != nil {
			return err
		}
		if st.left() > 0 {
			return errStopLooking
		}
		return nil
	})
	switch {
	case errors.Is(err, errStopLooking):
		return nil
	case err != nil:
		return err
	}
	return fmt.Errorf("all %d slabs of shard %d are in use: %w", x.Slabs, shard, client.ErrFull)
}

// check finds out what of a slab is free. After an error it goes on where it was.
func (x *extents) check(shard int, s *slab, until time.Duration) error {
	for s.checked < x.SlabExtents {
		from := s.checked
		n := min(adoptedAtOnce, x.SlabExtents-from)
		if err := x.checkSome(shard, s, from, n, until); err != nil {
			return fmt.Errorf("find what is free of slab %d: %w", s.index, err)
		}
		s.checked += n
		for i := from; i < from+n; i++ {
			if s.idle[i] {
				x.stocks[shard].push(uint64(s.index*x.SlabExtents + i))
			}
		}
	}
	return nil
}

func (x *extents) checkSome(shard int, s *slab, from, n int, until time.Duration) error {
	b := x.ep.Batch()
	defer b.Release()
	first := uint64(s.index*x.SlabExtents + from)
	marks := b.Read(x.markAt(shard, first), n*markBytes)
	for i := range n {
		b.Read(x.extentAt(shard, first+uint64(i)), keyAt+x.KeyBytes)
	}
	if err := x.do("read extents", b, until); err != nil {
		return err
	}
	suspects := make([]suspect, 0, n)
	for i := range n {
		p := b.Op(i + 1).Buf
		stamp := le.Uint64(p[stampAt:])
		s.stamps[from+i] = stamp
		if s.idle[from+i] = le.Uint64(marks.Buf[i*markBytes:]) == stamp; s.idle[from+i] {
			continue
		}
		key := p[keyAt:]
		if length := le.Uint64(p[lengthsAt:]) >> 32; length <= uint64(x.KeyBytes) {
			key = key[:length]
		}
		suspects = append(suspects, suspect{i: from + i, stamp: stamp, at: x.place(key), key: key})
	}
	for look := 0; len(suspects) > 0 && look < adoptionLooks; look++ {
		if look > 1 { // somebody is at work there
			x.ep.Sleep(min(time.Microsecond<<look, max(until-x.ep.Now(), 0)))
		}
		var err error
		if suspects, err = x.lookFor(shard, s, suspects, until); err != nil {
			return err
		}
	}
	return nil
}

// lookFor reads the rows of suspects once more, and returns those of which nothing is known yet.
func (x *extents) lookFor(shard int, s *slab, suspects []suspect, until time.Duration) ([]suspect, error) {
	b := x.ep.Batch()
	defer b.Release()
	for _, u := range suspects {
		b.Read(x.rowAt(shard, u.at.first), x.rowBytes)
		b.Read(x.rowAt(shard, u.at.second), x.rowBytes)
	}
	if err := x.do("read rows of extents", b, until); err != nil {
		return nil, err
	}
	rest := suspects[:0]
	for j, u := range suspects {
		r1, r2 := row(b.Op(2*j).Buf), row(b.Op(2*j+1).Buf)
		extent := uint64(s.index*x.SlabExtents + u.i)
		if x.named(r1, u, shard, u.at.first, extent) || x.named(r2, u, shard, u.at.second, extent) {
			continue // and so in use
		}
		both := x.valid(r1, shard, u.at.first) && x.valid(r2, shard, u.at.second)
		if both && u.look && x.version(r1) == u.first && x.version(r2) == u.second {
			s.idle[u.i] = true
			x.stats.Rescued++
			continue
		}
		if u.look = both; both {
			u.first, u.second = x.version(r1), x.version(r2)
		}
		rest = append(rest, u)
	}
	return rest, nil
}

// named tells whether a row names the use of an extent.
func (x *extents) named(r row, u suspect, shard int, n uint32, extent uint64) bool {
	if !x.valid(r, shard, n) {
		return false
	}
	slot := x.find(r, u.key)
	if slot < 0 {
		return false
	}
	e := x.entry(r, slot)
	return x.sound(e) && e.meta.extent() && x.ref(e).extent == extent && x.ref(e).stamp == u.stamp
}

// walk yields the slabs of a shard that were handed out, with their owners, and of each extent mark and stamp. It may run while
// clients work.
func (x *extents) walk(shard int, yield func(slab int, owner rdma.ClientID, marks, stamps []uint64) error) error {
	for slab := range x.Slabs {
		if err := x.walkSlab(shard, slab, yield); err != nil {
			return fmt.Errorf("read slab %d of shard %d: %w", slab, shard, err)
		}
	}
	return nil
}

func (x *extents) walkSlab(shard, slab int, yield func(slab int, owner rdma.ClientID, marks, stamps []uint64) error) error {
	until := x.ep.Now() + x.timeout
	b := x.ep.Batch()
	defer b.Release()
	owner := b.Read(x.ownerAt(shard, slab), 8)
	if err := x.do("read owners", b, until); err != nil {
		return err
	}
	who := node.Entry(le.Uint64(owner.Buf)).Owner()
	if who == 0 { // it may have no memory yet
		return nil
	}
	c := x.ep.Batch()
	defer c.Release()
	read := c.Read(x.slabAt(shard, slab), x.SlabExtents*markBytes)
	for i := range x.SlabExtents {
		c.Read(x.extentAt(shard, uint64(slab*x.SlabExtents+i)).Add(stampAt), 8)
	}
	if err := x.do("read extents", c, until); err != nil {
		return err
	}
	marks, stamps := make([]uint64, x.SlabExtents), make([]uint64, x.SlabExtents)
	for i := range marks {
		marks[i], stamps[i] = le.Uint64(read.Buf[i*markBytes:]), le.Uint64(c.Op(1+i).Buf)
	}
	return yield(slab, who, marks, stamps)
}
