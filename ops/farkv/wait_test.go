package main

import (
	"bytes"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/farkv/farkv/node/cluster/consul/consultest"
)

// lines is an output that may be read while it is written.
type lines struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *lines) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *lines) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// await waits until the output has a text.
func (l *lines) await(t *testing.T, text string) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !strings.Contains(l.String(),
		text); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("never %q, but %q", text, l)
		}
	}
}

// start starts a command in a process of its own: how long calls of an agent may last is a matter
// of the process.
func start(t *testing.T, out, errs *lines, args ...string) *exec.Cmd {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "farkv", args...)
	cmd.Stdout, cmd.Stderr = out, errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	return cmd
}

// exitsWith waits for the end of a process, and for its exit status.
func exitsWith(t *testing.T, cmd *exec.Cmd, want int, errs *lines) {
	t.Helper()
	_ = cmd.Wait() // the status says it
	if got := cmd.ProcessState.ExitCode(); got != want {
		t.Errorf("exit status %d, want %d: %s", got, want, errs)
	}
}

// A node waits for a Consul agent that starts later, and registers then.
func TestNodeBeforeAgent(t *testing.T) {
	t.Parallel()
	agent := consultest.Start(t, nil)
	agent.Kill()
	var out, errs lines
	cmd := start(t, &out, &errs, "node", "--memory", "1MiB", "--listen", "127.0.0.1:0", "--drain", "10ms", "--consul",
		agent.Address)
	errs.await(t, "waiting for the Consul agent at "+agent.Address+", for up to 30s (--wait): ")
	agent.Start()
	out.await(t, "serves 1 MiB at 127.0.0.1:")
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Error(err)
	}
	exitsWith(t, cmd, 0, &errs)
}

// A command waits for an agent that stands still for longer than a call of a keeper may last.
func TestCommandWaits(t *testing.T) {
	t.Parallel()
	agent := consultest.Start(t, nil)
	agent.Pause()
	var out, errs lines
	cmd := start(t, &out, &errs, "status", "consul:"+agent.Address+"/none")
	errs.await(t, "waiting for the Consul agent at "+agent.Address+", for up to 30s (--wait): it does not answer")
	time.Sleep(time.Second) // what asked once, for a second, has given up
	agent.Resume()
	exitsWith(t, cmd, 1, &errs)
	if !strings.Contains(errs.String(), "no such pool") {
		t.Errorf("it says %s", &errs)
	}
}
