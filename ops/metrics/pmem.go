package metrics

import (
	"github.com/prometheus/client_golang/prometheus"

	"github.com/farkv/farkv/node/telemetry"
)

var (
	nodeMedia = nodeFigures.figure("farkv_node_pmem_media_total",
		"Reads and writes of 64 bytes of a module's media since it was powered on.", "dimm", "verb")
	nodeRequests = nodeFigures.figure("farkv_node_pmem_requests_total",
		"Requests of 64 bytes that a module served since it was powered on.", "dimm", "verb")
	nodeNoPMem = nodeFigures.figure("farkv_node_pmem_unknown",
		"1 when the counters of persistent memory cannot be read.", "reason")
)

// collectPMem collects what a node tells of its persistent memory.
func collectPMem(p *telemetry.PMem, to chan<- prometheus.Metric) {
	if p == nil {
		return
	}
	if p.Problem != "" {
		sink(to).gauge(nodeNoPMem, 1, p.Problem)
	}
	for _, d := range p.DIMMs {
		for _, x := range []struct {
			desc *prometheus.Desc
			n    uint64
			verb string
		}{{nodeMedia, d.MediaReads, "read"}, {nodeMedia, d.MediaWrites, "write"},
			{nodeRequests, d.ReadRequests, "read"}, {nodeRequests, d.WriteRequests, "write"}} {
			sink(to).counter(x.desc, x.n, d.ID, x.verb)
		}
	}
}
