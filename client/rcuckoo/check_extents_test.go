package rcuckoo

import (
	"testing"

	"github.com/farkv/farkv/node/rdma"
)

// TestCheckOfExtents: Check reports extents that a client has in hand as waiting, and those
// without an owner as lost.
func TestCheckOfExtents(t *testing.T) {
	s := storeOn(t, memPool(t, 1, extentPool(1)), Options{})
	for i := range 30 {
		must(t, s.Insert([]byte{byte(i)}, make([]byte, 500)))
	}
	f := s.opt.Pool.(rdma.Fabric)
	hand := &s.extents.stocks[0].of[1].hand
	in := len(*hand)
	r, err := Check(f)
	must(t, err)
	if len(r.Damage) > 0 || len(r.Waiting) != in || in == 0 {
		t.Errorf("with %d extents in hand: %+v", in, r)
	}
	n, err := s.extents.leave(0, s.id)
	if r, e := Check(f); err != nil || e != nil || n != in || len(r.Damage)+len(r.Waiting) > 0 {
		t.Errorf("gave %d extents back, of %d: %v; %+v, %v", n, in, err, r, e)
	}
	lost, err := takeNow(s.extents, 0, 500)
	must(t, err)
	for _, u := range append(*hand, lost) { // which its hand does not have
		write(t, s.extents, func(b *rdma.Batch) { s.extents.addHand(b, 0, 1, nil) })
		if u == lost {
			continue
		}
		write(t, s.extents, func(b *rdma.Batch) { s.addMark(b, 0, u) })
	}
	*hand = nil
	if r, err = Check(f); err != nil || len(r.Damage) != 1 || len(r.Waiting) > 0 {
		t.Errorf("an extent is lost: %+v, %v", r, err)
	}
}

// TestCheckOfUnits: Check reports a unit that changes its class as waiting, if a client's moves
// name it. Marks that are held otherwise are damage, and so is a unit with extents of two
// classes.
func TestCheckOfUnits(t *testing.T) {
	for _, c := range []struct {
		landed          int
		said            bool
		damage, waiting bool
	}{{said: true}, {landed: 1, said: true, waiting: true}, {landed: 4, said: true, waiting: true},
		{landed: 6, said: true, waiting: true}, {landed: 8, said: true},
		{landed: 1, damage: true}, {landed: 6, damage: true}, {landed: 8}} {
		s := storeOn(t, memPool(t, 1, extentPool(1)), Options{})
		must(t, s.Insert([]byte("key"), make([]byte, 1000)))
		_, err := s.extents.leave(0, s.id)
		must(t, err)
		x, unit := s.extents, -1
		marks, err := x.readMarks(0, 0, x.most(), x.ep.Now()+x.timeout)
		must(t, err)
		for i := range x.SlabExtents {
			if _, ok := x.holdable(marks, 0, i, 2); ok {
				unit = i
			}
		}
		must(t, cutCarving(x, unit, 0, 2, c.landed))
		if !c.said {
			write(t, x, func(b *rdma.Batch) { x.addMoves(b, 0, nil) })
		}
		r, err := Check(s.opt.Pool.(rdma.Fabric))
		must(t, err)
		if (len(r.Damage) > 0) != c.damage || (len(r.Waiting) > 0) != c.waiting {
			t.Errorf("%+v: %+v", c, r)
		}
	}
}
