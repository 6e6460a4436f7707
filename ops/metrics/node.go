package metrics

import (
	"strconv"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/node/version"
	"github.com/farkv/farkv/ops"
)

// figures are the metrics of a collector.
type figures []*prometheus.Desc

// figure describes a further one.
func (f *figures) figure(name, help string, labels ...string) *prometheus.Desc {
	*f = append(*f, prometheus.NewDesc(name, help, labels, nil))
	return (*f)[len(*f)-1]
}

func (f figures) describe(to chan<- *prometheus.Desc) {
	for _, d := range f {
		to <- d
	}
}

// A sink takes the values of metrics.
type sink chan<- prometheus.Metric

func (to sink) gauge(desc *prometheus.Desc, v float64, labels ...string) {
	to <- prometheus.MustNewConstMetric(desc, prometheus.GaugeValue, v, labels...)
}

func (to sink) counter(desc *prometheus.Desc, n uint64, labels ...string) {
	to <- prometheus.MustNewConstMetric(desc, prometheus.CounterValue, float64(n), labels...)
}

var (
	nodeFigures figures

	nodeVerbs = nodeFigures.figure("farkv_node_verbs_total", "Verbs executed, but for those that an RDMA device did.",
		"verb")
	nodeErrors = nodeFigures.figure("farkv_node_errors_total",
		"Verbs that were refused, and connections that broke the protocol.", "kind")
	nodeBytes = nodeFigures.figure("farkv_node_bytes_total", "Bytes of memory that verbs read and wrote.",
		"direction")
	nodeFrames  = nodeFigures.figure("farkv_node_frames_total", "Batches of verbs that were answered.")
	nodeFlushes = nodeFigures.figure("farkv_node_flushes_total",
		"Writes to connections; frames by flushes tell how well answers coalesce.")
	nodeConnections = nodeFigures.figure("farkv_node_connections", "Connections there are.")
	nodeRefused     = nodeFigures.figure("farkv_node_connections_refused_total",
		"Connections that were not let in, but for failed authentication.", "reason")
	nodeAuth = nodeFigures.figure("farkv_node_auth_failures_total",
		"Connections with a wrong token, or between ends that TLS does not let trust each other.")
	nodeSlow = nodeFigures.figure("farkv_node_connections_slow_total",
		"Connections that were ended because their clients took no answers.")
	nodeBuild = nodeFigures.figure("farkv_node_build_info",
		"1, with what the program was built from, and the versions that it speaks.", "commit", "wire", "control")
	nodeProcesses = nodeFigures.figure("farkv_node_client_processes", "Processes of clients and readers.")
	nodeMemory    = nodeFigures.figure("farkv_node_memory_bytes", "Memory that the node offers.")
	nodeEpoch     = nodeFigures.figure("farkv_node_epoch", "Epoch of the pool's view that was fenced last.")
	nodeDevice    = nodeFigures.figure("farkv_node_rdma_device",
		"1 when an RDMA device executes the verbs of rdma pools past the node, else 0.")
	nodePool     = nodeFigures.figure("farkv_node_in_pool", "1 when the node belongs to a pool, else 0.")
	nodeExpelled = nodeFigures.figure("farkv_node_expelled",
		"1 when the others go on without the node, which serves no verbs, else 0.")
	nodeLease = nodeFigures.figure("farkv_node_lease_seconds",
		"Time for which the node may execute verbs, unless it prolongs that.")
)

// ofNode collects what a node tells.
type ofNode func() fabrics.NodeInfo

// OfNode returns a collector of what a memory node tells of itself.
func OfNode(info func() fabrics.NodeInfo) prometheus.Collector { return ofNode(info) }

// Describe implements prometheus.Collector.
func (ofNode) Describe(to chan<- *prometheus.Desc) { nodeFigures.describe(to) }

// Collect implements prometheus.Collector.
func (m ofNode) Collect(to chan<- prometheus.Metric) {
	i := m()
	c := &i.Stats
	for _, x := range []struct {
		desc   *prometheus.Desc
		n      uint64
		labels []string
	}{
		{nodeVerbs, c.Reads, []string{"read"}}, {nodeVerbs, c.Writes, []string{"write"}},
		{nodeVerbs, c.Atomics, []string{"atomic"}},
		{nodeVerbs, c.Calls, []string{"call"}}, {nodeVerbs, c.Sends, []string{"send"}},
		{nodeErrors, c.Access, []string{"access"}}, {nodeErrors, c.Revoked, []string{"revoked"}},
		{nodeErrors, c.Stale, []string{"stale"}}, {nodeErrors, c.Failed, []string{"failed"}},
		{nodeErrors, c.Breaches, []string{"protocol"}},
		{nodeBytes, c.BytesRead, []string{"read"}}, {nodeBytes, c.BytesWrote, []string{"written"}},
		{nodeFrames, c.Frames, nil}, {nodeFlushes, c.Flushes, nil},
		{nodeRefused, c.RefusedRoom, []string{"room"}}, {nodeRefused, c.RefusedSilent, []string{"silent"}},
		{nodeRefused, c.RefusedVersion, []string{"version"}},
		{nodeRefused, c.Refused - c.RefusedRoom - c.RefusedSilent - c.RefusedVersion, []string{"rules"}},
		{nodeAuth, c.AuthFailures, nil}, {nodeSlow, c.Slow, nil},
	} {
		sink(to).counter(x.desc, x.n, x.labels...)
	}
	gauge := sink(to).gauge
	gauge(nodeBuild, 1, i.Commit, strconv.Itoa(version.Wire), strconv.Itoa(version.Control))
	gauge(nodeConnections, float64(c.Connections))
	gauge(nodeProcesses, float64(i.Processes))
	gauge(nodeMemory, float64(i.Memory))
	gauge(nodeEpoch, float64(i.Epoch))
	gauge(nodeDevice, oneIf(fabrics.NeedsDevice(i.Fabric)))
	gauge(nodePool, oneIf(i.Pool != nil))
	gauge(nodeExpelled, oneIf(i.Expelled))
	collectPMem(i.PMem, to)
	if left, needs := ops.LeaseOf(&i); needs {
		gauge(nodeLease, max(left, 0).Seconds())
	}
}

func oneIf(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
