package metrics

import (
	"errors"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/telemetry"
	"github.com/farkv/farkv/workloads"
	"github.com/farkv/farkv/workloads/runner"
)

// Client collects what the workers of a database do: operations by kind and result, their
// latencies, trips and verbs. It is safe for concurrent use.
type Client struct {
	operations, trips, verbs, bytes *prometheus.CounterVec
	seconds                         *prometheus.HistogramVec
}

// NewClient returns a collector to which nothing reports yet; see Observe.
func NewClient() *Client {
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: name, Help: help}, labels)
	}
	return &Client{
		operations: counter("farkv_client_operations_total", "Operations that ended, by what they answered.",
			"operation", "result"),
		trips: counter("farkv_client_trips_total", "Round trips on the critical path of operations.", "operation"),
		verbs: counter("farkv_client_verbs_total", "Verbs posted; a call is two-sided.", "verb"),
		bytes: counter("farkv_client_bytes_total", "Bytes that verbs read and wrote, requests and headers apart.",
			"direction"),
		seconds: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "farkv_client_operation_seconds", Help: "Time of an operation, however it ended.",
			Buckets: prometheus.ExponentialBuckets(1e-6, 2, 23), // 1 µs to 4 s: operations are bounded by 2 s
		}, []string{"operation"}),
	}
}

func (m *Client) parts() []prometheus.Collector {
	return []prometheus.Collector{m.operations, m.trips, m.verbs, m.bytes, m.seconds}
}

// Describe implements prometheus.Collector.
func (m *Client) Describe(to chan<- *prometheus.Desc) {
	for _, p := range m.parts() {
		p.Describe(to)
	}
}

// Collect implements prometheus.Collector.
func (m *Client) Collect(to chan<- prometheus.Metric) {
	for _, p := range m.parts() {
		p.Collect(to)
	}
}

// Observe returns the database with workers that report what they do.
func (m *Client) Observe(db runner.Database) runner.Database { return observed{db, m} }

type observed struct {
	runner.Database
	m *Client
}

// Open implements runner.Database.
func (o observed) Open(worker int) (workloads.DB, error) {
	db, err := o.Database.Open(worker)
	if err != nil {
		return nil, err
	}
	s := &session{DB: db, m: o.m, count: db.Counters()}
	if s.count == nil {
		s.count = new(rdma.Counters) // nothing counts
	}
	s.before = *s.count
	for k, kind := range kinds {
		s.seconds[k], s.trips[k] = o.m.seconds.WithLabelValues(kind), o.m.trips.WithLabelValues(kind)
		s.ok[k] = o.m.operations.WithLabelValues(kind, "ok")
	}
	for i, verb := range []string{"read", "write", "atomic", "call"} {
		s.verbs[i] = o.m.verbs.WithLabelValues(verb)
	}
	for i, direction := range []string{"read", "written"} {
		s.bytes[i] = o.m.bytes.WithLabelValues(direction)
	}
	return s, nil
}

// The kinds of operations.
const (
	read = iota
	update
	insert
	remove
	scan
)

var kinds = [...]string{"read", "update", "insert", "delete", "scan"}

// session is one worker's connection. It is not safe for concurrent use, as the worker's own
// counters are not: what they count goes into the metrics when an operation is over.
type session struct {
	workloads.DB
	m      *Client
	count  *rdma.Counters
	before rdma.Counters

	ok, trips    [len(kinds)]prometheus.Counter
	seconds      [len(kinds)]prometheus.Observer
	verbs, bytes [4]prometheus.Counter
}

// Collect implements workloads.Collector for connections that do.
func (s *session) Collect(p *telemetry.Process) { workloads.Collect(s.DB, p) }

// Read implements workloads.DB.
func (s *session) Read(key []byte, r *workloads.Record) error {
	return s.note(read, func() error { return s.DB.Read(key, r) })
}

// Update implements workloads.DB.
func (s *session) Update(key []byte, r *workloads.Record) error {
	return s.note(update, func() error { return s.DB.Update(key, r) })
}

// Insert implements workloads.DB.
func (s *session) Insert(key []byte, r *workloads.Record) error {
	return s.note(insert, func() error { return s.DB.Insert(key, r) })
}

// Delete implements workloads.DB.
func (s *session) Delete(key []byte) error {
	return s.note(remove, func() error { return s.DB.Delete(key) })
}

// Scan implements workloads.DB.
func (s *session) Scan(start []byte, n int, r *workloads.Record, yield func()) error {
	return s.note(scan, func() error { return s.DB.Scan(start, n, r, yield) })
}

// note does an operation, reports it and passes on how it ended.
func (s *session) note(kind int, do func() error) error {
	began := time.Now()
	err := do()
	s.seconds[kind].Observe(time.Since(began).Seconds())
	if err == nil {
		s.ok[kind].Inc()
	} else {
		s.m.operations.WithLabelValues(kinds[kind], resultOf(err)).Inc()
	}
	did := s.count.Sub(s.before)
	s.before = *s.count
	add(s.trips[kind], did.Trips)
	for i, n := range [...]uint64{did.Reads, did.Writes, did.Atomics, did.Calls} {
		add(s.verbs[i], n)
	}
	add(s.bytes[0], did.BytesRead)
	add(s.bytes[1], did.BytesWrote)
	return err
}

func add(c prometheus.Counter, n uint64) {
	if n > 0 {
		c.Add(float64(n))
	}
}

// resultOf names how an operation failed; there are few such names, whatever errors say.
func resultOf(err error) string {
	for _, r := range []struct {
		err  error
		name string
	}{
		{client.ErrUncertain, "uncertain"}, {client.ErrNotFound, "not_found"}, {client.ErrExists, "exists"},
		{client.ErrFull, "full"}, {client.ErrTooLarge, "too_large"}, {client.ErrDamaged, "damaged"},
		{rdma.ErrNodeDown, "node_down"}, {rdma.ErrTimeout, "timeout"}, {rdma.ErrAccess, "refused"},
	} {
		if errors.Is(err, r.err) {
			return r.name
		}
	}
	return "error"
}
