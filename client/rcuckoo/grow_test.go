package rcuckoo

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/rcuckoo/extents"
	"github.com/farkv/farkv/client/rcuckoo/recovery"
	"github.com/farkv/farkv/client/rcuckoo/session"
	"github.com/farkv/farkv/client/rcuckoo/steps"
	"github.com/farkv/farkv/client/rcuckoo/table"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/fault"
	"github.com/farkv/farkv/node/rdma/sim"
	"github.com/farkv/farkv/workloads/check/storetest"
)

// growingPool is a table of few rows, which has to double often.
func growingPool(shards int) table.Params {
	p := inlinePool(shards)
	p.Rows, p.RowsPerLock, p.LockWords, p.Levels = 30/shards, 1, 1, 6
	return p
}

func judge(t testing.TB, f rdma.Fabric) client.Report {
	t.Helper()
	r, err := Check(f)
	must(t, err)
	if len(r.Damage)+len(r.Waiting) > 0 {
		t.Fatalf("damage %q, waiting %q", r.Damage, r.Waiting)
	}
	return r
}

func fact(t testing.TB, r client.Report, name string) uint64 {
	t.Helper()
	for _, f := range r.Facts {
		if f.Name == name {
			return f.Count
		}
	}
	t.Fatalf("no %q in %+v", name, r.Facts)
	return 0
}

// TestGrow fills a table until it has doubled as often as it may. All keys are found on the way,
// by a client that inserts and by one that only reads. Deletes make room for new keys.
func TestGrow(t *testing.T) {
	for _, cache := range []int{0, -1} {
		p := growingPool(2)
		p.InlineBytes, p.ExtentBytes, p.KeyBytes, p.Levels = 8, 8, 8, 4
		f := memPool(t, 2, p)
		s, reader := storeOn(t, f, session.Options{CacheBytes: new(cache)}), storeOn(t, f, session.Options{})
		key := func(i int) []byte { return fmt.Appendf(nil, "k%d", i) }
		n := 0
		for ; ; n++ {
			err := s.Insert(key(n), key(n))
			if errors.Is(err, client.ErrFull) {
				break
			}
			must(t, err)
			if n%7 == 0 {
				must(t, s.Update(key(n/2), key(n/2)))
			}
			if v, err := reader.Get(key(n * 2 / 3)); err != nil || string(v) != string(key(n*2/3)) {
				t.Fatalf("get key %d of %d: %q, %v", n*2/3, n, v, err)
			}
			if _, err := reader.Get(key(n + 1)); !errors.Is(err, client.ErrNotFound) {
				t.Fatalf("get key %d of %d: %v", n+1, n, err)
			}
			if n%100 == 0 {
				judge(t, f)
			}
		}
		all := p.Shards * p.Rows * p.Entries << p.Levels
		t.Logf("full at %.1f %% of %d entries; %+v", 100*float64(n)/float64(all), all, s.Stats())
		if n < all*70/100 { // segments of so few rows are not equally full
			t.Errorf("full at %d of %d entries", n, all)
		}
		for i := range n {
			if v, err := s.Get(key(i)); err != nil || string(v) != string(key(i)) {
				t.Fatalf("get key %d of %d: %q, %v", i, n, v, err)
			}
		}
		if r := judge(t, f); fact(t, r, "keys") != uint64(n) || fact(t, r, "entries") > uint64(all) {
			t.Errorf("%+v", r)
		}
		for i := range n / 2 {
			must(t, s.Delete(key(i)))
		}
		for i := range n / 3 {
			must(t, s.Insert(key(i), nil))
		}
		judge(t, f)
	}
}

// TestStoreGrowing runs the suites on tables that double again and again under their load.
func TestStoreGrowing(t *testing.T) {
	p := growingPool(2)
	p.InlineBytes, p.ExtentBytes, p.SlabExtents = 16, 1000, 16
	p.Slabs = 5000 / 16 / p.Shards
	h := harness(2, p, session.Options{Failure: 3 * time.Second})
	make := h.Format
	h.Format = func(f rdma.Fabric) error {
		if _, ok := f.(*sim.Sim); !ok {
			return make(f)
		}
		p := p
		p.Rows, p.Entries, p.Slabs, p.Levels = 1, 1, 40, 8 // the suite has few keys; two of them differ late
		return Make(f, p)
	}
	h.Alike = true // except that any client may divide rows, under their locks
	storetest.Run(t, h)
}

