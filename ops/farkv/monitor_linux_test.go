package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/farkv/farkv/tui/tuitest"
)

// A demo shows a pool that lives, breaks and heals, and leaves nothing behind, however it is ended.
func TestDemo(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		name   string
		long   bool
		end    func(x *tuitest.Terminal)
		status int
		says   string
	}{
		{"q", true, func(x *tuitest.Terminal) { x.Type("q") }, 0, ""},
		{"Ctrl-C", false, func(x *tuitest.Terminal) { x.Type("\x03") }, 130, "interrupted"},
		{"SIGTERM", true, func(x *tuitest.Terminal) { _ = x.Command.Process.Signal(syscall.SIGTERM) }, 130,
			"interrupted by a signal: terminated"},
	} {
		t.Run(c.name, func(t *testing.T) {
			if c.long && os.Getenv("FARKV_LONG") != "1" {
				t.Skip("a demo takes its time: FARKV_LONG=1 runs it")
			}
			x, cmd, dir := startDemo(t)
			x.Find(`1 Overview (.|\n)*Operations a second`)
			if c.name == "q" {
				x.Find(`of demo-\d+: (killed|stopped|cut)`)
				x.Find(`[─┴]▲`)
				x.Type("6")
				x.Find(`what  +node  +client`)
				x.Type("?")
				x.Find(`Keys ─`)
				x.Type("?") // not the escape key, which with the next one would be another
			}
			c.end(x)
			_, _, after := x.End()
			if got := cmd.ProcessState.ExitCode(); got != c.status {
				t.Errorf("exit status %d, want %d: %s", got, c.status, after)
			}
			if !bytes.Contains(after, []byte("removing the pool")) || !bytes.Contains(after, []byte(c.says)) ||
				bytes.Contains(after, []byte("panic")) {
				t.Errorf("behind the monitor: %q", after)
			}
			nothingLeft(t, dir)
		})
	}
}

// A terminal that goes away while a demo makes its pool ends the demo, and the nodes that have
// started.
func TestDemoHangUp(t *testing.T) {
	x, cmd, dir := startDemo(t)
	x.Find(`making a fusee pool`)
	_ = cmd.Process.Signal(syscall.SIGHUP)
	x.Wait()
	if got, drawn := cmd.ProcessState.ExitCode(), x.Drawn(); got != 130 || !bytes.Contains(drawn, []byte("hangup")) {
		t.Errorf("exit status %d, want 130: %q", got, drawn)
	}
	nothingLeft(t, dir)
}

// startDemo starts a demo on a terminal, with files and processes in a folder of its own.
func startDemo(t *testing.T) (x *tuitest.Terminal, cmd *exec.Cmd, dir string) {
	t.Helper()
	dir = t.TempDir()
	cmd = exec.CommandContext(t.Context(), "farkv", "monitor", "--demo")
	cmd.Env = append(os.Environ(), "TERM=xterm-256color", "LANG=C.UTF-8", "FARKV_SHM_DIR="+dir, "XDG_RUNTIME_DIR="+dir,
		"TMPDIR="+dir, "GORACE=atexit_sleep_ms=0")
	t.Cleanup(func() { endNodes(dir) })
	return tuitest.Start(t, 120, 40, cmd), cmd, dir
}

// nothingLeft fails the test if files of pools are left, or processes that have dir in their
// environment: those that were told to end may take a while.
func nothingLeft(t *testing.T, dir string) {
	t.Helper()
	_ = filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			t.Errorf("left: %s", path)
		}
		return nil
	})
	for until := time.Now().Add(time.Minute); ; time.Sleep(50 * time.Millisecond) {
		left := processesIn(dir)
		if len(left) == 0 {
			return
		}
		if time.Now().After(until) {
			t.Fatalf("left: processes %s", strings.Join(left, ", "))
		}
	}
}

func processesIn(dir string) (all []string) {
	environments, _ := filepath.Glob("/proc/[0-9]*/environ")
	for _, file := range environments {
		env, err := os.ReadFile(file)
		if err == nil && bytes.Contains(env, []byte("XDG_RUNTIME_DIR="+dir)) {
			line, _ := os.ReadFile(filepath.Join(filepath.Dir(file), "cmdline"))
			all = append(all, fmt.Sprintf("%s: %s", filepath.Base(filepath.Dir(file)),
				bytes.ReplaceAll(line, []byte{0}, []byte{' '})))
		}
	}
	return all
}

// No command asks the terminal for anything: what answers comes late, or never, and is another
// program's input then.
func TestNothingIsAsked(t *testing.T) {
	cmd := exec.CommandContext(t.Context(), "farkv", "version")
	cmd.Env = append(os.Environ(), "TERM=xterm-256color", "CI=", "GORACE=atexit_sleep_ms=0")
	x := tuitest.Start(t, 80, 24, cmd)
	x.Wait()
	if drawn := x.Drawn(); bytes.Contains(drawn, []byte("\x1b")) || !bytes.Contains(drawn, []byte("farkv")) {
		t.Errorf("drawn: %q", drawn)
	}
}
