package main

import (
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/farkv/farkv/client/stores"
	"github.com/farkv/farkv/node/rdma"
	"github.com/farkv/farkv/ops"
	"github.com/farkv/farkv/ops/chaos"
)

// kills is how many processes TestKilledProcesses kills; FARKV_KILLS is another number.
func kills(t *testing.T) int {
	if s := os.Getenv("FARKV_KILLS"); s != "" {
		n, err := strconv.Atoi(s)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	return 20
}

// worker starts the program use on the pool and waits until it has done something.
func worker(t *testing.T, name string) (p *exec.Cmd, said *strings.Builder) {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	works := filepath.Join(t.TempDir(), "works")
	said = new(strings.Builder)
	p = &exec.Cmd{Path: exe, Args: []string{"use", "shm:farkv", name, works}, Stderr: said, Env: os.Environ()}
	if err := p.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // after a failure; otherwise it is over
		_ = p.Process.Kill()
		_ = p.Wait()
	})
	for until := time.Now().Add(time.Minute); time.Now().Before(until); time.Sleep(time.Millisecond) {
		if _, err := os.Stat(works); err == nil {
			return p, said
		}
	}
	t.Fatalf("%s does nothing: %s", name, said)
	return nil, nil
}

// TestKilledProcesses kills one process after the other, some at a moment, others at a step of
// their protocol, while one goes on: it never finds anything but what it has put. What the dead
// ones left is recovered and leaks nothing.
func TestKilledProcesses(t *testing.T) {
	t.Setenv("FARKV_SHM_DIR", t.TempDir())
	if _, err := ops.Up("farkv", "fusee", stores.Params{Records: 5000, PairBytes: 64}); err != nil {
		t.Fatal(err)
	}
	kind, err := stores.Lookup("fusee")
	if err != nil {
		t.Fatal(err)
	}
	witness, said := worker(t, "witness")
	for i := range kills(t) {
		name := fmt.Sprint("victim", i%5) // so that some find what the last one left
		p, _ := worker(t, name)
		step := rdma.Step("")
		if i%2 == 1 {
			step = kind.Steps[rand.IntN(len(kind.Steps))]
		}
		crashOne(t, name, step, p)
	}
	if err := witness.Process.Signal(os.Interrupt); err != nil {
		t.Fatal(err)
	}
	if err := witness.Wait(); err != nil {
		t.Fatalf("witness: %v: %s", err, said)
	}
	r, err := ops.Recover(t.Context(), "farkv", 0, false)
	if err != nil || len(r.Waiting) > 0 {
		t.Errorf("recover: %v", err)
	}
	f, err := ops.Check(t.Context(), "farkv", false)
	if err != nil {
		t.Fatal(err)
	}
	if !f.Sound || len(f.Waiting) > 0 {
		var text strings.Builder
		f.Print(&text)
		t.Errorf("check:\n%s", &text)
	}
}

// crashOne crashes a client of p, and waits until p is dead. Not every client comes to every step.
func crashOne(t *testing.T, name string, step rdma.Step, p *exec.Cmd) {
	t.Helper()
	s, err := ops.Status("farkv")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range s.Clients {
		if c.PID == p.Process.Pid && c.Name == name {
			if _, err := chaos.CrashClient("farkv", c.ID, step); err != nil {
				t.Fatalf("crash client %d of %s at %q: %v", c.ID, name, step, err)
			}
			break
		}
	}
	late := time.AfterFunc(200*time.Millisecond, func() { _ = p.Process.Kill() })
	defer late.Stop()
	if err := p.Wait(); err == nil || err.Error() != "signal: killed" {
		t.Errorf("%s at %q ended with %v", name, step, err)
	}
}
