package workloads

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
)

// clock is an Env in which time advances only by calls of Sleep and by assignment.
type clock struct {
	now time.Duration
	rnd *rand.Rand
}

func newClock() *clock                   { return &clock{rnd: seeded(1)} }
func (c *clock) Now() time.Duration      { return c.now }
func (c *clock) Sleep(d time.Duration)   { c.now += d }
func (c *clock) Rand() *rand.Rand        { return c.rnd }
func microseconds(n int64) time.Duration { return time.Duration(n) * time.Microsecond }

// script is a client.Store with calls that take time, cost trips and fail as a test wants.
type script struct {
	clock  *clock
	took   func(call string) time.Duration
	fails  func(call, key string) error
	rows   map[string][]byte
	calls  []string
	counts rdma.Counters
}

func newScript(c *clock) *script {
	return &script{clock: c, rows: map[string][]byte{}, took: func(string) time.Duration { return time.Microsecond }}
}

func (s *script) call(name string, key []byte) error {
	s.clock.now += s.took(name)
	s.calls = append(s.calls, name)
	s.counts.Trips += map[string]uint64{"get": 1, "insert": 5, "update": 4, "delete": 4}[name]
	if s.fails != nil {
		return s.fails(name, string(key))
	}
	return nil
}

func (s *script) Get(key []byte) ([]byte, error) {
	if err := s.call("get", key); err != nil {
		return nil, err
	}
	v, ok := s.rows[string(key)]
	if !ok {
		return nil, fmt.Errorf("get %s: %w", key, client.ErrNotFound)
	}
	return v, nil
}

func (s *script) Insert(key, value []byte) error {
	if err := s.call("insert", key); err != nil {
		return err
	}
	if _, ok := s.rows[string(key)]; ok {
		return fmt.Errorf("insert %s: %w", key, client.ErrExists)
	}
	s.rows[string(key)] = slices.Clone(value)
	return nil
}

func (s *script) Update(key, value []byte) error {
	if err := s.call("update", key); err != nil {
		return err
	}
	if _, ok := s.rows[string(key)]; !ok {
		return fmt.Errorf("update %s: %w", key, client.ErrNotFound)
	}
	s.rows[string(key)] = slices.Clone(value)
	return nil
}

func (s *script) Delete(key []byte) error {
	delete(s.rows, string(key))
	return s.call("delete", key)
}

func (s *script) Close() error { return nil }

func (s *script) load(c *Core) {
	s.worker(c, Share{Workers: 1, Load: true}).Run()
	s.calls, s.counts = nil, rdma.Counters{}
}

func (s *script) worker(c *Core, share Share) *Worker {
	return NewWorker(c, NewRows(s, &s.counts, c.Table, c.FieldCount), s.clock, share)
}

func TestLoadThenRunWithIntegrity(t *testing.T) {
	for _, props := range [][]string{
		{"fieldcount=1"}, {"fieldcount=3"}, {"writeallfields=true"}, {"readallfields=false"}, {"table=other"},
		{"requestdistribution=latest"}, {"requestdistribution=zipfian"}, {"fieldlength=3"},
		{"objectsizes=zippydb"}, {"objectsizes=up2x", "insertorder=ordered"}, {"objectsizes=udb", "table=other"},
	} {
		c := with(t, append(props, "dataintegrity=true", "readproportion=0.4", "updateproportion=0.2",
			"insertproportion=0.2", "readmodifywriteproportion=0.2", "operationcount=2000")...)
		s := newScript(newClock())
		for i := range 3 { // three loaders
			w := s.worker(c, Share{Worker: i, Workers: 3, Load: true})
			if w.Run(); w.Tally().Failed != 0 {
				t.Fatalf("%v: load: %v", props, w.Tally().Calls[OpInsert].Err)
			}
		}
		if len(s.rows) != 1000 {
			t.Fatalf("%v: %d records are loaded", props, len(s.rows))
		}
		w := s.worker(c, Share{Workers: 1, Ops: 2000})
		w.Run()
		if got := w.Tally(); got.Operations != 2000 || got.Failed != 0 {
			t.Errorf("%v: %d operations, %d failed: %v %v", props, got.Operations, got.Failed, got.Calls[OpRead].Err,
				got.Calls[OpUpdate].Err)
		}
	}
}

