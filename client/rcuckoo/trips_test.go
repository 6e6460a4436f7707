package rcuckoo

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
)

// cost is what an operation takes: doorbells that somebody waits for, which are the paper's round trips, and latencies, of which
// the fence behind a lock is one (section 3.2.2 has it for nothing, as its locks lie in the NIC).
type cost struct{ doorbells, trips uint64 }

func (s *Store) costs(t *testing.T, f func() error, want error) cost {
	t.Helper()
	before := *s.ep.Counters()
	if err := f(); !errors.Is(err, want) || want == nil && err != nil {
		t.Fatalf("got %v, want %v", err, want)
	}
	d := s.ep.Counters().Sub(before)
	return cost{d.Doorbells, d.Trips}
}

// TestTrips counts on mem:, where a masked compare and swap is native.
func TestTrips(t *testing.T) {
	p := inlinePool(1)
	p.RowsPerLock = 16
	s := storeOn(t, memPool(t, 1, p), Options{})
	for i := range 300 {
		key, value := fmt.Appendf(nil, "key %d", i), fmt.Appendf(nil, "value %d", i)
		at := s.place(key)
		first, _ := s.lockOf(at.first)
		second, _ := s.lockOf(at.second)
		locks := uint64(1)
		if first != second {
			locks = 2
		}
		const done = 1 // nobody waits for the end of an intent
		for _, c := range []struct {
			what string
			f    func() error
			fail error
			want cost
		}{
			{"get that misses", func() error { _, err := s.Get(key); return err }, client.ErrNotFound, cost{s.looks(at), s.looks(at)}},
			{"update that misses", func() error { return s.Update(key, value) }, client.ErrNotFound, cost{locks + 1 + done, locks + 2}},
			{"insert", func() error { return s.Insert(key, value) }, nil, cost{locks + 1 + done, locks + 2}},
			{"get", func() error { _, err := s.Get(key); return err }, nil, cost{1, 1}},
			{"insert again", func() error { return s.Insert(key, value) }, client.ErrExists, cost{locks + 1 + done, locks + 2}},
			{"update", func() error { return s.Update(key, value) }, nil, cost{locks + 1 + done, locks + 2}},
			{"delete", func() error { return s.Delete(key) }, nil, cost{locks + 1 + done, locks + 2}},
		} {
			if got := s.costs(t, c.f, c.fail); got != c.want {
				t.Fatalf("%s of key %d, with locks in %d words: %+v, want %+v", c.what, i, locks, got, c.want)
			}
		}
	}
}

// looks is how many trips prove a miss.
func (s *Store) looks(at place) uint64 {
	if at.first == at.second {
		return 1
	}
	return 2
}

func TestNoAllocations(t *testing.T) {
	s := storeOn(t, memPool(t, 1, inlinePool(1)), Options{})
	key, value := []byte("key"), make([]byte, 100)
	must(t, s.Insert(key, value))
	for what, f := range map[string]func() error{
		"get":    func() error { _, err := s.Get(key); return err },
		"update": func() error { return s.Update(key, value) },
	} {
		if n := testing.AllocsPerRun(200, func() { must(t, f()) }); n != 0 {
			t.Errorf("%s allocates %v times", what, n)
		}
	}
}

// TestFull fills a table until it is full: what is in it is found, and deleting makes room.
func TestFull(t *testing.T) {
	p := inlinePool(1)
	p.Rows, p.InlineBytes, p.ExtentBytes, p.KeyBytes = 128, 8, 8, 8
	s := storeOn(t, memPool(t, 1, p), Options{Timeout: time.Second})
	key := func(i int) []byte { return fmt.Appendf(nil, "k%d", i) }
	n := 0
	for ; ; n++ {
		err := s.Insert(key(n), key(n))
		if errors.Is(err, rdma.ErrFull) {
			break
		}
		must(t, err)
	}
	if all := p.Rows * p.Entries; n < all*90/100 {
		t.Errorf("full at %d of %d entries", n, all)
	}
	for i := range n {
		v, err := s.Get(key(i))
		if err != nil || string(v) != string(key(i)) {
			t.Fatalf("get key %d of %d: %q, %v", i, n, v, err)
		}
	}
	must(t, s.Delete(key(0)))
	r, err := Check(s.opt.Pool.(rdma.Fabric))
	must(t, err)
	if len(r.Damage) > 0 || r.Facts[0].Count != uint64(n-1) {
		t.Errorf("%+v", r)
	}
	t.Logf("full at %.1f %%, searched again %d times", 100*float64(n)/float64(p.Rows*p.Entries), s.Stats().Searches)
}
