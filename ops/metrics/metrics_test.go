package metrics

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"

	"github.com/farkv/farkv/client"
	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/cluster"
	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/node/rdma/control"
	"github.com/farkv/farkv/node/rdma/ibverbs"
	"github.com/farkv/farkv/node/version"
	"github.com/farkv/farkv/ops"
	"github.com/farkv/farkv/ops/metrics/metricstest"
	"github.com/farkv/farkv/workloads"
	"github.com/farkv/farkv/workloads/drivers"
	"github.com/farkv/farkv/workloads/runner"
)

// page is where a page of m's is.
func (m *Server) page(name string) string { return strings.TrimSuffix(m.URL(), "/metrics") + name }

// scrape serves collectors, and wants lines of what they tell and no complaint of Prometheus's
// linter.
func scrape(t *testing.T, want []string, all ...prometheus.Collector) {
	t.Helper()
	m, err := Serve("127.0.0.1:0", false, func() error { return nil }, all...)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	status, text := metricstest.Fetch(t, m.page("/metrics"))
	if status != http.StatusOK {
		t.Fatalf("%d: %s", status, text)
	}
	for _, line := range want {
		if !strings.Contains("\n"+text, "\n"+line+"\n") {
			t.Errorf("no line %q in\n%s", line, metricstest.FarkvLines(text))
		}
	}
	for _, own := range []string{"go_goroutines ", "process_cpu_seconds_total "} {
		if !strings.Contains(text, "\n"+own) {
			t.Errorf("no %s", own)
		}
	}
	problems, err := testutil.GatherAndLint(m)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		if strings.HasPrefix(p.Metric, "farkv_") {
			t.Errorf("%s: %s", p.Metric, p.Text)
		}
	}
}

func TestNodeMetrics(t *testing.T) {
	defer goleak.VerifyNone(t)
	i := fabrics.NodeInfo{Memory: 1 << 20, Epoch: 5, Processes: 2, Stats: fabrics.NodeStats{
		Reads: 7, Writes: 8, Atomics: 9, Calls: 1, Sends: 4, Stale: 2, Breaches: 3, BytesRead: 100, BytesWrote: 200,
		Frames: 12, Flushes: 6,
		Connections: 3, Refused: 19, RefusedRoom: 4, RefusedSilent: 5, RefusedVersion: 6, AuthFailures: 11, Slow: 13,
	}, Commit: "abc+dirty"}
	info := func() fabrics.NodeInfo { return i }
	scrape(t, []string{
		`farkv_node_verbs_total{verb="read"} 7`, `farkv_node_verbs_total{verb="write"} 8`,
		`farkv_node_verbs_total{verb="atomic"} 9`,
		`farkv_node_verbs_total{verb="call"} 1`, `farkv_node_verbs_total{verb="send"} 4`,
		`farkv_node_errors_total{kind="stale"} 2`, `farkv_node_errors_total{kind="access"} 0`,
		`farkv_node_errors_total{kind="protocol"} 3`, `farkv_node_bytes_total{direction="read"} 100`,
		`farkv_node_bytes_total{direction="written"} 200`, `farkv_node_connections 3`,
		`farkv_node_connections_refused_total{reason="room"} 4`,
		`farkv_node_connections_refused_total{reason="silent"} 5`,
		`farkv_node_connections_refused_total{reason="version"} 6`,
		`farkv_node_connections_refused_total{reason="rules"} 4`, `farkv_node_auth_failures_total 11`,
		`farkv_node_connections_slow_total 13`,
		fmt.Sprintf(`farkv_node_build_info{commit="abc+dirty",control="%d",wire="%d"} 1`, version.Control,
			version.Wire),

		`farkv_node_memory_bytes 1.048576e+06`, `farkv_node_epoch 5`, `farkv_node_frames_total 12`,
		`farkv_node_flushes_total 6`,
		`farkv_node_client_processes 2`, `farkv_node_rdma_device 0`, `farkv_node_in_pool 0`, `farkv_node_expelled 0`,
	}, OfNode(info))
	i.Fabric = "rdma"
	scrape(t, []string{`farkv_node_rdma_device 1`}, OfNode(info))
	i.Pool, i.Lease = new(control.Record), 250*time.Millisecond
	scrape(t, []string{`farkv_node_in_pool 1`, `farkv_node_lease_seconds 0.25`}, OfNode(info))
	i.Lease, i.Expelled = 0, true
	scrape(t, []string{`farkv_node_lease_seconds 0`, `farkv_node_expelled 1`}, OfNode(info))
}

