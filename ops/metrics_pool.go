package ops

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/workloads/drivers"
)

var (
	poolEpoch  = figure("farkv_pool_epoch", "Epoch of the pool's view.")
	poolBusy   = figure("farkv_pool_busy", "1 while a master mends the pool and clients only read, else 0.")
	poolNodes  = figure("farkv_pool_nodes", "Memory nodes of the view: those that serve, are down, or are gone for good.", "state")
	poolMaster = figure("farkv_pool_master_lease_seconds", "Time that is left of the master's tenure, unless it prolongs that; 0 when there is none.")
	keeperRole = figure("farkv_keeper_master", "1 while this process is the pool's master, else 0.")
	keeperDid  = figure("farkv_keeper_events_total", "What this process did as a candidate and as master.", "event")
)

// poolMetrics collects how one process sees its pool, and what it does to keep it.
type poolMetrics struct {
	f    rdma.Fabric
	kept *drivers.Kept
	fill *fillGauge
}

// PoolMetrics returns a collector of how a process sees an open pool, and of what it did to keep it, which may be nil.
func PoolMetrics(f rdma.Fabric, kept *drivers.Kept) prometheus.Collector {
	if kept == nil {
		kept = new(drivers.Kept)
	}
	return poolMetrics{f, kept, newFillGauge(f)}
}

// Describe implements prometheus.Collector.
func (poolMetrics) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{poolEpoch, poolBusy, poolNodes, poolMaster, keeperRole, keeperDid} {
		to <- d
	}
	describeDevice(to)
	describeFill(to)
}

// Collect implements prometheus.Collector.
func (m poolMetrics) Collect(to chan<- prometheus.Metric) {
	gauge := func(desc *prometheus.Desc, v float64, labels ...string) {
		to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, v, labels...)
	}
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
		to <- prometheus.MustNewConstMetric(keeperDid, prometheus.CounterValue, float64(n), what.String())
	}
	collectDevice(m.f, to)
	m.fill.collect(to)
}
