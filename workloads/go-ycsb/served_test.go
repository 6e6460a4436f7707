package main

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"testing"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/workloads/check/wait"
	"github.com/farkv/farkv/workloads/runner"
)

// TestServed loads stores with servers, each on three memory nodes that load starts, and runs mixes
// there, each by a process of its own. Each value that is read is checked, and then the pool.
// FARKV_LONG=1 runs more of both.
func TestServed(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("memory nodes need Linux")
	}
	mixes, records := []string{"workloadf"}, 200
	if os.Getenv("FARKV_LONG") == "1" {
		mixes, records = []string{"workloada", "workloadb", "workloadc", "workloadd", "workloadf"}, 20_000
	}
	for _, k := range stores.Kinds() {
		if few := records < 1000; k.Serve == nil || few && k.Name != "share-kv" { // testdata/rowan.txtar has rowan
			continue
		}
		t.Run(k.Name, func(t *testing.T) { served(t, k, mixes, records) })
	}
}

func served(t *testing.T, k *stores.Kind, mixes []string, records int) {
	run := t.TempDir()
	t.Setenv("XDG_RUNTIME_DIR", run)
	t.Setenv("FARKV_SHM_DIR", t.TempDir())
	defer func() {
		if err := endNodes(run); err != nil {
			t.Error(err)
		}
	}()
	for i, mix := range slices.Insert(slices.Clone(mixes), 0, "workloada") {
		results, phase := filepath.Join(t.TempDir(), "results.json"), "run"
		if i == 0 {
			phase = "load"
		}
		said, err := exec.CommandContext(t.Context(), "go-ycsb", phase, k.Name, "-P", mix, "-p", "dataintegrity=true",
			"-p", "farkv.timeout="+wait.Hang.String(), "-p", "recordcount="+strconv.Itoa(records),
			"-p", "operationcount="+strconv.Itoa(records), "--seed", "7", "--threads", "4", "--results",
			results).CombinedOutput()
		if err != nil {
			t.Fatalf("%s %s: %v\n%s", phase, mix, err, said)
		}
		f, err := os.Open(results)
		if err != nil {
			t.Fatal(err)
		}
		r, err := runner.ReadResult(f)
		f.Close()
		if err != nil {
			t.Fatalf("%s %s: %v", phase, mix, err)
		}
		if r.Operations < uint64(records) || r.Failed > 0 {
			t.Errorf("%s %s: %d operations, %d failed", phase, mix, r.Operations, r.Failed)
		}
	}
	p, err := stores.Open("farkv")
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if found, err := k.Check(p.Fabric); err != nil || len(found.Damage) > 0 {
		t.Errorf("check: %v, %v", err, found.Damage)
	}
}
