package ops

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/farkv/farkv/node/pmem"
	"github.com/farkv/farkv/node/telemetry"
	"github.com/farkv/farkv/ops/format"
	"github.com/farkv/farkv/ops/table"
)

// pmemEvery is how often a memory node reads the counters of its machine's persistent memory, which
// starts a process.
const pmemEvery = 5 * time.Second

// modelPMem returns modules that a model has under the memory of a node, those of Rowan's servers
// (6.1), and what they counted.
func modelPMem() (*pmem.Device, func() *telemetry.PMem) {
	d := pmem.NewDevice(pmem.Testbed())
	return d, func() *telemetry.PMem { return &telemetry.PMem{DIMMs: d.Counters(), Model: true} }
}

// pmemSampler knows what the persistent memory of this machine counted last.
type pmemSampler struct {
	tool pmem.IPMCTL
	last atomic.Pointer[telemetry.PMem]
}

// sample reads the counters until ctx ends. Where there are no modules, or nothing to read them
// with, it reads once. A failure is kept until a reading succeeds, and stops nothing else.
func (s *pmemSampler) sample(ctx context.Context) {
	tick := time.NewTicker(pmemEvery)
	defer tick.Stop()
	for {
		all, err := s.tool.Read(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil:
			s.last.Store(&telemetry.PMem{Problem: strings.TrimPrefix(err.Error(), "read ipmctl's counters: ")})
		default:
			s.last.Store(&telemetry.PMem{DIMMs: all})
		}
		if errors.Is(err, pmem.ErrNoTool) || errors.Is(err, pmem.ErrNoModules) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

var (
	nodeMedia = ofNode.figure("farkv_node_pmem_media_total",
		"Reads and writes of 64 bytes of a module's media since it was powered on.", "dimm", "verb")
	nodeRequests = ofNode.figure("farkv_node_pmem_requests_total",
		"Requests of 64 bytes that a module served since it was powered on.", "dimm", "verb")
	nodeNoPMem = ofNode.figure("farkv_node_pmem_unknown", "1 when the counters of persistent memory cannot be read.",
		"reason")
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

// amplification returns how much a module has written for what it was asked to write.
func amplification(d pmem.DIMM) string {
	if d.WriteRequests == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f", float64(d.MediaWrites)/float64(d.WriteRequests))
}

// printPMem shows the counters of the nodes' modules, where there are any.
func (s *State) printPMem(w io.Writer) {
	modelled := false
	rows := [][]string{{"node", "dimm", "media reads", "media writes", "read requests", "write requests", "DLWA"}}
	for i, n := range s.Nodes {
		if n.Served == nil || n.PMem == nil {
			continue
		}
		modelled = modelled || n.PMem.Model
		for _, d := range n.PMem.DIMMs {
			rows = append(rows, []string{fmt.Sprint(i), d.ID, format.Count(d.MediaReads), format.Count(d.MediaWrites),
				format.Count(d.ReadRequests), format.Count(d.WriteRequests), amplification(d)})
		}
	}
	if len(rows) > 1 {
		fmt.Fprintln(w)
		table.Print(w, rows, 1)
		fmt.Fprintln(w, "each counts 64 bytes since the module was powered on; DLWA is write amplification since "+
			"then, 'farkv monitor' shows what it is now")
		if modelled {
			fmt.Fprintln(w, "there are no modules called model: a model counts what they would have done since their "+
				"node started")
		}
	}
}
