package main

import (
	"fmt"
	"io"

	"github.com/magiconair/properties"

	"github.com/farkv/farkv/ops/metrics"
	"github.com/farkv/farkv/workloads"
	"github.com/farkv/farkv/workloads/drivers"
	"github.com/farkv/farkv/workloads/runner"
)

// exporter serves what the clients of this process do; nil serves nothing.
type exporter struct {
	*metrics.Server
	clients *metrics.Client
}

// serveMetrics serves them where the properties ask for it.
func serveMetrics(p *properties.Properties, stderr io.Writer) (*exporter, error) {
	addr := p.GetString(drivers.MetricsAddress, "")
	public, err := p.GetString(drivers.MetricsPublic, "false"), error(nil)
	switch {
	case public != "true" && public != "false":
		return nil, workloads.Usagef("property %s=%s: want true or false", drivers.MetricsPublic, public)
	case addr == "":
		return nil, nil
	}
	m := &exporter{clients: metrics.NewClient()}
	m.Server, err = metrics.Serve(addr, public == "true", func() error { return nil }, m.clients)
	if err != nil {
		return nil, metrics.Misuse(err, drivers.MetricsPublic+"=true")
	}
	fmt.Fprintf(stderr, "go-ycsb: metrics at %s\n", m.URL())
	return m, nil
}

// observe lets the workers of a database report what they do, and its pool, if it is on one, how it
// is.
func (m *exporter) observe(db drivers.Database) (runner.Database, error) {
	if m == nil {
		return db, nil
	}
	if f, kept, ok := drivers.Inside(db); ok {
		if err := m.Register(metrics.OfPool(f, kept)); err != nil {
			return nil, fmt.Errorf("metrics: %w", err)
		}
	}
	return m.clients.Observe(db), nil
}

// stop ends it; more often than once does no harm.
func (m *exporter) stop() {
	if m != nil {
		_ = m.Close() // nothing is lost by it
	}
}
