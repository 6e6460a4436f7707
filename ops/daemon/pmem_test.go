package daemon

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/ops"
	"github.com/farkv/farkv/ops/metrics/metricstest"
	"github.com/farkv/farkv/workloads/check/wait"
	"github.com/farkv/farkv/workloads/runner"
)

// TestNodePMem has nodes read counters through executables that answer as ipmctl does: good ones
// reach inspections and metrics, what is wrong is told, and the node serves in any case.
func TestNodePMem(t *testing.T) {
	for _, c := range []struct{ script, metric, problem string }{
		{"printf -- '---DimmID=0x0001---\\nMediaWrites=0x10\\nWriteRequests=0x8\\n'",
			`farkv_node_pmem_media_total{dimm="0x0001",verb="write"} 16`, ""},
		{"echo 'Initialization failed. No PMem modules in the system.'; exit 1",
			`farkv_node_pmem_unknown{reason="this machine has no persistent-memory modules"} 1`,
			"this machine has no persistent-memory modules"},
		{"exec sleep 60", `farkv_node_pmem_unknown{reason="ipmctl does not answer within 50ms"} 1`,
			"ipmctl does not answer within 50ms"},
	} {
		t.Run(c.script, func(t *testing.T) {
			node := smallNode()
			node.Metrics, node.IPMCTL.Timeout = "127.0.0.1:0", time.Minute
			// the others answer, but on a busy machine they take their time
			if strings.HasPrefix(c.script, "exec sleep") {
				node.IPMCTL.Timeout = 50 * time.Millisecond
			}
			node.IPMCTL.Program = filepath.Join(t.TempDir(), "ipmctl")
			if err := os.WriteFile(node.IPMCTL.Program, []byte("#!/bin/sh\n"+c.script), 0o755); err != nil {
				t.Fatal(err)
			}
			s, end := serving(t, node)
			var told *ops.Served
			wait.Until(t, "the node tells of its counters", func() bool {
				all, err := ops.Inspect(t.Context(), "tcp:"+s.Address, nil)
				if err != nil {
					t.Fatal(err)
				}
				told = &all[0]
				return told.PMem != nil
			})
			if told.PMem.Problem != c.problem || c.problem == "" &&
				(len(told.PMem.DIMMs) != 1 || told.PMem.DIMMs[0].WriteRequests != 8) {
				t.Errorf("%+v", told.PMem)
			}
			if _, text := metricstest.Fetch(t, s.Metrics); !strings.Contains(text, c.metric+"\n") {
				t.Errorf("metrics without %s:\n%s", c.metric, text)
			}
			state := ops.State{Store: "fusee", Nodes: []ops.Node{{Served: told}}}
			var out strings.Builder
			state.Print(&out)
			if got := strings.Contains(out.String(), "0x0001"); got != (c.problem == "") {
				t.Errorf("status prints %q", out.String())
			}
			if err := end(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestPMemModel: a node counts by a model what modules would do, and says so. Beside an RNIC it
// refuses to, because it does not see the RNIC's verbs.
func TestPMemModel(t *testing.T) {
	node := smallNode()
	node.Metrics, node.PMemModel = "127.0.0.1:0", true
	s, end := serving(t, node)
	f, err := fabrics.Create("tcp:"+s.Address, fabrics.Geometry{Nodes: 1, Memory: 1 << 20, Clients: 1}, nil)
	if err != nil {
		t.Fatal(err)
	}
	ep, err := f.Open("writer")
	if err != nil {
		t.Fatal(err)
	}
	b := ep.Batch()
	b.Write(rdma.At(0, 4096), b.Alloc(256))
	if err := errors.Join(rdma.Do(ep, b, time.Minute), ep.Close(), f.Close()); err != nil {
		t.Fatal(err)
	}
	all, err := ops.Inspect(t.Context(), "tcp:"+s.Address, nil)
	if err != nil {
		t.Fatal(err)
	}
	if p := all[0].PMem; p == nil || !p.Model || len(p.DIMMs) != 3 || p.DIMMs[1].WriteRequests != 4 {
		t.Errorf("%+v", p)
	}
	const metric = `farkv_node_pmem_requests_total{dimm="model 1",verb="write"} 4` + "\n"
	if _, text := metricstest.Fetch(t, s.Metrics); !strings.Contains(text, metric) {
		t.Errorf("metrics without %s:\n%s", metric, text)
	}
	state := ops.State{Store: "fusee", Nodes: []ops.Node{{Served: &all[0]}}}
	var out strings.Builder
	if state.Print(&out); !strings.Contains(out.String(), "model 1") ||
		!strings.Contains(out.String(), "a model counts") {
		t.Errorf("status prints %q", out.String())
	}
	if err := end(); err != nil {
		t.Error(err)
	}
	node.Fabric = "rdma"
	if _, err := node.serve(); !runner.Misused(err) {
		t.Errorf("beside an RNIC: %v", err)
	}
}

// TestSwapped: nodes that were started with each other's memory serve no clients, and status says
// why.
func TestSwapped(t *testing.T) {
	folder := t.TempDir()
	start := func(pmem, listen string) (addr string, end func() error) {
		node := smallNode()
		node.PMem, node.Listen = filepath.Join(folder, pmem), listen
		s, end := serving(t, node)
		return s.Address, end
	}
	a, endA := start("a", "127.0.0.1:0")
	b, endB := start("b", "127.0.0.1:0")
	pool := "tcp:" + a + "," + b
	f, err := fabrics.Create(pool, fabrics.Geometry{Nodes: 2, Memory: 1 << 20, Clients: 1}, nil)
	if err == nil {
		err = f.Close()
	}
	if err := errors.Join(err, endA(), endB()); err != nil {
		t.Fatal(err)
	}
	for _, swapped := range []bool{false, true} {
		names := [2]string{"a", "b"}
		if swapped {
			names = [2]string{"b", "a"}
		}
		_, endA := start(names[0], a)
		_, endB := start(names[1], b)
		all, err := ops.Inspect(t.Context(), pool, nil)
		if err != nil || len(all) != 2 {
			t.Fatalf("%+v, %v", all, err)
		}
		for i, s := range all {
			if said := strings.Contains(s.Problem,
				fmt.Sprintf("what answers there is node %d", 1-i)); said != swapped || s.Reachable == swapped {
				t.Errorf("swapped %v: node %d at %s: reachable %v, %s", swapped, i, s.Address, s.Reachable, s.Problem)
			}
		}
		if err := errors.Join(endA(), endB()); err != nil {
			t.Error(err)
		}
	}
}
