package main

import (
	"errors"
	"log/slog"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/farkv/farkv/node/fabrics"
	"github.com/farkv/farkv/workloads/check/wait"
)

// TestPerfLeavesNothing ends 'farkv perf' while it measures. No other process can open the pool
// that it measures on, and its node is free again afterwards.
func TestPerfLeavesNothing(t *testing.T) {
	n, err := fabrics.Serve(fabrics.NodeConfig{Listen: "127.0.0.1:0", Memory: 8 << 20, Conns: 16,
		Log: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	addr := "tcp:" + n.Addr()
	for _, signal := range []os.Signal{syscall.SIGKILL, os.Interrupt} {
		cmd := exec.Command("farkv", "perf", addr, "--time", "1h", "--ops", "1000000000")
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		wait.Until(t, "the node is used", func() bool { return n.Info().Pool != nil && n.Stats().Writes > 0 })
		if f, err := fabrics.Open(addr); !errors.Is(err, fabrics.ErrNoPool) {
			t.Errorf("%v: others open its pool: %v, %v", signal, f, err)
		}
		if err := cmd.Process.Signal(signal); err != nil {
			t.Error(err)
		}
		if err := cmd.Wait(); err == nil {
			t.Errorf("%v: it ended well", signal)
		}
		wait.Until(t, "the node is free", func() bool { return n.Info().Pool == nil })
	}
}
