package chaos

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/cluster/local"
	"github.com/farkv/farkv/ops"
)

// bystander starts a process that no pool started, and returns what a record would have to say to
// mean it.
func bystander(t *testing.T) local.Process {
	t.Helper()
	p := exec.Command("sleep", "60")
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = p.Process.Kill()
		if err := p.Wait(); err == nil || err.Error() != "signal: killed" {
			t.Errorf("the bystander ended with %v", err)
		}
	})
	stat, err := os.ReadFile("/proc/" + strconv.Itoa(p.Process.Pid) + "/stat")
	if err != nil {
		t.Fatal(err)
	}
	const start = 19 // field 22, behind number, name and state
	ticks, err := strconv.ParseUint(string(bytes.Fields(stat[bytes.LastIndexByte(stat, ')')+1:])[start]), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	boot, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil {
		t.Fatal(err)
	}
	return local.Process{PID: p.Process.Pid, Start: ticks, Boot: strings.TrimSpace(string(boot))}
}

// A record in a folder that another user may have made is not acted on: its process is not
// signaled, and its address is not dialed.
func TestForeignRecord(t *testing.T) {
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	t.Setenv("FARKV_SHM_DIR", t.TempDir())
	here, err := local.Create("mine")
	if err != nil {
		t.Fatal(err)
	}
	here.Nodes = []local.Process{bystander(t)}
	if err := here.Made("tcp:127.0.0.1:1"); err != nil {
		t.Fatal(err)
	}
	if !here.Alive(0) {
		t.Fatal("the record does not mean the bystander: the test would show nothing")
	}
	if err := os.Chmod(local.Root(), 0o777); err != nil {
		t.Fatal(err)
	}
	_, down := ops.Down("mine", true, false)
	_, status := ops.Status("mine")
	_, crash := CrashNode("mine", 0, false)
	_, put := stores.Open("mine")
	_, resolve := ops.Resolve("mine")
	for what, err := range map[string]error{"down": down, "status": status, "crash": crash, "open": put,
		"resolve": resolve} {
		if !errors.Is(err, local.ErrFolder) {
			t.Errorf("%s: %v, want %v", what, err, local.ErrFolder)
		}
	}
	if !here.Alive(0) {
		t.Error("the bystander was ended")
	}
}
