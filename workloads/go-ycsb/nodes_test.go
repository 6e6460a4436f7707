package main

import (
	"bytes"
	"io"
	"regexp"
	"strings"
	"testing"

	"github.com/farkv/farkv/node/cluster/local"
	"github.com/farkv/farkv/node/fabrics"
)

// drive runs a command line in this process.
func drive(command string, more ...string) (status int, stdout, stderr string) {
	var out, errs bytes.Buffer
	args := append([]string{command, "fusee", "-P", "workloada", "-p", "recordcount=200", "-p", "operationcount=500"},
		more...)
	status = execute(args, io.MultiReader(), &out, &errs)
	return status, out.String(), errs.String()
}

// A load makes a pool on memory nodes that have none; it is found by its address, by a part of
// that, and by the name under which 'farkv up' would have started its nodes.
func TestMemoryNodes(t *testing.T) {
	t.Setenv("FARKV_SHM_DIR", t.TempDir())
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	var nodes []string
	for range 3 {
		n, err := fabrics.Serve(fabrics.NodeConfig{Listen: "127.0.0.1:0", Memory: 64 << 20})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := n.Close(); err != nil {
				t.Error(err)
			}
		})
		nodes = append(nodes, n.Addr())
	}
	addr := "tcp:" + strings.Join(nodes, ",")
	started, err := local.Create("mine")
	if err != nil {
		t.Fatal(err)
	}
	if err := started.Made(addr); err != nil {
		t.Fatal(err)
	}
	if status, _, stderr := drive("run", "-p", "farkv.pool="+addr); status != exitFailed ||
		!strings.Contains(stderr, "no pool") {
		t.Errorf("run without a pool: %d, %s", status, stderr)
	}
	if status, _, stderr := drive("load", "-p", "farkv.pool="+addr, "-p", "farkv.nodes=4"); status != exitMisuse {
		t.Errorf("4 nodes of 3: %d, %s", status, stderr)
	}
	if status, stdout, stderr := drive("load", "-p", "farkv.pool="+addr); status != 0 ||
		!strings.Contains(stdout, "Made pool "+addr) {
		t.Fatalf("load: %d, %s, %s", status, stdout, stderr)
	}
	took := regexp.MustCompile(
		`(?m)^Of the fabric an operation took: [1-9]\d*\.\d\d trips, \d+\.\d\d doorbells, ` +
			`[1-9]\d*\.\d\d verbs, 0\.\d\d calls of nodes$`)
	for _, pool := range []string{addr, "tcp:" + nodes[2], "mine"} {
		status, stdout, stderr := drive("run", "--threads", "4", "-p", "farkv.pool="+pool)
		if status != 0 || !strings.Contains(stdout, "READ ") || !strings.Contains(stdout, "UPDATE ") ||
			!took.MatchString(stdout) {
			t.Errorf("run %s: %d, %s, %s", pool, status, stdout, stderr)
		}
	}
	if status, _, stderr := drive("load", "-p", "farkv.pool=mine", "-p", "dropdata=true"); status != 0 {
		t.Errorf("load anew: %d, %s", status, stderr)
	}
}