func TestIntegrityNoticesOneByte(t *testing.T) {
	c := with(t, "dataintegrity=true", "readproportion=1", "updateproportion=0", "recordcount=501")
	s := newScript(newClock())
	s.load(c)
	row := s.rows[string(c.Key(500))]
	row[len(row)-1] ^= 1
	w := s.worker(c, Share{Workers: 1, Ops: 1})
	w.Run()
	got := w.Tally()
	if m := got.Calls[OpRead]; !errors.Is(m.Err, ErrIntegrity) || got.Failed != 1 || m.OK != nil {
		t.Errorf("%d failed: %v", got.Failed, m.Err)
	}
}

func TestSameSeedSameCalls(t *testing.T) {
	var runs [2][]string
	for i := range runs {
		c := with(t, "insertproportion=0.1", "requestdistribution=latest")
		s := newScript(newClock())
		s.load(c)
		s.fails = func(call, key string) error { runs[i] = append(runs[i], call+key); return nil }
		s.worker(c, Share{Workers: 1, Ops: 500}).Run()
	}
	if !slices.Equal(runs[0], runs[1]) || len(runs[0]) < 500 {
		t.Error("two runs of one seed differ")
	}
}

// TestPacedLatencyCountsWaiting: a database that stalls once keeps all that was due meanwhile
// waiting.
func TestPacedLatencyCountsWaiting(t *testing.T) {
	c := with(t, "readproportion=1", "updateproportion=0")
	s := newScript(newClock())
	s.load(c)
	start, n := s.clock.now, 0
	s.took = func(string) time.Duration {
		if n++; n == 11 {
			return 1000 * time.Microsecond
		}
		return time.Microsecond
	}
	w := s.worker(c, Share{Workers: 1, Ops: 200, First: start + microseconds(10), Period: microseconds(10)})
	w.Run()
	h := w.Tally().Calls[OpRead].OK
	slow := uint64(0)
	h.Buckets(func(from, _ time.Duration, n uint64) bool {
		if from > microseconds(1) {
			slow += n
		}
		return true
	})
	// It falls 990 us behind and catches up 9 us with each call.
	if want := uint64(1 + 110); slow != want || h.Max() != 1000*time.Microsecond {
		t.Errorf("%d calls were slow, the slowest %v; want %d", slow, h.Max(), want)
	}
	if took := s.clock.now - start; took != microseconds(10+199*10+1) {
		t.Errorf("took %v", took)
	}
}

func TestUntilAndWarmUp(t *testing.T) {
	c := with(t, "readproportion=1", "updateproportion=0")
	s := newScript(newClock())
	s.load(c)
	now := s.clock.now
	w := s.worker(c, Share{Workers: 1, Warm: now + microseconds(100), Until: now + microseconds(250)})
	w.Run()
	if n := w.Tally().Operations; n != 150 || len(s.calls) != 250 {
		t.Errorf("%d operations measured of %d", n, len(s.calls))
	}
	s.calls = nil
	now = s.clock.now
	w = s.worker(c, Share{Workers: 1, Ops: 50, Warm: now + microseconds(100)})
	w.Run()
	if n := w.Tally().Operations; n != 50 || len(s.calls) != 150 {
		t.Errorf("%d operations measured of %d", n, len(s.calls))
	}
}

