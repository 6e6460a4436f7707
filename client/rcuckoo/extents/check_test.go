package extents_test

import (
	"testing"
	"time"

	"github.com/farkv/farkv/client/rcuckoo"
	"github.com/farkv/farkv/client/rcuckoo/extents"
	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node"
	"github.com/farkv/farkv/node/rdma/shm"
)

// pool is a pool of one shard with units of up to 16 extents, and with 30 pairs in extents. A
// client on it has the extents of class 1 that it claims at once.
func pool(t *testing.T) (*shm.Fabric, *extents.Client) {
	t.Helper()
	p := table.Params{Shards: 1, Rows: 600, Entries: 8, KeyBytes: 63, InlineBytes: 16, ExtentBytes: 1000, F: 2.3,
		RowsPerLock: 16, LockWords: 2, Slabs: 5000 / 16, SlabExtents: 16, Classes: 5, Clients: 8, Timeout: time.Second}
	l, err := table.New(p, 1)
	must(t, err)
	f, err := shm.NewMem(shm.Geometry{Nodes: 1, Memory: l.Bytes, Clients: p.Clients}, node.Serve)
	must(t, err)
	t.Cleanup(func() { f.Close() })
	must(t, rcuckoo.Make(f, p))
	ep, err := f.Open("writer")
	must(t, err)
	s, err := rcuckoo.Open(ep, rcuckoo.Options{Pool: f})
	must(t, err)
	for i := range 30 {
		must(t, s.Insert([]byte{byte(i)}, make([]byte, 500)))
	}
	must(t, s.Close())
	other, err := f.Open("claimer")
	must(t, err)
	x := extents.New(l, other, time.Second)
	_, err = x.Take(0, 0, 500, other.Now()+time.Second)
	must(t, err)
	return f, x
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// TestCheckOfExtents: Check reports extents that a client has claimed as waiting, and those
// without an owner as lost.
func TestCheckOfExtents(t *testing.T) {
	f, x := pool(t)
	claimed := x.Claimed(0, 1)
	in := len(claimed) + 1 // and the one that was taken
	r, err := rcuckoo.Check(f)
	must(t, err)
	if len(r.Damage) > 0 || len(r.Waiting) != in || in == 1 {
		t.Errorf("with %d extents in hand: %+v", in, r)
	}
	// The last claim is forgotten, and all but one of its extents are freed.
	must(t, x.WriteClaims(0, 1))
	for _, u := range claimed {
		must(t, x.EndUse(0, u))
	}
	if r, err = rcuckoo.Check(f); err != nil || len(r.Damage) != 1 || len(r.Waiting) > 0 {
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
		f, x := pool(t)
		must(t, x.EndUse(0, x.Taken(0, 1)))
		_, err := x.Leave(0, x.ID())
		must(t, err)
		must(t, x.CutCarving(2, c.landed))
		if !c.said {
			must(t, x.WriteMoves(0))
		}
		r, err := rcuckoo.Check(f)
		must(t, err)
		if (len(r.Damage) > 0) != c.damage || (len(r.Waiting) > 0) != c.waiting {
			t.Errorf("%+v: %+v", c, r)
		}
	}
}