// answering is a database with reads that return the given errors in turn.
type answering struct {
	runner.NoPool
	errs  []error
	count rdma.Counters
}

func (a *answering) Open(int) (workloads.DB, error) {
	if len(a.errs) == 0 {
		return nil, client.ErrFull
	}
	return a, nil
}

func (a *answering) Read([]byte, *workloads.Record) error {
	a.count.Trips += 2
	a.count.Reads += 3
	a.count.BytesRead += 100
	err := a.errs[0]
	a.errs = a.errs[1:]
	return err
}

func (a *answering) Update([]byte, *workloads.Record) error {
	a.count.Atomics++
	a.count.Writes += 2
	a.count.BytesWrote += 50
	a.count.Calls++
	return nil
}
func (a *answering) Insert([]byte, *workloads.Record) error { return nil }
func (a *answering) Delete([]byte) error                    { return client.ErrNotFound }
func (a *answering) Scan([]byte, int, *workloads.Record, func()) error {
	return workloads.ErrNoScan
}
func (a *answering) Counters() *rdma.Counters { return &a.count }
func (a *answering) Close() error             { return nil }

func TestClientMetrics(t *testing.T) {
	defer goleak.VerifyNone(t)
	m := NewClient()
	if _, err := m.Observe(&answering{}).Open(0); !errors.Is(err, client.ErrFull) {
		t.Errorf("open: %v", err)
	}
	a := &answering{count: rdma.Counters{Trips: 1000, Reads: 1000}} // of before
	a.errs = []error{nil, nil, client.ErrNotFound, fmt.Errorf("x: %w", client.ErrUncertain), rdma.ErrNodeDown,
		errors.New("other")}
	reads := len(a.errs)
	db, err := m.Observe(a).Open(0)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range a.errs {
		if err := db.Read(nil, nil); err != want {
			t.Errorf("read %d: %v, want %v", i, err, want)
		}
	}
	if err := errors.Join(db.Update(nil, nil), db.Insert(nil, nil)); err != nil {
		t.Error(err)
	}
	if db.Delete(nil) == nil || db.Scan(nil, 0, nil, nil) == nil {
		t.Error("errors are lost")
	}
	scrape(t, []string{
		`farkv_client_operations_total{operation="read",result="ok"} 2`,
		`farkv_client_operations_total{operation="read",result="not_found"} 1`,
		`farkv_client_operations_total{operation="read",result="uncertain"} 1`,
		`farkv_client_operations_total{operation="read",result="node_down"} 1`,
		`farkv_client_operations_total{operation="read",result="error"} 1`,
		`farkv_client_operations_total{operation="delete",result="not_found"} 1`,
		`farkv_client_operations_total{operation="scan",result="error"} 1`,
		`farkv_client_operation_seconds_count{operation="read"} 6`,
		`farkv_client_operation_seconds_count{operation="insert"} 1`,
		fmt.Sprintf(`farkv_client_trips_total{operation="read"} %d`, 2*reads),
		`farkv_client_trips_total{operation="update"} 0`,
		fmt.Sprintf(`farkv_client_verbs_total{verb="read"} %d`, 3*reads), `farkv_client_verbs_total{verb="write"} 2`,
		`farkv_client_verbs_total{verb="atomic"} 1`, `farkv_client_verbs_total{verb="call"} 1`,
		fmt.Sprintf(`farkv_client_bytes_total{direction="read"} %d`, 100*reads),
		`farkv_client_bytes_total{direction="written"} 50`,
	}, m)
}

