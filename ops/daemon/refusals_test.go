package daemon

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/node/version"
	"github.com/farkv/farkv/ops"
	"github.com/farkv/farkv/ops/metrics/metricstest"
	"github.com/farkv/farkv/workloads/check/wait"
)

// TestRefusals: a node that was called with a wrong token says so apart from what it refuses for
// other reasons, at its metrics and to 'farkv status'.
func TestRefusals(t *testing.T) {
	defer goleak.VerifyNone(t)
	good, bad := filepath.Join(t.TempDir(), "good"), filepath.Join(t.TempDir(), "bad")
	for name, text := range map[string]string{good: strings.Repeat("g", 32), bad: strings.Repeat("b", 32)} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	c := smallNode()
	c.TokenFile, c.Metrics = good, "127.0.0.1:0"
	s, end := serving(t, c)
	addr := "tcp:" + s.Address
	for range 3 {
		t.Setenv(fabrics.EnvToken, bad)
		if all, err := ops.Inspect(t.Context(), addr, nil); err != nil || all[0].Reachable {
			t.Errorf("with a wrong token: %+v, %v", all, err)
		}
	}
	t.Setenv(fabrics.EnvToken, good)
	var all []ops.Served
	var err error
	wait.Until(t, "the node has counted the callers that it refused", func() bool { // which it does behind its answer
		all, err = ops.Inspect(t.Context(), addr, nil)
		return err != nil || all[0].AuthFailures >= 3
	})
	if err != nil || !all[0].Reachable || all[0].AuthFailures != 3 || all[0].RefusedRoom+all[0].RefusedOther != 0 {
		t.Fatalf("%+v, %v", all, err)
	}
	if all[0].Commit != version.Commit() {
		t.Errorf("it is of commit %q, want %q", all[0].Commit, version.Commit())
	}
	all[0].RefusedRoom = 1
	var text strings.Builder
	(&ops.State{Nodes: []ops.Node{{Served: &all[0]}}}).Print(&text)
	if want := "\nnode 0: 3 connections failed authentication, 1 connection found no room\n"; !strings.HasSuffix(
		text.String(), want) {
		t.Errorf("status says %q, want %q at the end", text.String(), want)
	}
	_, page := metricstest.Fetch(t, s.Metrics)
	for _, line := range []string{"farkv_node_auth_failures_total 3",
		`farkv_node_connections_refused_total{reason="room"} 0`} {
		if !strings.Contains(page, "\n"+line+"\n") {
			t.Errorf("no %s among the metrics: %s", line, metricstest.FarkvLines(page))
		}
	}
	if err := end(); err != nil {
		t.Error(err)
	}
}
