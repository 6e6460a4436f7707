// Package metrics exports what memory nodes, pools and clients count, in Prometheus's format.
package metrics

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	dto "github.com/prometheus/client_model/go"

	"github.com/farkv/farkv/ops"
	"github.com/farkv/farkv/workloads"
)

// Server serves what a process counts: /metrics in Prometheus's format, and /healthz. It is served
// until Close.
type Server struct {
	*prometheus.Registry
	healthy  func() error
	listener net.Listener
	server   *http.Server
	ended    chan struct{}

	mu     sync.RWMutex // held while something is collected
	closed bool
}

// Bounds on scrapes: how many at a time, how long each takes, and how large their requests are.
const (
	scrapesAtOnce = 4
	scrapeTime    = 5 * time.Second
	idleTime      = 10 * time.Second
	headerBytes   = 8 << 10
)

// Serve exports the collectors, and those of the Go runtime and the process, at HOST:PORT, or
// at a port of the loopback. It does not authenticate its clients: an address that is not of the
// loopback is refused with a workloads.UsageError, unless public allows others to read it. /healthz
// answers 200 if healthy returns nil, else 503 and the error.
func Serve(addr string, public bool, healthy func() error, all ...prometheus.Collector) (*Server, error) {
	at, err := listenAddress(addr, public)
	if err != nil {
		return nil, err
	}
	m := &Server{Registry: prometheus.NewPedanticRegistry(), healthy: healthy, ended: make(chan struct{})}
	all = append(all, ofBuild())
	all = append(all, collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	for _, c := range all {
		if err := m.Register(c); err != nil {
			return nil, fmt.Errorf("metrics: %w", err)
		}
	}
	if m.listener, err = net.ListenTCP("tcp", at); err != nil {
		return nil, fmt.Errorf("metrics at %s: %w (hint: choose another address)", addr, err)
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", promhttp.HandlerFor(m, promhttp.HandlerOpts{
		MaxRequestsInFlight: scrapesAtOnce, Timeout: scrapeTime,
	}))
	mux.HandleFunc("GET /healthz", m.health)
	open := newScrapers(m.listener)
	m.server = &http.Server{
		Handler: mux, ReadTimeout: scrapeTime, WriteTimeout: 2 * scrapeTime, IdleTimeout: idleTime,
		MaxHeaderBytes: headerBytes,
		ConnState:      open.note,
	}
	go func() {
		defer close(m.ended)
		_ = m.server.Serve(open) // Close ends it
	}()
	return m, nil
}

var errClosed = errors.New("the process is about to end")

// Gather implements prometheus.Gatherer.
func (m *Server) Gather() ([]*dto.MetricFamily, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if m.closed {
		return nil, errClosed
	}
	return m.Registry.Gather()
}

func (m *Server) health(w http.ResponseWriter, _ *http.Request) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	err := errClosed
	if !m.closed {
		err = m.healthy()
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, "ok")
}

// listenAddress resolves an address; a port alone is one of the loopback.
func listenAddress(addr string, public bool) (*net.TCPAddr, error) {
	if _, err := strconv.ParseUint(addr, 10, 16); err == nil {
		addr = net.JoinHostPort("127.0.0.1", addr)
	}
	at, err := net.ResolveTCPAddr("tcp", addr)
	if err != nil {
		return nil, workloads.Usagef("metrics at %q: want HOST:PORT, or a port of the loopback: %v", addr, err)
	}
	if !at.IP.IsLoopback() && !public {
		return nil, fmt.Errorf("%w: metrics at %s", errPublic, addr)
	}
	return at, nil
}

// errPublic is a misuse: each command line has another flag against it (Misuse).
var errPublic = errors.New("any program that reaches this machine could read them")

// Misuse says how a command line lets others read metrics, where that is what err is about.
func Misuse(err error, remedy string) error {
	if errors.Is(err, errPublic) {
		return workloads.Usagef("%v (hint: use an address of the loopback, such as 127.0.0.1:9100, or add %s)",
			err, remedy)
	}
	return err
}

// URL returns where the metrics are.
func (m *Server) URL() string { return "http://" + m.listener.Addr().String() + "/metrics" }

// Close ends it. What is collected just then has been collected when it returns, so that the pool
// may be closed; nothing else is.
func (m *Server) Close() error {
	err := m.server.Close()
	<-m.ended
	m.mu.Lock()
	defer m.mu.Unlock()
	m.closed = true
	return err
}

// ofBuild is a gauge that is always 1. Its labels describe the build.
func ofBuild() prometheus.Collector {
	b := ops.ThisBuild("")
	g := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "farkv_build_info",
		Help: "1, with labels that say what the program was built from and what it speaks.",
		ConstLabels: prometheus.Labels{"commit": b.Commit, "goversion": b.Go, "wire": strconv.Itoa(b.Wire),
			"control": strconv.Itoa(b.Control)},
	})
	g.Set(1)
	return g
}
