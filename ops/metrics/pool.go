package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/ops"
	"github.com/farkv/farkv/workloads/drivers"
)

var (
	poolFigures figures // with those of its device and of how full it is

	poolEpoch = poolFigures.figure("farkv_pool_epoch", "Epoch of the pool's view.")
	poolBusy  = poolFigures.figure("farkv_pool_busy", "1 while a master mends the pool and clients only read, else 0.")
	poolNodes = poolFigures.figure("farkv_pool_nodes",
		"Memory nodes of the view: those that serve, are down, or are gone for good.", "state")
	poolMaster = poolFigures.figure("farkv_pool_master_lease_seconds",
		"Time that is left of the master's tenure, unless it prolongs that; 0 when there is none.")
	keeperRole = poolFigures.figure("farkv_keeper_master", "1 while this process is the pool's master, else 0.")
	keeperDid  = poolFigures.figure("farkv_keeper_events_total", "What this process did as a candidate and as master.",
		"event")
)

// ofPool collects how one process sees its pool, and what it does to keep it.
type ofPool struct {
	f    rdma.Fabric
	kept *drivers.Kept
	fill *fillGauge
}

// OfPool returns a collector of how a process sees an open pool, and of what it did to keep
// it, which may be nil.
func OfPool(f rdma.Fabric, kept *drivers.Kept) prometheus.Collector {
	if kept == nil {
		kept = new(drivers.Kept)
	}
	return ofPool{f, kept, newFillGauge(f)}
}

// Describe implements prometheus.Collector.
func (ofPool) Describe(to chan<- *prometheus.Desc) { poolFigures.describe(to) }

// Collect implements prometheus.Collector.
func (m ofPool) Collect(to chan<- prometheus.Metric) {
	gauge := sink(to).gauge
	nodes, view := ops.NodesOf(m.f)
	gauge(poolEpoch, float64(view.Epoch))
	gauge(poolBusy, oneIf(view.Busy))
	var up, down, gone float64
	for _, n := range nodes {
		switch {
		case n.Gone:
			gone++
		case n.Up:
			up++
		default:
			down++
		}
	}
	gauge(poolNodes, up, "up")
	gauge(poolNodes, down, "down")
	gauge(poolNodes, gone, "gone")
	left := 0.0
	if master := ops.MasterOf(m.f); master != nil {
		left = max(master.Left, 0)
	}
	gauge(poolMaster, left)
	gauge(keeperRole, oneIf(m.kept.Leads()))
	for what, n := range m.kept.Counts {
		sink(to).counter(keeperDid, n, what.String())
	}
	collectDevice(m.f, sink(to))
	m.fill.collect(sink(to))
}
