package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/ops/daemon"
	"github.com/farkv/farkv/workloads/check/wait"
)

// program returns a path of this program as the farkv command: see TestMain.
func program(t *testing.T) string {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "farkv")
	if err := os.Symlink(self, name); err != nil {
		t.Fatal(err)
	}
	return name
}

// lockedBuffer is what a process says while the test reads it.
type lockedBuffer struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}

// startNode runs 'farkv node', as a program or through a shell, until the test ends. It returns
// what the node says of itself, and its log.
func startNode(t *testing.T, command *exec.Cmd) (daemon.Serving, *lockedBuffer) {
	t.Helper()
	log := new(lockedBuffer)
	command.Stderr = log
	out, err := command.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := command.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		command.Process.Kill()
		command.Wait()
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	var s daemon.Serving
	if err == nil {
		err = json.Unmarshal([]byte(line), &s)
	}
	if err != nil {
		t.Fatalf("the node says %q: %v: %s", line, err, log)
	}
	return s, log
}

// TestFewFiles: a node that may open 300 files is asked for 400 connections to its metrics that
// stay open, and then for more connections than it has files. It goes on to be scraped, and to let
// clients in, as many as there are files for, and an administrator beyond.
func TestFewFiles(t *testing.T) {
	farkv := program(t)
	node, log := startNode(t, exec.Command("sh", "-c", `ulimit -n 300 && exec "$0" "$@"`, farkv, "node",
		"--memory", "64MiB", "--listen", "127.0.0.1:0", "--metrics", "127.0.0.1:0", "--output", "json"))
	health := strings.TrimSuffix(node.Metrics, "/metrics") + "/healthz"
	var kept []net.Conn
	defer func() {
		for _, c := range kept {
			c.Close()
		}
	}()
	for range 400 { // each has been answered once, and stays
		c, err := net.Dial("tcp", strings.TrimSuffix(strings.TrimPrefix(node.Metrics, "http://"), "/metrics"))
		if err != nil {
			t.Fatal(err)
		}
		kept = append(kept, c)
		c.SetDeadline(time.Now().Add(wait.Hang))
		_, err = io.WriteString(c, "GET /healthz HTTP/1.1\r\nHost: farkv\r\n\r\n")
		if err == nil {
			_, err = bufio.NewReader(c).ReadString('\n')
		}
		if err != nil {
			t.Fatalf("connection %d to the metrics: %v", len(kept), err)
		}
	}
	addr := "tcp:" + node.Address
	if status, _, stderr := run(t.Context(), "list"); status != 0 { // an administrator's; what follows is none's
		t.Fatal(stderr)
	}
	if status, _, stderr := run(t.Context(), "up", addr, "--records", "100", "--replicas", "1"); status != 0 {
		t.Fatalf("up beside these: %s", stderr)
	}
	clients := 0
	for ; clients < 300; clients++ {
		f, err := fabrics.Open(addr)
		if err != nil {
			if !errors.Is(err, fabrics.ErrConnections) {
				t.Fatalf("process %d: %v", clients, err)
			}
			break
		}
		defer f.Close()
	}
	if clients < 20 || clients == 300 {
		t.Errorf("%d processes were let in", clients)
	}
	if said, err := exec.Command(farkv, "status", addr).CombinedOutput(); err != nil {
		t.Errorf("'farkv status' beside %d processes: %v: %s", clients, err, said)
	}
	c := http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: wait.Hang}
	if r, err := c.Get(health); err != nil {
		t.Errorf("a scrape beside %d others, and %d processes: %v", len(kept), clients, err)
	} else {
		r.Body.Close()
	}
	if text := log.String(); strings.Contains(text, "too many open files") ||
		!strings.Contains(text, "takes fewer connections") {
		t.Errorf("the node's log: %s", text)
	}
}