func TestPollStopsAndTakesAway(t *testing.T) {
	c := with(t)
	s := newScript(newClock())
	s.load(c)
	var total Tally
	polls := 0
	w := s.worker(c, Share{Workers: 1, Poll: func(tally *Tally) bool {
		total.Merge(tally)
		tally.Reset()
		polls++
		return polls <= 30
	}})
	w.Run()
	if total.Operations != 30 || w.Tally().Operations != 0 {
		t.Errorf("%d operations taken, %d left", total.Operations, w.Tally().Operations)
	}
	if h, _ := total.Total(); h.Count() != 30 {
		t.Errorf("%d latencies", h.Count())
	}
}

// TestFailedInsertsLeaveNoHole: an insert that fails is done again, and no reader looks for it
// before.
func TestFailedInsertsLeaveNoHole(t *testing.T) {
	for _, distribution := range []string{"latest", "zipfian", "exponential", "uniform"} {
		c := with(t, "insertproportion=0.5", "readproportion=0.5", "updateproportion=0", "operationcount=4000",
			"requestdistribution="+distribution)
		s := newScript(newClock())
		s.load(c)
		n := 0
		s.fails = func(call, _ string) error {
			if n++; call == "insert" && n%3 == 0 {
				return client.ErrUncertain
			}
			return nil
		}
		w := s.worker(c, Share{Workers: 1, Ops: 4000})
		w.Run()
		if f := w.Tally().Calls[OpRead].Failed; f != nil {
			t.Errorf("%s: %d reads missed: %v", distribution, f.Count(), w.Tally().Calls[OpRead].Err)
		}
		if w.Tally().Failed == 0 || len(s.rows) < 2000 {
			t.Errorf("%s: %d inserts failed, %d records", distribution, w.Tally().Failed, len(s.rows))
		}
	}
}

func TestLoadRetriesAndThenStops(t *testing.T) {
	c := with(t, "core_workload_insertion_retry_limit=3", "core_workload_insertion_retry_interval=2")
	s := newScript(newClock())
	failures := 3
	s.fails = func(string, string) error {
		if failures--; failures >= 0 {
			return client.ErrUncertain
		}
		return nil
	}
	w := s.worker(c, Share{Workers: 1, Load: true})
	w.Run()
	if w.Tally().Failed != 0 || len(s.rows) != 1000 || s.clock.now < 3*1600*time.Millisecond {
		t.Errorf("%d failed, %d loaded in %v", w.Tally().Failed, len(s.rows), s.clock.now)
	}
	s.rows, s.calls, failures = map[string][]byte{}, nil, 1<<30
	w = s.worker(c, Share{Workers: 1, Load: true})
	w.Run()
	if w.Tally().Failed != 1 || w.Tally().Operations != 1 || len(s.calls) != 4 {
		t.Errorf("%d of %d failed after %d calls", w.Tally().Failed, w.Tally().Operations, len(s.calls))
	}
}

func TestTripsAreCountedByCall(t *testing.T) {
	c := with(t, "readproportion=0.3", "updateproportion=0.3", "insertproportion=0.2", "readmodifywriteproportion=0.2",
		"fieldcount=1")
	s := newScript(newClock())
	s.load(c)
	w := s.worker(c, Share{Workers: 1, Ops: 1000})
	w.Run()
	for op, each := range map[Op]uint64{OpRead: 1, OpUpdate: 4, OpInsert: 5, OpReadModifyWrite: 5} {
		if m := w.Tally().Calls[op]; m.Trips != each*m.OK.Count() {
			t.Errorf("%d trips of %d calls of %s", m.Trips, m.OK.Count(), op)
		}
	}
	if h, trips := w.Tally().Total(); trips != s.counts.Trips || h.Count() != uint64(len(s.calls)) {
		t.Errorf("%d trips of %d, %d calls of %d", trips, s.counts.Trips, h.Count(), len(s.calls))
	}
}