// uncounted is a database that does not count verbs, as a foreign one may be.
type uncounted struct{ answering }

func (u *uncounted) Open(int) (workloads.DB, error) { return u, nil }
func (u *uncounted) Counters() *rdma.Counters       { return nil }

var _ runner.Database = (*uncounted)(nil)

func TestClientMetricsWithoutCounters(t *testing.T) {
	m := NewClient()
	db, err := m.Observe(&uncounted{}).Open(0)
	if err != nil {
		t.Fatal(err)
	}
	if err := db.Update(nil, nil); err != nil {
		t.Fatal(err)
	}
	scrape(t, []string{`farkv_client_operations_total{operation="update",result="ok"} 1`,
		`farkv_client_verbs_total{verb="write"} 0`}, m)
}

func TestPoolMetrics(t *testing.T) {
	t.Setenv("FARKV_SHM_DIR", t.TempDir())
	defer goleak.VerifyNone(t)
	if _, err := ops.Up("shm:metrics", "fusee", stores.Params{Records: 100, Nodes: 3}); err != nil {
		t.Fatal(err)
	}
	p, err := stores.Open("shm:metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	user, err := p.Fabric.Open("user")
	if err != nil {
		t.Fatal(err)
	}
	defer user.Close()
	kept := new(drivers.Kept)
	c := OfPool(p.Fabric, kept)
	scrape(t, []string{
		`farkv_pool_epoch 0`, `farkv_pool_busy 0`, `farkv_pool_nodes{state="up"} 3`, `farkv_pool_nodes{state="down"} 0`,
		`farkv_pool_master_lease_seconds 0`, `farkv_keeper_master 0`, `farkv_keeper_events_total{event="elected"} 0`,
		`farkv_pool_clients{state="live"} 1`, `farkv_pool_clients{state="dead"} 0`,
		`farkv_pool_full_ratio{of="index slots"} 0`, `farkv_pool_full_ratio{of="blocks handed out"} 0`,
	}, c)
	if err := p.Fabric.(rdma.NodeKiller).KillNode(1); err != nil {
		t.Fatal(err)
	}
	kept.Note(cluster.Event{What: cluster.Elected})
	kept.Note(cluster.Event{What: cluster.Mended})
	scrape(t, []string{
		`farkv_pool_nodes{state="up"} 2`, `farkv_pool_nodes{state="down"} 1`, `farkv_keeper_master 1`,
		`farkv_keeper_events_total{event="elected"} 1`, `farkv_keeper_events_total{event="mended"} 1`,
		`farkv_keeper_events_total{event="failed"} 0`,
	}, c)
	kept.Note(cluster.Event{What: cluster.Lost})
	scrape(t, []string{`farkv_keeper_master 0`, `farkv_keeper_events_total{event="lost"} 1`},
		OfPool(p.Fabric, kept))
	scrape(t, []string{`farkv_keeper_master 0`}, OfPool(p.Fabric, nil))
}

func TestRDMAMetrics(t *testing.T) {
	t.Setenv("FARKV_SHM_DIR", t.TempDir())
	defer goleak.VerifyNone(t)
	f, err := fabrics.Create("mem:", fabrics.Geometry{Nodes: 1, Memory: 1 << 20, Clients: 4}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	s := ibverbs.Stats{Posts: 1, Polls: 2, Waits: 3, Requests: 4, Completions: 5, Connects: 6, Guesses: 7}
	scrape(t, []string{
		`farkv_rdma_library_calls_total{call="post"} 1`, `farkv_rdma_library_calls_total{call="poll"} 2`,
		`farkv_rdma_sleeps_total 3`,
		`farkv_rdma_work_requests_total 4`, `farkv_rdma_completions_total 5`, `farkv_rdma_queue_pairs_total 6`,
		`farkv_rdma_masked_retries_total 7`, `farkv_pool_nodes{state="up"} 1`,
	}, OfPool(counted{f, s}, nil))
}

// counted is a fabric with a device that did what the Stats say.
type counted struct {
	rdma.Fabric
	stats ibverbs.Stats
}

func (c counted) Stats() ibverbs.Stats { return c.stats }
func (c counted) Port() (string, int)  { return "none", 1 }

func TestHealth(t *testing.T) {
	defer goleak.VerifyNone(t)
	var ill error
	m, err := Serve("0", false, func() error { return ill }) // a port of the loopback
	if err != nil {
		t.Fatal(err)
	}
	if status, text := metricstest.Fetch(t, m.page("/healthz")); status != http.StatusOK || text != "ok\n" {
		t.Errorf("%d, %q", status, text)
	}
	ill = errors.New("the lease ran out")
	if status, text := metricstest.Fetch(t, m.page("/healthz")); status != http.StatusServiceUnavailable ||
		!strings.Contains(text, "lease ran out") {
		t.Errorf("%d, %q", status, text)
	}
	if status, _ := metricstest.Fetch(t, m.page("/")); status != http.StatusNotFound {
		t.Errorf("/: %d", status)
	}
	if err := m.Close(); err != nil {
		t.Error(err)
	}
	if err := m.Close(); err != nil {
		t.Errorf("closed twice: %v", err)
	}
	if _, err := m.Gather(); err == nil {
		t.Error("it collects when it is closed")
	}
}

func TestMetricsAddresses(t *testing.T) {
	defer goleak.VerifyNone(t)
	well := func() error { return nil }
	for _, addr := range []string{"0.0.0.0:0", ":0", "[::]:0", "192.0.2.1:9170"} {
		_, err := Serve(addr, false, well)
		if err = Misuse(err, "--public"); !runner.Misused(err) ||
			!strings.Contains(err.Error(), "add --public") {
			t.Errorf("%s: %v", addr, err)
		}
	}
	for _, addr := range []string{"here", "127.0.0.1", "127.0.0.1:many", "127.0.0.1:70000", "70000"} {
		if _, err := Serve(addr, true, well); !runner.Misused(Misuse(err, "")) {
			t.Errorf("%s: %v", addr, err)
		}
	}
	m, err := Serve("0.0.0.0:0", true, well)
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if _, err := Serve(m.listener.Addr().String(), true, well); err == nil || runner.Misused(err) {
		t.Errorf("a port in use: %v", err)
	}
}

// slow is a collector that is in the midst of it for a while.
type slow struct{ begun, end chan struct{} }

func (slow) Describe(chan<- *prometheus.Desc) {}
func (s slow) Collect(chan<- prometheus.Metric) {
	close(s.begun)
	<-s.end
}

// What is being collected may use the pool until Close returns.
func TestMetricsCloseWaits(t *testing.T) {
	defer goleak.VerifyNone(t)
	s := slow{make(chan struct{}), make(chan struct{})}
	m, err := Serve("127.0.0.1:0", false, func() error { return nil }, s)
	if err != nil {
		t.Fatal(err)
	}
	gathered, closed := make(chan error), make(chan error)
	go func() {
		_, err := m.Gather()
		gathered <- err
	}()
	<-s.begun
	go func() { closed <- m.Close() }()
	<-m.ended // it serves no more, and waits
	select {
	case <-closed:
		t.Error("it did not wait")
	case <-time.After(10 * time.Millisecond):
	}
	close(s.end)
	if err := errors.Join(<-gathered, <-closed); err != nil {
		t.Error(err)
	}
}

func TestBuildMetrics(t *testing.T) {
	m, err := Serve("127.0.0.1:0", false, func() error { return nil })
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	families, err := m.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "farkv_build_info" {
			continue
		}
		labels := map[string]string{}
		for _, l := range f.Metric[0].Label {
			labels[l.GetName()] = l.GetValue()
		}
		known := labels["commit"] == version.Commit() && labels["wire"] != "" && labels["control"] != ""
		if f.Metric[0].Gauge.GetValue() != 1 || !known {
			t.Errorf("%v", f)
		}
		return
	}
	t.Error("no farkv_build_info")
}
