package runner

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/magiconair/properties"
	"go.uber.org/goleak"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/workloads"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// table is a store that all workers share, behind a lock.
type table struct {
	NoPool
	mu     sync.Mutex
	rows   map[string][]byte
	fails  func(call string) error
	opens  func(worker int) error
	opened int
	closed int
	delay  time.Duration
}

func newTable() *table { return &table{rows: map[string][]byte{}} }

func (t *table) Open(worker int) (workloads.DB, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.opens != nil {
		if err := t.opens(worker); err != nil {
			return nil, err
		}
	}
	t.opened++
	s := &tableStore{table: t}
	return workloads.NewRows(s, &s.counts, "usertable", 2), nil
}

func (t *table) Close() error { return nil }

type tableStore struct {
	*table
	counts rdma.Counters
}

func (s *tableStore) enter(call string, trips uint64) error {
	time.Sleep(s.delay)
	s.mu.Lock()
	s.counts.Trips += trips
	if s.fails != nil {
		return s.fails(call)
	}
	return nil
}

func (s *tableStore) Get(key []byte) ([]byte, error) {
	err := s.enter("get", 1)
	defer s.mu.Unlock()
	if err != nil {
		return nil, err
	}
	if v, ok := s.rows[string(key)]; ok {
		return v, nil
	}
	return nil, fmt.Errorf("get %s: %w", key, client.ErrNotFound)
}

func (s *tableStore) put(call string, key, value []byte, there bool, otherwise error) error {
	err := s.enter(call, 4)
	defer s.mu.Unlock()
	if err != nil {
		return err
	}
	if _, ok := s.rows[string(key)]; ok != there {
		return fmt.Errorf("%s %s: %w", call, key, otherwise)
	}
	s.rows[string(key)] = slices.Clone(value)
	return nil
}

func (s *tableStore) Insert(key, value []byte) error {
	return s.put("insert", key, value, false, client.ErrExists)
}

func (s *tableStore) Update(key, value []byte) error {
	return s.put("update", key, value, true, client.ErrNotFound)
}

func (s *tableStore) Delete(key []byte) error { return nil }

func (s *tableStore) Close() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.closed++
	return nil
}

func configure(t testing.TB, db Database, props ...string) Config {
	t.Helper()
	p := properties.NewProperties()
	for _, kv := range append([]string{"recordcount=1000", "fieldcount=2", "seed=1"}, props...) {
		name, value, _ := strings.Cut(kv, "=")
		p.MustSet(name, value)
	}
	c, err := Configure(p)
	if err != nil {
		t.Fatal(err)
	}
	c.Database = db
	return c
}

// TestNoReadMisses: 8 workers that insert and read what was inserted last, with every distribution.
func TestNoReadMisses(t *testing.T) {
	for _, distribution := range []string{"latest", "zipfian", "uniform", "exponential", "hotspot", "sequential"} {
		db := newTable()
		c := configure(t, db, "threadcount=8", "operationcount=20000", "readproportion=0.5", "insertproportion=0.3",
			"updateproportion=0.2", "dataintegrity=true", "requestdistribution="+distribution)
		for _, c.Load = range []bool{true, false} {
			res, err := Run(t.Context(), c)
			if err != nil || res.Failed != 0 || res.Problem != "" {
				t.Fatalf("%s: %v, %d failed: %v", distribution, err, res.Failed, res.Err())
			}
			if want := map[bool]uint64{true: 1000, false: 20000}[c.Load]; res.Operations != want {
				t.Errorf("%s: %d operations, want %d", distribution, res.Operations, want)
			}
		}
		if db.opened != 16 || db.closed != 16 {
			t.Errorf("%d opened, %d closed", db.opened, db.closed)
		}
	}
}

