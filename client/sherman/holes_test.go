package sherman

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/sherman/btree"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/trace"
)

// hooked is an endpoint that does something before the n-th batch from now on, once.
type hooked struct {
	rdma.Endpoint
	n int
	f func()
}

func (h *hooked) Post(b *rdma.Batch) error {
	if h.n--; h.n == 0 {
		h.f()
	}
	return h.Endpoint.Post(b)
}

// hookedStore opens a store that does something before a batch.
func hookedStore(t *testing.T, f rdma.Fabric, o Options) (*Store, *hooked) {
	t.Helper()
	ep, err := f.Open("hooked")
	must(t, err)
	h := &hooked{Endpoint: ep}
	s, err := Open(h, o)
	must(t, err)
	t.Cleanup(func() {
		must(t, s.Close())
		must(t, ep.Close())
	})
	return s, h
}

// tinyOn is a tree of nodes of two entries, with a pair for each letter.
func tinyOn(t *testing.T, format, letters string, size int) (rdma.Fabric, *Store) {
	t.Helper()
	p := tiny(format, 2)
	p.Timeout, p.Lease = 20*time.Second, time.Second // of other work of the machine, too
	f := memPool(t, p)
	s := storeOn(t, f, Options{})
	for _, k := range []byte(letters) {
		must(t, s.Insert([]byte{k}, []byte(strings.Repeat(string(k), size))))
	}
	return f, s
}

// refOf returns where the value of a key lies beside its leaf.
func refOf(t *testing.T, s *Store, key string) btree.Ref {
	t.Helper()
	must(t, s.begin([]byte(key), nil))
	must(t, s.look())
	if s.found != foundBeside {
		t.Fatalf("the value of %q does not lie beside its leaf", key)
	}
	return s.at
}

// TestOthersValue: a value names its key. Names of objects come back, so a client
// that remembers an old one may meet another key's value.
func TestOthersValue(t *testing.T) { both(t, othersValue) }

func othersValue(t *testing.T, format string) {
	f, s := tinyOn(t, format, "abc", 40)
	of := refOf(t, s, "b")
	must(t, s.begin([]byte("a"), []byte("a value that is long")))
	s.at = of
	wantError(t, s.objects.run(s.replaceTx), errMoved)
	s.found = foundStale
	must(t, s.objects.each([]btree.Ref{of}, s.takeValue))
	if s.found != foundStale {
		t.Errorf("it is taken for another key's: %q", s.out)
	}
	c := &s.scan
	c.pairs = []btree.Pair{{Key: []byte("a"), Beside: of}}
	must(t, s.valuesBeside(0, 1))
	if c.ends[0].there {
		t.Errorf("a scan takes it for another key's: %q", c.data)
	}
	for _, k := range "abc" {
		if v, err := s.Get([]byte(string(k))); err != nil || string(v) != strings.Repeat(string(k), 40) {
			t.Errorf("%q, %v", v, err)
		}
	}
	checked(t, f, 3)
}

// TestOldWay: a node that is not the leaf's parent any more, or not of the level
// that it was, does not adopt a half of the leaf.
func TestOldWay(t *testing.T) { both(t, oldWay) }

func oldWay(t *testing.T, format string) {
	f, s := tinyOn(t, format, "abcdefghijklmnop", 4)
	must(t, s.begin([]byte("b"), nil))
	must(t, s.descend())
	right := s.way
	if s.height < 2 {
		t.Fatalf("a tree of height %d", s.height)
	}
	must(t, s.begin([]byte("o"), nil))
	must(t, s.descend())
	wrong := s.way
	try := func(way [mostHeight + 1]btree.Ref) error {
		must(t, s.begin([]byte("b"), nil))
		s.way = way
		return s.objects.run(func(tx transaction) error {
			_, err := s.internal(tx, 1)
			return err
		})
	}
	must(t, try(right))
	for _, other := range []btree.Ref{wrong[1], right[2], right[0], 0} {
		way := right
		way[1] = other
		wantError(t, try(way), errStale)
	}
	way := right
	way[0] = wrong[0]
	wantError(t, try(way), errStale)
	checked(t, f, 16)
}

// TestScanOfDeleted: pairs that are deleted between the READ of their leaf and that of their values
// are left out, and do not count; the scan has others for them, of the same leaf.
func TestScanOfDeleted(t *testing.T) { both(t, scanOfDeleted) }