// TestRedoOfLongAgo: a redo was carried out, another client has written the same slot since, and
// a third one has left the row torn in other places. The redo does not bring back what it wrote.
func TestRedoOfLongAgo(t *testing.T) {
	f := memPool(t, 1, inlinePool(1))
	first, second := storeOn(t, f, session.Options{}), storeOn(t, f, session.Options{})
	key := []byte("key")
	must(t, first.Insert(key, []byte("old")))
	redo, steps, begun, err := recovery.ReadRedo(first.op, 0, first.session.Table.Leads[0], first.session.ID,
		first.session.Shards[0].Seq)
	must(t, err)
	if !begun || steps != 1 {
		t.Fatalf("%d steps, %v", steps, begun)
	}
	must(t, second.Update(key, []byte("new")))
	s := second
	n := uint32(le.Uint64(redo[table.RedoHeader:]))
	b := s.session.EP.Batch()
	read := b.Read(s.session.Table.RowAt(s.session.Table.Leads[0], n), s.session.Table.RowBytes)
	must(t, s.op.Do("read rows", b))
	good := append(table.Row(nil), read.Buf...)
	b.Release()
	torn := append(table.Row(nil), good...)
	le.PutUint64(torn[s.session.Table.VersionAt:], s.session.Table.Version(torn)+1)
	write := func(r table.Row) {
		b := s.session.EP.Batch()
		defer b.Release()
		b.Write(s.session.Table.RowAt(s.session.Table.Leads[0], n), r)
		must(t, s.op.Do("write rows", b))
	}
	write(torn)
	must(t, recovery.RedoStep(s.op, 0, s.session.Table.Leads[0],
		redo[table.RedoHeader:][:table.RedoStepBytes+s.session.Table.EntryBytes]))
	b = s.session.EP.Batch()
	read = b.Read(s.session.Table.RowAt(s.session.Table.Leads[0], n), s.session.Table.RowBytes)
	must(t, s.op.Do("read rows", b))
	if !bytes.Equal(read.Buf, torn) {
		t.Error("the old value is back")
	}
	b.Release()
	write(good)
}

// TestDivisionOfLongAgo: a division was carried out, and other clients have changed its rows
// since. Its redo does not change a row that the last of them has left torn.
func TestDivisionOfLongAgo(t *testing.T) {
	p := growingPool(1)
	f := memPool(t, 1, p)
	s := storeOn(t, f, session.Options{})
	s.op.Begin()
	must(t, s.raise(s.op, 0, 0))
	must(t, s.share(s.op, 0)) // rows 0 to 2, which are empty
	redo, steps, begun, err := recovery.ReadRedo(s.op, 0, s.session.Table.Leads[0], s.session.ID,
		s.session.Shards[0].Seq)
	must(t, err)
	if !begun || steps != 2*table.GrowShare {
		t.Fatalf("%d steps, %v", steps, begun)
	}
	child := s.session.Table.Child(0, 0)
	torn := make(table.Row, s.session.Table.RowBytes)
	write := func() {
		b := s.session.EP.Batch()
		defer b.Release()
		b.Write(s.session.Table.RowAt(s.session.Table.Leads[0], child), torn)
		must(t, s.op.Do("write rows", b))
	}
	s.session.Table.Seal(torn, 0, child, table.LevelOne+2)
	torn[s.session.Table.SumAt]++
	write()
	for i := range steps {
		at := redo[table.RedoHeader+i*(table.RedoStepBytes+s.session.Table.EntryBytes):]
		must(t, recovery.RedoStep(s.op, 0, s.session.Table.Leads[0],
			at[:table.RedoStepBytes+s.session.Table.EntryBytes]))
	}
	b := s.session.EP.Batch()
	op := b.Read(s.session.Table.RowAt(s.session.Table.Leads[0], child), s.session.Table.RowBytes)
	must(t, s.op.Do("read rows", b))
	if !bytes.Equal(op.Buf, torn) {
		t.Error("what a later client was writing is undone")
	}
	b.Release()
	clear(torn)
	s.session.Table.Seal(torn, 0, child, table.LevelOne+1)
	write()
	judge(t, f)
}

