package rcuckoo

import (
	"testing"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/rcuckoo/session"
	"github.com/farkv/farkv/client/rcuckoo/table"
)

// TestOffCostsNothing: a pool with tables that do not grow and extents of one size has the same
// layout as before either existed.
func TestOffCostsNothing(t *testing.T) {
	oneClass := extentPool(5)
	oneClass.Classes = 0
	for _, c := range []struct {
		p    table.Params
		want [4]uint64
	}{
		{inlinePool(2), [4]uint64{819200, 175808, 819008, 1984}},
		{oneClass, [4]uint64{3817472, 309952, 551872, 896}},
		{small(), [4]uint64{749568, 17664, 721664, 640}},
	} {
		l := lay(t, c.p, 2)
		if got := [4]uint64{l.Bytes, l.Areas.Rows.Base, l.Areas.Slabs.Base, l.RedoBytes}; got != c.want {
			t.Errorf("%+v: %v, want %v", c.p, got, c.want)
		}
	}
	s := storeOn(t, memPool(t, 1, inlinePool(1)), session.Options{})
	if at := s.where([]byte("key")); at != s.session.Table.Place([]byte("key")) || at.Bits != 0 {
		t.Errorf("%+v", at)
	}
}

// TestTripsGrown: while a table stays at one level, operations take as many trips as in a table
// that does not grow. A key in a row that was divided since costs a GET one trip more, once.
func TestTripsGrown(t *testing.T) {
	p := inlinePool(1)
	p.Levels = 3
	f := memPool(t, 1, p)
	s, r := storeOn(t, f, session.Options{}), storeOn(t, f, session.Options{})
	key := []byte("key")
	for s.session.Table.Place(key).Bits&1 == 0 ||
		s.session.Table.Place(key).First == s.session.Table.Place(key).Second {
		key = append(key, '.')
	}
	check := func(level string) {
		t.Helper()
		at := s.session.Table.Place(key)
		first, _ := s.session.Table.LockOf(at.First)
		second, _ := s.session.Table.LockOf(at.Second)
		locks := uint64(1)
		if first != second {
			locks = 2
		}
		for _, c := range []struct {
			what string
			s    *Store
			f    func(s *Store) error
			fail error
			want cost
		}{
			{"get that misses", s, func(s *Store) error { _, err := s.Get(key); return err }, client.ErrNotFound,
				cost{2, 2}},
			{"insert", s, func(s *Store) error { return s.Insert(key, key) }, nil, cost{locks + 2, locks + 2}},
			{"update", s, func(s *Store) error { return s.Update(key, key) }, nil, cost{locks + 2, locks + 2}},
			{"get", s, func(s *Store) error { _, err := s.Get(key); return err }, nil, cost{1, 1}},
			{"another's get", r, func(s *Store) error { _, err := s.Get(key); return err }, nil, cost{1, 1}},
			{"delete", s, func(s *Store) error { return s.Delete(key) }, nil, cost{locks + 2, locks + 2}},
		} {
			if got := c.s.costs(t, func() error { return c.f(c.s) }, c.fail); got != c.want {
				t.Errorf("%s, %s: %+v, want %+v", level, c.what, got, c.want)
			}
		}
	}
	check("level 0")
	// The keys of many rows are there while another client divides all of them.
	must(t, s.Insert(key, key))
	s.op.Begin()
	must(t, s.raise(s.op, 0, 0))
	for {
		_, cursor := table.GrowthOf(s.levels.Words[0])
		if cursor >= s.session.Table.Ends(1) {
			break
		}
		must(t, s.share(s.op, 0))
	}
	if got := r.costs(t, func() error { _, err := r.Get(key); return err }, nil); got != (cost{2, 2}) {
		t.Errorf("get of a key that has moved: %+v", got)
	}
	must(t, s.Delete(key))
	check("level 1")
	judge(t, f)
}
