package main

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/farkv/farkv/workloads/check/wait"
)

// processesOf returns the ids of the processes with a folder on their command lines.
func processesOf(t *testing.T, folder string) (ids []int) {
	t.Helper()
	all, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil || len(all) == 0 {
		t.Fatalf("no processes: %v", err)
	}
	for _, file := range all {
		text, err := os.ReadFile(file)
		if err != nil || !bytes.Contains(text, []byte(folder)) {
			continue // it has ended, or is another's
		}
		id, err := strconv.Atoi(filepath.Base(filepath.Dir(file)))
		if err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	return ids
}

// TestKilledUp kills 'farkv up --fabric tcp' at one moment after the other while it starts nodes:
// 'farkv down' finds whatever it leaves.
func TestKilledUp(t *testing.T) {
	run := t.TempDir()
	t.Setenv("XDG_RUNTIME_DIR", run)
	t.Setenv("FARKV_SHM_DIR", t.TempDir())
	t.Setenv("GORACE", "atexit_sleep_ms=0")
	t.Cleanup(func() {
		for _, id := range processesOf(t, run) { // after a failure: their command lines name this test's folder
			if p, err := os.FindProcess(id); err == nil {
				_ = p.Kill()
			}
		}
	})
	const moments = 40
	var begun time.Duration // from the start of up until it has a run folder: kills begin then
	left := 0
	for i := range moments {
		folder := filepath.Join(run, "farkv", "mine")
		up := exec.Command("farkv", "up", "--fabric", "tcp", "mine", "--nodes", "3", "--records", "1000")
		if err := up.Start(); err != nil {
			t.Fatal(err)
		}
		for start := time.Now(); ; time.Sleep(100 * time.Microsecond) {
			if _, err := os.Stat(folder); err == nil {
				begun += time.Since(start)
				break
			}
			if time.Since(start) > time.Minute {
				t.Fatal("up does nothing")
			}
		}
		time.Sleep(time.Duration(i) * time.Millisecond / 2) // up to 20 ms, in which nodes are started
		if err := up.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = up.Wait()
		left += len(processesOf(t, run))
		if text, err := exec.Command("farkv", "down", "mine", "--force").CombinedOutput(); err != nil {
			t.Fatalf("moment %d: down: %v: %s", i, err, text)
		}
		var ids []int
		for end := time.Now().Add(wait.Hang); time.Now().Before(end); time.Sleep(10 * time.Millisecond) {
			if ids = processesOf(t, run); len(ids) == 0 { // those that were not recorded end by themselves
				break
			}
		}
		if len(ids) > 0 {
			t.Fatalf("moment %d: down left the processes %v", i, ids)
		}
		if rest, err := os.ReadDir(filepath.Join(run, "farkv")); err != nil || slices.ContainsFunc(rest, isPool) {
			t.Fatalf("moment %d: down left %v, %v", i, rest, err)
		}
	}
	if left == 0 {
		t.Error("no kill left a process behind: the test shows nothing")
	}
	t.Logf("up had begun after %v; %d processes were left in %d kills", begun/moments, left, moments)
}

// isPool reports whether an entry has the name of a pool.
func isPool(e os.DirEntry) bool { return e.Name()[0] != '.' }
