package explore

import (
	"bytes"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/farkv/farkv/workloads/check/seeds"
)

// replayLines bounds a replay in a test's log.
const replayLines = 400

// Seeds explores as many seeds, or $FARKV_SEEDS, from $FARKV_SEED or 1 on. One that fails is shrunk
// and replayed.
func Seeds(t *testing.T, s *Subject, runs uint64) {
	t.Helper()
	first, runs := seeds.Chosen(t, runs)
	r := s.Fuzz(t.Context(), Search{First: first, Runs: runs})
	if r.Failure == nil {
		if r.OK == 0 {
			t.Fatalf("none of %d operations in %d runs succeeded", r.Operations, r.Runs)
		}
		t.Logf("%+v", r.Stats)
		return
	}
	p, f := s.Shrink(r.Plan, r.Failure)
	t.Fatalf("seed %d: %v\nplan: %s\nshrunk from: %s\n%s", r.Seed, f, p, r.Plan, s.tail(p))
}

// Plans runs plans that failed once, a line each. Empty lines and lines that begin with # are
// comments. The test fails when a plan fails again.
func Plans(t *testing.T, s *Subject, lines ...string) {
	t.Helper()
	tried := 0
	for _, line := range lines {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		tried++
		t.Run(fmt.Sprintf("plan %d", tried), func(t *testing.T) {
			t.Helper()
			p, err := Parse(line)
			if err != nil {
				t.Fatal(err)
			}
			if f := s.Run(p); f != nil {
				t.Errorf("%v\nplan: %s\n%s", f, p, s.tail(p))
			}
		})
	}
	if tried == 0 {
		t.Error("no plans")
	}
}

// File returns the lines of a file of plans.
func File(t *testing.T, path string) []string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(string(text), "\n")
}

// tail returns the end of a plan's replay.
func (s *Subject) tail(p *Plan) string {
	var b bytes.Buffer
	s.Replay(p, &b) // a Buffer takes everything
	lines := strings.Split(b.String(), "\n")
	if n := len(lines) - replayLines; n > 0 {
		lines = append([]string{fmt.Sprintf("... %d lines before", n)}, lines[n:]...)
	}
	return strings.Join(lines, "\n")
}
