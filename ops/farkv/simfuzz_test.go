package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
)

// onWrite calls f at each write.
type onWrite struct {
	bytes.Buffer
	f func()
}

func (w *onWrite) Write(p []byte) (int, error) {
	w.f()
	return w.Buffer.Write(p)
}

// An interrupt ends the search with what was done.
func TestFuzzInterrupted(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	var stdout bytes.Buffer
	stderr := &onWrite{f: cancel} // the first progress
	status := execute(ctx, []string{"sim", "fuzz", "fusee", "--runs", "1000000000", "--faults", "0", "--replicas", "2"},
		strings.NewReader(""), &stdout, stderr)
	if status != exitInterrupted || !strings.HasSuffix(stderr.String(), "farkv: interrupted\n") {
		t.Errorf("status %d: %s", status, stderr)
	}
	if !strings.HasPrefix(stdout.String(), "fusee: 2") || !strings.Contains(stdout.String(), " seeds from 1 on") {
		t.Errorf("got %s", &stdout)
	}
}
