package main

import (
	"bytes"
	"context"
	"strings"
	"sync"
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

// A node waits for a Consul agent that starts later, and registers then.
func TestNodeBeforeAgent(t *testing.T) {
	t.Parallel()
	agent := consultest.Start(t, nil)
	agent.Kill()
	ctx, end := context.WithCancel(context.Background())
	defer end()
	var out, errs lines
	ended := make(chan int, 1)
	go func() {
		args := []string{"node", "--memory", "1MiB", "--listen", "127.0.0.1:0", "--drain", "10ms", "--consul",
			agent.Address}
		ended <- execute(ctx, args, strings.NewReader(""), &out, &errs)
	}()
	errs.await(t, "waiting for the Consul agent at "+agent.Address+", for up to 30s (--wait): ")
	agent.Start()
	out.await(t, "serves 1 MiB at 127.0.0.1:")
	end()
	if status := <-ended; status != 0 {
		t.Errorf("exit status %d: %s", status, &errs)
	}
}

// A command waits for an agent that stands still for longer than a call of a keeper may last.
func TestCommandWaits(t *testing.T) {
	t.Parallel()
	agent := consultest.Start(t, nil)
	agent.Pause()
	var out, errs lines
	ended := make(chan int, 1)
	go func() {
		args := []string{"status", "consul:" + agent.Address + "/none"}
		ended <- execute(context.Background(), args, strings.NewReader(""), &out, &errs)
	}()
	errs.await(t, "waiting for the Consul agent at "+agent.Address+", for up to 30s (--wait): it does not answer")
	time.Sleep(time.Second) // what asked once, for a second, has given up
	agent.Resume()
	if status := <-ended; status != 1 || !strings.Contains(errs.String(), "no such pool") {
		t.Errorf("exit status %d: %s", status, &errs)
	}
}