// TestClaimsOfGrown: an extent that a row of a later segment names is in use, whichever client
// finds it in a claim list.
func TestClaimsOfGrown(t *testing.T) {
	p := tinyGrowing(true, time.Second)
	p.SlabExtents = 1 // as many as are claimed at once: none is left in the claim list
	f := memPool(t, 1, p)
	s := storeOn(t, f, session.Options{})
	ep, err := f.Open("keeper")
	must(t, err)
	keeper := extents.New(s.session.Table, ep, time.Second)
	for i := range 3 {
		must(t, s.Insert(fmt.Appendf(nil, "key-%d", i), make([]byte, 100)))
		if n, err := keeper.Leave(0, s.session.ID); err != nil || n > 0 {
			t.Errorf("%d extents have no owner, %v", n, err)
		}
	}
	if s.session.Stats.Divided == 0 {
		t.Error("no row was divided")
	}
	judge(t, f)
}

// spy notes how many verbs were sent before each step came first.
type spy struct {
	*fault.Endpoint
	at map[rdma.Step]uint64
}

func (s spy) Post(b *rdma.Batch) error {
	if _, ok := s.at[b.Step()]; !ok {
		s.at[b.Step()] = s.Sent()
	}
	return s.Endpoint.Post(b)
}

// TestDivisionIsNoInsert: an INSERT loses its node right after the batch that divides its rows.
// The division turns out to have taken effect, and the INSERT has not.
func TestDivisionIsNoInsert(t *testing.T) {
	insert := func(faults ...fault.Fault) spy {
		f := memPool(t, 1, tinyGrowing(true, time.Second))
		must(t, storeOn(t, f, session.Options{}).Insert([]byte("key-0"), nil))
		ep, err := f.Open("inserter")
		must(t, err)
		e := spy{fault.New(ep, faults...), map[rdma.Step]uint64{}}
		s, err := Open(e, session.Options{Pool: f})
		must(t, err)
		must(t, s.Insert([]byte("key-1"), []byte("value")))
		if v, err := s.Get([]byte("key-1")); err != nil || string(v) != "value" {
			t.Errorf("get: %q, %v", v, err)
		}
		must(t, errors.Join(s.Close(), ep.Close()))
		judge(t, f)
		return e
	}
	const division = 4 // verbs: redo, new row, old row, and the CAS that releases the lock
	e := insert()
	if e = insert(fault.Fault{At: e.at[steps.WriteRows] + division, Err: rdma.ErrNodeDown}); e.at[steps.GiveUp] == 0 {
		t.Error("nothing was lost")
	}
}

// TestGrowOutOfReach: a node says that it gives no memory to a table, which has all or cannot have
// more, and is out of reach for a moment when the INSERT looks which. The table is not full.
func TestGrowOutOfReach(t *testing.T) {
	f := memPool(t, 1, tinyGrowing(true, time.Second))
	must(t, storeOn(t, f, session.Options{}).Insert([]byte("key-0"), nil))
	ep, err := f.Open("inserter")
	must(t, err)
	e := fault.New(ep, fault.Fault{Step: steps.AskForASegment, Err: rdma.ErrFull},
		fault.Fault{Step: steps.ReadWord, Err: rdma.ErrNodeDown})
	s, err := Open(e, session.Options{Pool: f})
	must(t, err)
	for i := range 3 {
		if err := s.Insert(fmt.Appendf(nil, "key-%d", i+1), nil); err != nil {
			t.Errorf("insert into a table that may grow: %v", err)
		}
	}
	if level, _ := table.GrowthOf(s.levels.Words[0]); level == 0 {
		t.Error("the table has not grown")
	}
	must(t, errors.Join(s.Close(), ep.Close()))
	judge(t, f)
}