func TestRowsOnAStore(t *testing.T) {
	s := newScript(newClock())
	db := NewRows(s, nil, "usertable", 3)
	rec := func(field int, values ...string) *Record {
		r := &Record{Field: field, Values: make([][]byte, 3)}
		for i, v := range values {
			if v != "" {
				r.Values[i] = []byte(v)
			}
		}
		return r
	}
	key := []byte("k")
	if err := db.Update(key, rec(1, "", "x")); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("update of nothing: %v", err)
	}
	for _, err := range []error{
		db.Insert(key, rec(AllFields, "a", "b", "c")),
		db.Insert(key, rec(AllFields, "d", "e", "f")), // replaces
		db.Update(key, rec(1, "", "E")),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	got := rec(AllFields)
	if err := db.Read(key, got); err != nil || fmt.Sprintf("%s", got.Values) != "[d E f]" {
		t.Errorf("read %s: %v", got.Values, err)
	}
	if err := db.Scan(key, 1, got, nil); !errors.Is(err, ErrNoScan) {
		t.Errorf("scan: %v", err)
	}
	if err := NewRows(s, nil, "other", 3).Read(key, got); !errors.Is(err, client.ErrNotFound) {
		t.Errorf("tables share records: %v", err)
	}
	s.rows["k"] = []byte("garbage")
	if err := db.Read(key, got); !errors.Is(err, client.ErrDamaged) {
		t.Errorf("read of garbage: %v", err)
	}
}

func TestLoopAllocatesNothing(t *testing.T) {
	c := with(t, "requestdistribution=zipfian", "operationcount=1000000", "insertproportion=0.1")
	w := NewWorker(c, nothing{}, newClock(), Share{Workers: 1, Ops: 1 << 40})
	w.end, w.record = 1, true
	for range 100 {
		w.operate()
	}
	if n := testing.AllocsPerRun(1000, func() { w.operate() }); n != 0 {
		t.Errorf("%v allocations an operation", n)
	}
}

// fixed is a store that answers without allocating.
type fixed struct{ row []byte }

func (s fixed) Get([]byte) ([]byte, error)     { return s.row, nil }
func (s fixed) Insert(key, value []byte) error { return nil }
func (s fixed) Update(key, value []byte) error { return nil }
func (s fixed) Delete([]byte) error            { return nil }
func (s fixed) Close() error                   { return nil }

func TestRowsAllocateNothing(t *testing.T) {
	c := with(t, "readproportion=0.4", "updateproportion=0.4", "insertproportion=0.2", "table=other")
	values := make([][]byte, c.FieldCount)
	for i := range values {
		values[i] = make([]byte, c.FieldLength)
	}
	db := NewRows(fixed{appendRow(nil, values)}, nil, c.Table, c.FieldCount)
	w := NewWorker(c, db, newClock(), Share{Workers: 1})
	w.record = true
	for range 100 {
		w.operate()
	}
	if n := testing.AllocsPerRun(1000, func() { w.operate() }); n != 0 {
		t.Errorf("%v allocations an operation", n)
	}
}

type nothing struct{}

func (nothing) Read([]byte, *Record) error              { return nil }
func (nothing) Update([]byte, *Record) error            { return nil }
func (nothing) Insert([]byte, *Record) error            { return nil }
func (nothing) Delete([]byte) error                     { return nil }
func (nothing) Scan([]byte, int, *Record, func()) error { return nil }
func (nothing) Counters() *rdma.Counters                { return nil }
func (nothing) Close() error                            { return nil }

func BenchmarkOperation(b *testing.B) {
	for _, distribution := range []string{"uniform", "zipfian", "latest"} {
		b.Run(distribution, func(b *testing.B) {
			c := with(b, "requestdistribution="+distribution)
			w := NewWorker(c, nothing{}, newClock(), Share{Workers: 1, Ops: int64(b.N), Live: new(LiveCounts)})
			b.ReportAllocs()
			b.ResetTimer()
			w.Run()
		})
	}
}

// The virtual world's endpoints are Envs as they are.
var _ Env = rdma.Env(nil)
