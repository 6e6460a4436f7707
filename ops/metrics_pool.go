package ops

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/workloads/drivers"
)

var (
	ofPool figures // with those of its device and of how full it is

	poolEpoch = ofPool.figure("farkv_pool_epoch", "Epoch of the pool's view.")
	poolBusy  = ofPool.figure("farkv_pool_busy", "1 while a master mends the pool and clients only read, else 0.")
	poolNodes = ofPool.figure("farkv_pool_nodes",
		"Memory nodes of the view: those that serve, are down, or are gone for good.", "state")
	poolMaster = ofPool.figure("farkv_pool_master_lease_seconds",
		"Time that is left of the master's tenure, unless it prolongs that; 0 when there is none.")
	keeperRole = ofPool.figure("farkv_keeper_master", "1 while this process is the pool's master, else 0.")
	keeperDid  = ofPool.figure("farkv_keeper_events_total", "What this process did as a candidate and as master.",
		"event")
)

// poolMetrics collects how one process sees its pool, and what it does to keep it.
type poolMetrics struct {
	f    rdma.Fabric
	kept *drivers.Kept
	fill *fillGauge
}

// PoolMetrics returns a collector of how a process sees an open pool, and of what it did to keep
// it, which may be nil.
func PoolMetrics(f rdma.Fabric, kept *drivers.Kept) prometheus.Collector {
	if kept == nil {
		kept = new(drivers.Kept)
	}
	return poolMetrics{f, kept, newFillGauge(f)}
}

// Describe implements prometheus.Collector.
func (poolMetrics) Describe(to chan<- *prometheus.Desc) { ofPool.describe(to) }

// Collect implements prometheus.Collector.
func (m poolMetrics) Collect(to chan<- prometheus.Metric) {
	gauge := sink(to).gauge
	nodes, view := nodesOf(m.f)
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
	if master := masterOf(m.f); master != nil {
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