func TestResultAddsUp(t *testing.T) {
	db := newTable()
	c := configure(t, db, "threadcount=3", "operationcount=3001", "readproportion=0.5", "updateproportion=0.3",
		"readmodifywriteproportion=0.2", "writeallfields=true")
	c.Load = true
	if _, err := Run(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	c.Load = false
	calls := uint64(0)
	db.fails = func(call string) error {
		if calls++; calls%100 == 0 {
			return client.ErrUncertain
		}
		return nil
	}
	var seen uint64
	var lines int
	c.Interval, db.delay = 20*time.Millisecond, 50*time.Microsecond
	c.Progress = func(p Progress) {
		ended, _ := p.Ended.Ended()
		seen += ended
		lines++
		if p.Operations != seen || p.Interval <= 0 {
			t.Errorf("progress says %d operations, the intervals have %d; %v", p.Operations, seen, p.Interval)
		}
	}
	var failures sync.Map
	c.Failed = func(op workloads.Op, err error) { failures.Store(op, err) }
	res, err := Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	if res.Operations != 3001 || res.Failed != calls/100 || !errors.Is(res.Err(), client.ErrUncertain) || lines == 0 {
		t.Errorf("%d operations, %d failed of %d calls: %v; %d lines", res.Operations, res.Failed, calls,
			res.Err(), lines)
	}
	var counted, failed, trips uint64
	for _, name := range []string{"READ", "UPDATE"} {
		call := res.Call(name)
		counted += call.Latency.Count
		failed += call.Failed.Count
		if want := map[string]float64{"READ": 1, "UPDATE": 4}[name]; call.FailedTrips != want {
			t.Errorf("%s: %v trips of a call that failed, want %v", name, call.FailedTrips, want)
		}
		trips += uint64(math.Round(call.Trips * float64(call.Latency.Count)))
		if _, ok := failures.Load(workloads.OpRead); !ok || call.Error == "" {
			t.Errorf("%s: failures were not told", name)
		}
		n := 0.0
		for _, b := range call.Latency.Buckets {
			n += b[2]
		}
		if uint64(n) != call.Latency.Count || call.Latency.Min < 50 || call.Latency.P50 > call.Latency.P99 {
			t.Errorf("%s: %+v", name, call.Latency)
		}
	}
	if total := res.Call("TOTAL"); counted != total.Latency.Count || counted+failed != calls {
		t.Errorf("%d counted and %d failed of %d calls, total %d", counted, failed, calls, total.Latency.Count)
	}
	if res.Counters.Trips < trips || res.Call("READ").Trips != 1 || res.Call("UPDATE").Trips != 4 {
		t.Errorf("%d trips, %+v", trips, res.Counters)
	}
}

func TestResultsFile(t *testing.T) {
	db := newTable()
	c := configure(t, db, "operationcount=100")
	c.Name, c.Load = "fusee", true
	res, err := Run(t.Context(), c)
	if err != nil {
		t.Fatal(err)
	}
	res.Properties = map[string]string{"recordcount": "1000"}
	name := filepath.Join(t.TempDir(), "results.json")
	for range 2 { // it replaces
		if err := res.WriteFile(name); err != nil {
			t.Fatal(err)
		}
	}
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	back, err := ReadResult(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	again, err := back.Encode()
	if err != nil || string(again) != string(text) {
		t.Errorf("written\n%s\nread\n%s\n%v", text, again, err)
	}
	for _, bad := range []string{"", "{}", `{"version":99}`, "[]"} {
		if _, err := ReadResult(strings.NewReader(bad)); err == nil {
			t.Errorf("no error for %q", bad)
		}
	}
	if b := back.Call("INSERT").Latency.Buckets; len(b) == 0 || strings.Count(string(text), "\n     [") != len(b) {
		t.Errorf("a line for each of %d buckets is not in\n%s", len(b), text)
	}
	if left, _ := filepath.Glob(name + ".*"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	if err := res.WriteFile(filepath.Join(name, "below")); err == nil {
		t.Error("wrote a file below a file")
	}
}

func TestInterruptKeepsTheResults(t *testing.T) {
	db := newTable()
	c := configure(t, db, "threadcount=4", "operationcount=1000000000")
	c.Load = true
	if _, err := Run(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	for _, target := range []float64{0, 40} { // at its pace a worker mostly sleeps
		ctx, cancel := context.WithCancel(t.Context())
		c.Load, c.Target, c.Interval = false, target, time.Millisecond
		c.Progress = func(p Progress) {
			if p.Operations > 0 {
				cancel()
			}
		}
		res, err := Run(ctx, c)
		cancel()
		if err != nil || !res.Interrupted || res.Operations == 0 || res.Failed != 0 {
			t.Errorf("target %v: %+v, %v", target, res, err)
		}
	}
}

func TestOpenFails(t *testing.T) {
	db := newTable()
	db.opens = func(worker int) error {
		if worker == 2 {
			return fmt.Errorf("client slots: %w", client.ErrFull)
		}
		return nil
	}
	c := configure(t, db, "threadcount=4", "operationcount=100")
	res, err := Run(t.Context(), c)
	if !errors.Is(err, client.ErrFull) || !strings.Contains(err.Error(), "worker 2: ") || res != nil {
		t.Errorf("%+v, %v", res, err)
	}
	if db.opened != db.closed {
		t.Errorf("%d opened, %d closed", db.opened, db.closed)
	}
}

func TestFailedLoadStops(t *testing.T) {
	db := newTable()
	db.fails = func(string) error {
		if len(db.rows) == 500 {
			return client.ErrFull
		}
		return nil
	}
	c := configure(t, db, "threadcount=4")
	c.Load = true
	res, err := Run(t.Context(), c)
	if err != nil || res.Failed == 0 || res.Failed > 4 || res.Operations > 504 ||
		!errors.Is(res.Err(), client.ErrFull) {
		t.Errorf("%d of %d failed: %v, %v", res.Failed, res.Operations, res.Err(), err)
	}
}

func TestTimeLimitAndPace(t *testing.T) {
	db := newTable()
	c := configure(t, db, "threadcount=4", "operationcount=0", "maxexecutiontime=0.2", "target=1000")
	c.Load, c.Target = true, 0
	if _, err := Run(t.Context(), c); err != nil {
		t.Fatal(err)
	}
	c.Load, c.Target = false, 1000
	res, err := Run(t.Context(), c)
	if err != nil || res.Operations > 200 || res.Operations == 0 {
		t.Errorf("%d operations in %v s: %v", res.Operations, res.Seconds, err)
	}
}

func TestMoreThreadsThanOperations(t *testing.T) {
	c := configure(t, newTable(), "threadcount=8", "operationcount=3", "readproportion=0", "updateproportion=0",
		"insertproportion=1")
	res, err := Run(t.Context(), c)
	if err != nil || res.Operations != 3 || res.Failed != 0 {
		t.Errorf("%+v %v", res, err)
	}
}

func TestConfigureMisuse(t *testing.T) {
	for _, c := range []struct{ prop, want string }{
		{"threadcount=0", "property threadcount=0: want a number from 1"},
		{"target=-1", "property target=-1"},
		{"maxexecutiontime=soon", "property maxexecutiontime=soon: want seconds"},
		{"seed=-1", "property seed=-1"},
		{"workload=nosuch", "unknown workload \"nosuch\""},
		{"batch.size=2", "batches are not supported"},
		{"measurementtype=raw", "only histogram is kept"},
		{"fieldlengthdistribution=histogram", "property fieldlengthhistogram: open hist.txt"},
		{"recordcount=x", "property recordcount=x"},
	} {
		name, value, _ := strings.Cut(c.prop, "=")
		p := properties.NewProperties()
		p.MustSet("recordcount", "10")
		p.MustSet(name, value)
		if _, err := Configure(p); !Misused(err) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", c.prop, err, c.want)
		}
	}
	c := configure(t, nil)
	if err := c.Bounded(); !Misused(err) {
		t.Errorf("a run without end: %v", err)
	}
}

func TestSeedIsNamed(t *testing.T) {
	p := properties.NewProperties()
	p.MustSet("recordcount", "10")
	c, err := Configure(p)
	if err != nil || p.GetString("seed", "") != fmt.Sprint(c.Seed) {
		t.Errorf("seed %d, property %q: %v", c.Seed, p.GetString("seed", ""), err)
	}
}

type nothing struct{ NoPool }

func (nothing) Open(int) (workloads.DB, error)                    { return nothing{}, nil }
func (nothing) Read([]byte, *workloads.Record) error              { return nil }
func (nothing) Update([]byte, *workloads.Record) error            { return nil }
func (nothing) Insert([]byte, *workloads.Record) error            { return nil }
func (nothing) Delete([]byte) error                               { return nil }
func (nothing) Scan([]byte, int, *workloads.Record, func()) error { return nil }
func (nothing) Counters() *rdma.Counters                          { return nil }
func (nothing) Close() error                                      { return nil }

// BenchmarkCeiling is the harness alone: what it could drive at most.
func BenchmarkCeiling(b *testing.B) {
	for _, threads := range []int{1, 8} {
		for _, mix := range []string{"a", "c"} {
			b.Run(fmt.Sprintf("%s-%d-threads", mix, threads), func(b *testing.B) {
				read := map[string]string{"a": "readproportion=0.5", "c": "readproportion=1"}[mix]
				update := map[string]string{"a": "updateproportion=0.5", "c": "updateproportion=0"}[mix]
				c := configure(b, nothing{}, read, update, "requestdistribution=zipfian", "fieldcount=10")
				c.Threads, c.Spec.OperationCount = threads, int64(b.N)
				b.ResetTimer()
				res, err := Run(b.Context(), c)
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(res.Throughput, "ops/s")
			})
		}
	}
}
