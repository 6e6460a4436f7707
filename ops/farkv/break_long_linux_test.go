package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/farkv/farkv/client/stores"
)

// TestLongSchedule breaks whatever may be broken of a pool of each store, under load, for a while:
// FARKV_LONG=1 runs it, and FARKV_BREAKS is another time for each store than 1m.
func TestLongSchedule(t *testing.T) {
	if os.Getenv("FARKV_LONG") != "1" {
		t.Skip("takes a minute a store: FARKV_LONG=1 runs it; a script has the short version")
	}
	lasts := "1m"
	if text := os.Getenv("FARKV_BREAKS"); text != "" {
		lasts = text
	}
	for _, store := range stores.Names() {
		t.Run(store, func(t *testing.T) { longSchedule(t, store, lasts) })
	}
}

func longSchedule(t *testing.T, store, lasts string) {
	folder := t.TempDir()
	t.Setenv("XDG_RUNTIME_DIR", folder)
	kind, err := stores.Lookup(store)
	if err != nil {
		t.Fatal(err)
	}
	farkv := func(args ...string) (string, error) {
		var out, wrong bytes.Buffer
		c := exec.Command("farkv", args...)
		c.Stdout, c.Stderr = &out, &wrong
		err := c.Run()
		return out.String() + wrong.String(), err
	}
	must := func(args ...string) string {
		t.Helper()
		out, err := farkv(args...)
		if err != nil {
			t.Fatalf("farkv %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return out
	}
	up := []string{"up", "--fabric", "tcp", "mine", "--store", store, "--records", "5000", "--nodes", "5"}
	if !kind.Majority && store != "raw" {
		up = append(up, "--spares", "2", "--replicas", "2")
	}
	must(up...)
	t.Cleanup(func() { farkv("down", "mine", "--force") })
	var loads []*exec.Cmd
	for i := range 5 {
		name := fmt.Sprint("load", i)
		c := exec.Command("use", "mine", name, filepath.Join(folder, name))
		if i >= 3 {
			c = exec.Command("farkv", "keep", "mine")
		}
		c.Stderr = new(bytes.Buffer)
		if err := c.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Process.Kill() })
		loads = append(loads, c)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
	defer cancel()
	c := exec.CommandContext(ctx, "farkv", "crash", "mine", "--every", "4s", "--for", lasts, "--seed", "7", "--stop",
		"700ms", "-q", "--kinds", "node,client,master,stop,slow,cut")
	out, err := c.CombinedOutput()
	t.Logf("%s:\n%s", store, out)
	if err != nil {
		t.Error(err)
	}
	for i, c := range loads {
		_ = c.Process.Signal(os.Interrupt)
		var ended *exec.ExitError
		err := c.Wait()
		if errors.As(err, &ended) && ended.Sys().(syscall.WaitStatus).Signal() == syscall.SIGKILL {
			continue // it was broken
		}
		if err != nil && i < 3 {
			t.Errorf("load %d: %v\n%s", i, err, c.Stderr)
		}
	}
	must("recover", "mine")
	if out := must("check", "mine"); !strings.HasSuffix(out, "no damage\n") {
		t.Error(out)
	}
}