func scanOfDeleted(t *testing.T, format string) {
	f := memPool(t, small(format, 1, 100, 100))
	other := storeOn(t, f, Options{})
	s, h := hookedStore(t, f, Options{})
	for _, k := range "abcdefg" {
		must(t, other.Insert([]byte(string(k)), make([]byte, 50)))
	}
	scan := func(n int) (got string) {
		must(t, s.Scan([]byte("b"), n, func(key, _ []byte) bool { got += string(key); return true }))
		return got
	}
	if got := scan(3); got != "bcd" {
		t.Fatalf("a scan has %q", got)
	}
	h.n, h.f = 2, func() {
		must(t, other.Delete([]byte("b")))
		must(t, other.Delete([]byte("d")))
	}
	if got := scan(3); got != "cef" {
		t.Errorf("a scan beside DELETEs has %q", got)
	}
	if got := scan(3); got != "cef" {
		t.Errorf("a scan behind DELETEs has %q", got)
	}
}

// TestSplitUnderScan: a scan that reads ahead meets leaves that were split, merged and emptied
// since it has read their parent.
func TestSplitUnderScan(t *testing.T) { both(t, splitUnderScan) }

func splitUnderScan(t *testing.T, format string) {
	const keys = "abcdefghijklmnop"
	for n := 1; n < 12; n++ {
		f, other := tinyOn(t, format, keys, 4)
		s, h := hookedStore(t, f, Options{})
		scan := func() (got string) {
			must(t, s.Scan(nil, 1000, func(key, _ []byte) bool { got += string(key[:1]); return true }))
			return got
		}
		if got := scan(); got != keys {
			t.Fatalf("a scan has %q", got)
		}
		h.n, h.f = n, func() {
			for _, k := range "cdefklm" {
				must(t, other.Delete([]byte(string(k))))
			}
			for i := range 6 {
				must(t, other.Insert(fmt.Appendf(nil, "h%d", i), nil))
			}
		}
		got := scan()
		for _, k := range "abghijnop" {
			if !strings.ContainsRune(got, k) {
				t.Errorf("before batch %d: a scan misses %c, and has %q", n, k, got)
			}
		}
		for i := 1; i < len(got); i++ {
			if got[i] < got[i-1] {
				t.Errorf("before batch %d: a scan has %q", n, got)
			}
		}
	}
}

// warmed are workers of a tree of 203 pairs: two that remember what they meet, and one that does
// not.
func warmed(t *testing.T, format string) (s, other, bare *Store) {
	f := memPool(t, small(format, 3, 1000, 100))
	s, other, bare = storeOn(t, f, Options{}), storeOn(t, f, Options{}), storeOn(t, f, Options{CacheBytes: new(0)})
	for i := range 200 {
		must(t, s.Insert(fmt.Appendf(nil, "key%03d", i), shortValue))
	}
	for i := range 3 {
		must(t, s.Insert(fmt.Appendf(nil, "long%d", i), longValue))
	}
	return s, other, bare
}

var shortValue, longValue = make([]byte, 8), make([]byte, 60)

// steady brings a worker to its steady state: what it has has no end within an operation, and what
// it has met is known.
func steady(t *testing.T, s *Store) {
	for range 3 {
		s.ep.Sleep(3 * time.Millisecond)
		for _, k := range []string{"key100", "long1"} {
			v, err := s.Get([]byte(k))
			must(t, err)
			must(t, s.Update([]byte(k), append([]byte(nil), v...)))
		}
		must(t, s.Delete([]byte("key101")))
		must(t, s.Insert([]byte("key101"), shortValue))
		must(t, s.Delete([]byte("long2")))
		must(t, s.Insert([]byte("long2"), longValue))
		for _, k := range []string{"key101", "key102", "long0"} { // some of which may not be there
			_, _ = s.Get([]byte(k))
		}
	}
}

func getOnly(s *Store, key string) error { _, err := s.Get([]byte(key)); return err }

// ofFormat returns what a tree over rtx takes, or one over dtx.
func ofFormat(format string, repairable, dtx uint64) uint64 {
	if format == DTX {
		return dtx
	}
	return repairable
}

// TestTrips asserts what operations take on the critical path.
func TestTrips(t *testing.T) { both(t, trips) }

