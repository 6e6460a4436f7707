package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/farkv/farkv/node/version"
	"github.com/farkv/farkv/workloads/check/wait"
)

// otherVersion is how this program, as a node or as a client, says that the other end speaks
// another version.
var otherVersion = regexp.MustCompile(
	`(node|client) \S+ speaks (wire|control) version (\d+), this (program|node) (\d+): use the same farkv on both`)

// TestPrevious runs the program of the commit before beside this one, each as a node of the other.
// They work together, or both say in a line that they speak different versions.
func TestPrevious(t *testing.T) {
	previous := os.Getenv("FARKV_PREVIOUS")
	if previous == "" {
		t.Skip("needs the program of another commit: FARKV_PREVIOUS=$(.ci/previous) go test ./ops/farkv -run " +
			"TestPrevious")
	}
	t.Setenv("FARKV_SHM_DIR", t.TempDir())
	t.Setenv("XDG_RUNTIME_DIR", t.TempDir())
	this := program(t)
	for name, c := range map[string]struct{ node, client string }{
		"its node":    {previous, this},
		"this node":   {this, previous},
		"two of this": {this, this}, // without which it could pass for another reason
	} {
		t.Run(name, func(t *testing.T) {
			node, log := startNode(t, exec.Command(c.node, "node", "--memory", "64MiB", "--listen", "127.0.0.1:0",
				"--output", "json"))
			pool := "tcp:" + node.Address
			err := farkv(c.client, "up", pool, "--records", "100", "--replicas", "1")
			if err == nil {
				worksTogether(t, c.client, c.node, pool)
				return
			}
			if c.node == c.client {
				t.Fatalf("two programs of one commit: %v", err)
			}
			refuses(t, c.node == this, err.Error(), log)
		})
	}
}

// farkv runs a command. The error is what it says.
func farkv(program string, args ...string) error {
	var said bytes.Buffer
	c := exec.Command(program, args...)
	c.Stdout, c.Stderr = &said, &said
	if err := c.Run(); err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(args, " "), err, &said)
	}
	return nil
}

// worksTogether uses a pool with one program and with the other.
func worksTogether(t *testing.T, client, node, pool string) {
	t.Helper()
	for _, args := range [][]string{{"put", pool, "paper", "FUSEE"}, {"get", pool, "paper"}, {"status", pool},
		{"check", pool}} {
		if err := farkv(client, args...); err != nil {
			t.Error(err)
		}
	}
	err := farkv(node, "get", pool, "paper")
	if err != nil && !strings.Contains(err.Error(), "format is version") { // stores have versions of their own
		t.Error(err)
	}
	if err := farkv(client, "down", pool); err != nil {
		t.Error(err)
	}
}

// refuses wants both ends to say that they do not speak the same version; this program in so many
// words.
func refuses(t *testing.T, node bool, client string, log *lockedBuffer) {
	t.Helper()
	for until := time.Now().Add(wait.Hang); !strings.Contains(log.String(),
		"version"); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(until) {
			t.Fatalf("the node says nothing of a version: %q", log)
		}
	}
	own, other := client, log.String()
	if node {
		own, other = other, own
	}
	m := otherVersion.FindStringSubmatch(own)
	if m == nil || m[3] == m[5] || m[2] == "wire" && m[5] != fmt.Sprint(version.Wire) {
		t.Errorf("this program says %q, want it to match %s", own, otherVersion)
	}
	if m != nil && !strings.Contains(other, "version "+m[5]) {
		t.Errorf("the other program says %q, and nothing of version %s", other, m[5])
	}
	if text := strings.TrimSpace(client); strings.Count(text, "\n") > 0 {
		t.Errorf("the client says more than a line: %q", text)
	}
}
