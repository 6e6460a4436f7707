package ops

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// TestNodePMem has nodes read counters through executables that answer as ipmctl does: good ones reach inspections and metrics,
// what is wrong is told, and the node serves in any case.
func TestNodePMem(t *testing.T) {
	for _, c := range []struct{ script, metric, problem string }{
		{"printf -- '---DimmID=0x0001---\\nMediaWrites=0x10\\nWriteRequests=0x8\\n'",
			`farkv_node_pmem_media_total{dimm="0x0001",verb="write"} 16`, ""},
		{"echo 'Initialization failed. No PMem modules in the system.'; exit 1",
			`farkv_node_pmem_unknown{reason="this machine has no persistent-memory modules"} 1`, "this machine has no persistent-memory modules"},
		{"exec sleep 60", `farkv_node_pmem_unknown{reason="ipmctl does not answer within 50ms"} 1`, "ipmctl does not answer within 50ms"},
	} {
		t.Run(c.script, func(t *testing.T) {
			node := smallNode()
			node.Metrics, node.IPMCTL.Timeout = "127.0.0.1:0", time.Minute
			if strings.HasPrefix(c.script, "exec sleep") { // the others answer, but on a busy machine they take their time
				node.IPMCTL.Timeout = 50 * time.Millisecond
			}
			node.IPMCTL.Program = filepath.Join(t.TempDir(), "ipmctl")
			if err := os.WriteFile(node.IPMCTL.Program, []byte("#!/bin/sh\n"+c.script), 0o755); err != nil {
				t.Fatal(err)
			}
			s, end := serving(t, node)
			var told *Served
			for told == nil || told.PMem == nil {
				all, err := inspect(t.Context(), "tcp:"+s.Address, nil)
				if err != nil {
					t.Fatal(err)
				}
				told = &all[0]
			}
			if told.PMem.Problem != c.problem || c.problem == "" && (len(told.PMem.DIMMs) != 1 || told.PMem.DIMMs[0].WriteRequests != 8) {
				t.Errorf("%+v", told.PMem)
			}
			if _, text := fetch(t, s.Metrics); !strings.Contains(text, c.metric+"\n") {
				t.Errorf("metrics without %s:\n%s", c.metric, text)
			}
			state := State{Nodes: []Node{{Served: told}}}
			var out strings.Builder
			state.printPMem(&out)
			if got := strings.Contains(out.String(), "0x0001"); got != (c.problem == "") {
				t.Errorf("status prints %q", out.String())
			}
			if err := end(); err != nil {
				t.Error(err)
			}
		})
	}
}