func trips(t *testing.T, format string) {
	s, _, bare := warmed(t, format)
	of := func(repairable, dtx uint64) uint64 { return ofFormat(format, repairable, dtx) }
	none := func(err error) error { // an error that is expected
		if err != nil {
			return nil
		}
		return client.ErrDamaged
	}
	for _, c := range []struct {
		what  string
		s     *Store
		trips uint64
		f     func(s *Store) error
	}{
		{"GET", s, 1, func(s *Store) error { return getOnly(s, "key100") }},
		{"GET of a key that is not there", s, 1, func(s *Store) error { return none(getOnly(s, "key100x")) }},
		{"UPDATE", s, of(2, 3), func(s *Store) error { return s.Update([]byte("key100"), shortValue) }},
		{"INSERT of a key that is there", s, 1, func(s *Store) error {
			return none(s.Insert([]byte("key100"), shortValue))
		}},
		{"DELETE", s, of(2, 3), func(s *Store) error { return s.Delete([]byte("key102")) }},
		{"INSERT", s, of(2, 3), func(s *Store) error { return s.Insert([]byte("key102"), shortValue) }},
		{"GET, beside", s, 2, func(s *Store) error { return getOnly(s, "long1") }},
		{"UPDATE, beside", s, of(3, 4), func(s *Store) error { return s.Update([]byte("long1"), longValue) }},
		{"DELETE, beside", s, of(6, 5), func(s *Store) error { return s.Delete([]byte("long0")) }},
		{"INSERT, beside", s, of(5, 4), func(s *Store) error { return s.Insert([]byte("long0"), longValue) }},
		// Nothing is remembered: the root and the leaf are read, and over rtx the
		// metadata of each before.
		{"GET, no cache", bare, of(2*2, 2), func(s *Store) error { return getOnly(s, "key100") }},
		{"UPDATE, no cache", bare, of(2+3, 1+4), func(s *Store) error {
			return s.Update([]byte("key100"), shortValue)
		}},
		{"GET, beside, no cache", bare, of(2*3, 3), func(s *Store) error { return getOnly(s, "long1") }},
	} {
		steady(t, c.s)
		if n := trace.Trips(c.s.ep, func() { must(t, c.f(c.s)) }); n.Trips != c.trips {
			t.Errorf("%s took %d trips, want %d: %+v", c.what, n.Trips, c.trips, n)
		}
	}
}

// TestTripsOfMany asserts the same of operations on several nodes, and of those
// after another client's.
func TestTripsOfMany(t *testing.T) { both(t, tripsOfMany) }

func tripsOfMany(t *testing.T, format string) {
	s, other, _ := warmed(t, format)
	// A split READs the parent, and commits with a log.
	steady(t, s)
	for i := 0; ; i++ {
		before := s.stats.Splits
		key := fmt.Appendf(nil, "key100%03d", i)
		n := trace.Trips(s.ep, func() { must(t, s.Insert(key, shortValue)) })
		if s.stats.Splits > before {
			if n.Trips > 1+5+1 { // a chunk may be asked for
				t.Errorf("an INSERT that splits a leaf of %d took %d trips: %+v", s.format.Slots(), n.Trips, n)
			}
			break
		}
		s.ep.Sleep(time.Millisecond)
	}
	// Over rtx a leaf that another client has changed takes a trip more, since
	// what is remembered of it is outdated.
	steady(t, s)
	must(t, getOnly(other, "key100"))
	must(t, s.Update([]byte("key100"), shortValue))
	if n := trace.Trips(other.ep, func() { must(t, getOnly(other, "key100")) }); n.Trips != ofFormat(format, 2, 1) {
		t.Errorf("a GET behind another client's UPDATE took %d trips", n.Trips)
	}
	// A scan takes the trips of one leaf, and of its values, whatever many leaves the parent has.
	steady(t, s)
	seen := 0
	all := func() { must(t, s.Scan([]byte("key"), 40, func(_, _ []byte) bool { seen++; return true })) }
	all()
	if n := trace.Trips(s.ep, all); n.Trips > 3 || seen != 80 {
		t.Errorf("a scan of 40 pairs took %d trips, and two have %d", n.Trips, seen)
	}
}

// TestAllocations: in steady state operations allocate nothing.
func TestAllocations(t *testing.T) { both(t, allocations) }

func allocations(t *testing.T, format string) {
	f := memPool(t, small(format, 3, 1000, 100))
	s := storeOn(t, f, Options{})
	for i := range 500 {
		must(t, s.Insert(fmt.Appendf(nil, "key%03d", i), make([]byte, 8+i%2*40)))
	}
	short, long := make([]byte, 8), make([]byte, 48)
	for what, f := range map[string]func(key []byte, n int) error{
		"GET":            func(key []byte, n int) error { _, err := s.Get(key); return err },
		"UPDATE, beside": func(key []byte, n int) error { key[5] |= 1; return s.Update(key, long) },
		"UPDATE":         func(key []byte, n int) error { key[5] &^= 1; return s.Update(key, short) },
		"SCAN": func(key []byte, n int) error {
			return s.Scan(key, 30, func(_, _ []byte) bool { return true })
		},
		"DELETE, INSERT": func(key []byte, n int) error {
			if err := s.Delete(key); err != nil {
				return err
			}
			return s.Insert(key, short)
		},
	} {
		key := []byte("key000")
		n := 0
		run := func() {
			n++
			key[3], key[4], key[5] = '0'+byte(n%5), '0'+byte(n/5%10), '0'+byte(n/50%10)
			must(t, f(key, n))
			if n%10 == 0 { // quarantines end
				s.ep.Sleep(300 * time.Microsecond)
			}
		}
		for range 2000 {
			run()
		}
		if got := testing.AllocsPerRun(1000, run); got > 0 {
			t.Errorf("%s: %v allocations", what, got)
		}
	}
}
